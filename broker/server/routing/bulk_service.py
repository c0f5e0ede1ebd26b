"""The interface of a service that takes whole runs of messages, whatever their subjects.

Owns: the Protocol. The router knows one such service; its subjects are named by the service.
May not touch: what the messages mean."""

from __future__ import annotations

from typing import Any, Protocol

from broker.subjects import PublishingConnection, Sink, Subscription
from broker.wire import PubRun


class BulkService(Sink, Protocol):
    """Takes in bulk the requests that clients send most (acks, gets). Each has another subject, and
    one lookup per message would cost more than the work itself."""

    @property
    def timed_prefixes(self) -> tuple[bytes, ...]:
        """Requests of which a single one may take milliseconds: see `deliver_timed`."""

    @property
    def family_prefix(self) -> bytes:
        """The one of those prefixes under which one lookup holds for every subject."""

    @property
    def compact_prefix(self) -> bytes:
        """Messages that are taken in a compact form: see `deliver_compact`."""

    def compact_spans(self, run: PubRun, /) -> list[tuple[int, int, Any]]:
        """First row, row after the last, and compact form of each span under `compact_prefix`."""

    def deliver_compact(self, sub: Subscription, compact: Any, /) -> None:
        """One span."""

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
        """Requests of any subjects, until the clock (perf_counter) shows `deadline`, but at least
        one. Returns the row it stopped at, and the rows before it that have no responder."""

    def deliver_timed_one(
        self, sub: Subscription, run: PubRun, publisher: PublishingConnection | None
    ) -> bool:
        """As `deliver_timed`, for a run of one request. False: it has no responder."""
