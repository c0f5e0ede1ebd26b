"""Backpressure per account: bytes queued for its clients, and publishers paused because of them.

Owns: the bytes of all outbound queues of the account, and the publishers that are paused.
May not touch: the queues (broker/server/client/outbound.py adds and subtracts its own bytes).
One client may have `max_pending` bytes queued. Twenty clients of a tenant that do not read would
have twenty times that, so the account as a whole is bounded too: above `max_pending`, its own
publishers are paused until half of it is sent, and above twice as much, the clients with the
longest queues are closed. A client that does not read is closed at its write deadline, so that no
publisher waits longer than that."""

from __future__ import annotations

from broker.accounts.paused_publishers import PausedPublishers
from broker.subjects import PublishingConnection


class UnsentBytes:
    """One per account."""

    __slots__ = ("_below", "_paused", "bytes", "queues")

    def __init__(self) -> None:
        self.bytes = 0
        self.queues = 0  # that are not empty
        self._paused = PausedPublishers(lambda: self.bytes <= self._below)
        self._below = 0

    def pause(self, publisher: PublishingConnection, *, below: int) -> None:
        """Pause reading from this publisher until fewer than `below` bytes are queued."""
        self._below = below
        self._paused.pause(publisher)

    def removed(self, size: int, *, emptied: bool) -> None:
        """`size` bytes have left a queue."""
        self.bytes -= size
        self.queues -= emptied
        if self._paused:
            self._paused.resume()
