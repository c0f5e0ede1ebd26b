"""What only the leader sends after a publish: republished messages, abandoned-batch advisories.

Owns: the subject and headers of a republished message, and the list of what is to be sent.
May not touch: the sending (broker/cluster/replica/leadership.py). It happens at most once.
Spec: NATS ADR-28 (republish); advisory io.nats.jetstream.advisory.v1.batch_abandoned."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.jetstream.config import StreamConfig
from broker.jetstream.config.transforms import mapping_of
from broker.jetstream.incoming_message import IncomingMessage
from broker.jetstream.times import rfc3339
from broker.subjects.mapping import Mapping
from broker.wire import headers as wire_headers


@dataclass(slots=True)
class Republished:
    """A message to route, without a reply subject."""

    subject: bytes
    headers: bytes
    data: bytes


@dataclass(slots=True)
class LeaderEffects:
    """Collected while entries are applied. Every replica applies the same entries, but only the
    leader collects, because only the leader sends."""

    collecting: bool = False
    republished: list[Republished] = field(default_factory=list)
    abandoned: list[tuple[bytes, str]] = field(default_factory=list)  # batch id, reason

    def start(self) -> None:
        """This replica became the leader."""
        self.collecting = True

    def stop(self) -> None:
        """This replica is no longer the leader: discard what was not sent."""
        self.collecting = False
        self.republished, self.abandoned = [], []

    def take_republished(self) -> list[Republished]:
        taken, self.republished = self.republished, []
        return taken

    def take_abandoned(self) -> list[tuple[bytes, str]]:
        taken, self.abandoned = self.abandoned, []
        return taken

    def batch_abandoned(self, batch_id: bytes, reason: str) -> None:
        if self.collecting:
            self.abandoned.append((batch_id, reason))


@dataclass(frozen=True, slots=True)
class Republisher:
    """The `republish` configuration of a stream, ready to use."""

    stream: bytes
    mapping: Mapping
    headers_only: bool

    @classmethod
    def of(cls, config: StreamConfig) -> Republisher | None:
        """None for a stream that does not republish."""
        mapping = mapping_of(config.republish)
        if mapping is None or config.republish is None:
            return None
        return cls(config.name.encode(), mapping, config.republish.headers_only)

    def message(self, stored: IncomingMessage, *, seq: int, before: int) -> Republished | None:
        """The republished form of a message stored as `seq`; None if its subject does not match.

        `before` is the previous sequence of the subject, 0 for none."""
        subject, data = stored.subject, stored.data
        to = self.mapping(subject, seed=seq)
        if to is None:
            return None
        lines = [
            (b"Nats-Stream", self.stream),
            (b"Nats-Subject", subject),
            (b"Nats-Sequence", b"%d" % seq),
            (b"Nats-Time-Stamp", rfc3339(stored.time_ns).encode()),
            (b"Nats-Last-Sequence", b"%d" % before),
        ]
        if self.headers_only:
            lines.append((b"Nats-Msg-Size", b"%d" % len(data)))
        headers = wire_headers.add(stored.headers, lines)
        return Republished(to, headers, b"" if self.headers_only else data)
