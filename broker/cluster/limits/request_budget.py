"""Memory budgets for the API requests of a connection, an account and this node.

Owns: the bytes of requests that are being answered, which requests wait for memory, and when
reading from a connection is paused because too many bytes of its requests wait.
May not touch: what a request does; the caller estimates its size.
A request holds its body, then what is made from it (decoded values, the answer). Beyond the budget
of its account or of the node, a request waits; beyond that of its connection, reading from the
connection is paused. Waiting accounts are served round-robin, so that a tenant with a thousand
requests does not delay another."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from broker.subjects import PublishingConnection

NODE_BYTES = 128 << 20
ACCOUNT_BYTES = 48 << 20
CONNECTION_BYTES = 2 << 20  # of bodies; beyond it, reading from the connection is paused

Waiting = tuple[int, asyncio.Future[None]]


@dataclass(slots=True)
class RequestBudget:
    """One per node."""

    node_bytes: int = NODE_BYTES
    account_bytes: int = ACCOUNT_BYTES
    connection_bytes: int = CONNECTION_BYTES
    held: int = 0
    _of_account: Counter[str] = field(default_factory=Counter)
    _of_connection: Counter[PublishingConnection] = field(default_factory=Counter)
    _paused: set[PublishingConnection] = field(default_factory=set)
    # By account; the account served most recently is last.
    _waiting: dict[str, deque[Waiting]] = field(default_factory=dict)

    # -- bodies ---------------------------------------------------------------------------------

    def received(self, publisher: PublishingConnection | None, size: int) -> None:
        """A request of the connection begins; `answered` must follow."""
        if publisher is None:
            return
        self._of_connection[publisher] += size
        much = self._of_connection[publisher] > self.connection_bytes
        if much and publisher not in self._paused:
            self._paused.add(publisher)
            publisher.pause_reading()

    def answered(self, publisher: PublishingConnection | None, size: int) -> None:
        if publisher is None:
            return
        self._of_connection[publisher] -= size
        left = self._of_connection[publisher]
        if not left:
            del self._of_connection[publisher]
        if left <= self.connection_bytes // 2 and publisher in self._paused:
            self._paused.remove(publisher)
            publisher.resume_reading()

    # -- what is made of them -------------------------------------------------------------------

    @asynccontextmanager
    async def holding(self, account: str, size: int) -> AsyncIterator[None]:
        """Wait until `size` bytes are free in the budgets, and hold them."""
        if account in self._waiting or not self._fits(account, size):
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(account, deque()).append((size, room))
            try:
                await room
            except asyncio.CancelledError:
                if not room.cancelled() and room.done():
                    self._release(account, size)
                else:
                    self._leave(account, (size, room))
                raise
        else:
            self._take(account, size)
        try:
            yield
        finally:
            self._release(account, size)

    def _fits(self, account: str, size: int) -> bool:
        """Whether it fits now. A request that is larger than the whole budget runs alone."""
        own = self._of_account[account]
        return (not own or own + size <= self.account_bytes) and (
            not self.held or self.held + size <= self.node_bytes
        )

    def _take(self, account: str, size: int) -> None:
        self.held += size
        self._of_account[account] += size

    def _release(self, account: str, size: int) -> None:
        self.held -= size
        self._of_account[account] -= size
        if not self._of_account[account]:
            del self._of_account[account]
        self._admit()

    def _leave(self, account: str, waiting: Waiting) -> None:
        queue = self._waiting.get(account)
        if queue is not None and waiting in queue:
            queue.remove(waiting)
            if not queue:
                del self._waiting[account]
        self._admit()

    def _admit(self) -> None:
        """Admit what fits, one request per waiting account in turn."""
        admitted = True
        while admitted:
            admitted = False
            for account, queue in list(self._waiting.items()):
                size, room = queue[0]
                if not self._fits(account, size):
                    continue
                queue.popleft()
                del self._waiting[account]
                if queue:
                    self._waiting[account] = queue
                if not room.cancelled():
                    self._take(account, size)
                    room.set_result(None)
                admitted = True
