"""The interface of a service that takes whole runs of messages, whatever their subjects.

Owns: the Protocol. The router knows one such service, which states its subject prefixes.
May not touch: what the messages mean."""

from __future__ import annotations

from typing import Any, Protocol

from broker.subjects import PublishingConnection, Sink, Subscription
from broker.wire import PubRun


class BulkService(Sink, Protocol):
    """Takes the most frequent requests (acks, gets) in bulk. Each has a different subject, so that
    a subscription lookup per message would cost more than the request itself."""

    @property
    def timed_prefixes(self) -> tuple[bytes, ...]:
        """Subject prefixes of requests that may take milliseconds each: see `deliver_timed`."""

    @property
    def family_prefix(self) -> bytes:
        """The one of those prefixes under which all subjects share one lookup."""

    @property
    def compact_prefix(self) -> bytes:
        """Subject prefix of messages that are taken in a compact form: see `deliver_compact`."""

    def compact_spans(self, run: PubRun, /) -> list[tuple[int, int, Any]]:
        """First row, row after the last, and compact form of each span under `compact_prefix`."""

    def deliver_compact(self, sub: Subscription, compact: Any, /) -> None:
        """Take one span of `compact_spans`."""

    def deliver_timed(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
        *,
        deadline: float,
    ) -> tuple[int, list[int]]:
        """Take requests, of any subjects, until `deadline` (perf_counter), but at least one.
        Returns the row it stopped at, and the rows before it that have no responder."""

    def deliver_timed_one(
        self, sub: Subscription, run: PubRun, publisher: PublishingConnection | None
    ) -> bool:
        """Like `deliver_timed`, for a run of one request. False: it has no responder."""
