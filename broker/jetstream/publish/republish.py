"""Stored messages told again: what a stream with `republish` sends out after storing.

Owns: which subject a message is republished to, and the headers it gets.
May not touch: the sending. It happens on the leader only, at most once.
Spec: JetStream sheet 2.2, republish."""

from __future__ import annotations

from dataclasses import dataclass

from broker.jetstream.publish.message import IncomingMessage
from broker.jetstream.times import rfc3339
from broker.subjects.mapping import Mapping
from broker.wire import headers as wire_headers


@dataclass(slots=True)
class Republished:
    """A message to route, without a reply."""

    subject: bytes
    headers: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Republisher:
    stream: bytes
    mapping: Mapping
    headers_only: bool

    def told(self, message: IncomingMessage, *, seq: int, before: int) -> Republished | None:
        """`before` is the sequence its subject had last, 0 for none."""
        subject, data = message.subject, message.data
        to = self.mapping(subject, seed=seq)
        if to is None:
            return None
        lines = [
            (b"Nats-Stream", self.stream),
            (b"Nats-Subject", subject),
            (b"Nats-Sequence", b"%d" % seq),
            (b"Nats-Time-Stamp", rfc3339(message.time_ns).encode()),
            (b"Nats-Last-Sequence", b"%d" % before),
        ]
        if self.headers_only:
            lines.append((b"Nats-Msg-Size", b"%d" % len(data)))
        headers = wire_headers.add(message.headers, lines)
        return Republished(to, headers, b"" if self.headers_only else data)
