"""Admission of scans: how many are open, and how many bytes wait for readers, by account.

Owns: the counts of open scans and of held bytes, and who waits for bytes to be released.
May not touch: blocks, sockets; when a scan may work (the server's fair queue decides that).
Spec: a scan that nobody reads from holds the block it could not send, until the write deadline
closes its connection. Such scans count against the memory of their account only: other accounts go
on. A scan for which there is no memory waits; it is not refused. Within an account it waits for the
others of that account, and of those that wait, accounts take turns."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

MB: Final = 1 << 20
BLOCK_BYTES: Final = 2 * MB  # reserved before a block is read; its true size is known afterwards


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """The comments say what happens when a limit is reached."""

    open_max: int = 1024  # per node; the answer is BUSY, and the reader tries another replica
    open_per_account_max: int = 256  # the same
    held_bytes_max: int = 512 * MB  # of blocks being sent, per node; scans wait
    held_bytes_per_account_max: int = 64 * MB  # the same


@dataclass(slots=True)
class ScanAdmission:
    limits: ScanLimits = ScanLimits()
    open: int = 0
    held_bytes: int = 0
    _open: Counter[str] = field(default_factory=Counter)
    _held: Counter[str] = field(default_factory=Counter)
    # Accounts in the order of their turns; a queue is never empty.
    _waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = field(default_factory=dict)

    def has_room(self, account: str) -> bool:
        limits = self.limits
        return self.open < limits.open_max and self._open[account] < limits.open_per_account_max

    def enter(self, account: str) -> None:
        self.open += 1
        self._open[account] += 1

    def leave(self, account: str) -> None:
        self.open -= 1
        _subtract(self._open, account, 1)

    async def hold(self, account: str, size: int) -> None:
        """Wait until the account may hold that much more. An account that holds nothing gets any
        size, so that no block is too large for ever."""
        if account not in self._waiting and self._fits(account, size):
            self._add(account, size)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(account, deque()).append((size, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(account, size)  # it was granted in the turn of the cancellation
            raise

    def resize(self, account: str, before: int, after: int) -> None:
        """The size of a block is known now."""
        self._add(account, after - before)
        if after < before:
            self._grant()

    def release(self, account: str, size: int) -> None:
        self._add(account, -size)
        self._grant()

    def _fits(self, account: str, size: int) -> bool:
        held = self._held[account]
        if held and held + size > self.limits.held_bytes_per_account_max:
            return False
        return not held or self.held_bytes + size <= self.limits.held_bytes_max

    def _add(self, account: str, size: int) -> None:
        self.held_bytes += size
        self._held[account] += size
        if not self._held[account]:
            del self._held[account]

    def _grant(self) -> None:
        """One scan of each account in turn, as long as there is memory."""
        blocked = 0
        while blocked < len(self._waiting):
            account, queue = next(iter(self._waiting.items()))
            del self._waiting[account]
            while queue and queue[0][1].done():  # cancelled
                queue.popleft()
            if not queue:
                continue
            if self._fits(account, queue[0][0]):
                size, granted = queue.popleft()
                self._add(account, size)
                granted.set_result(None)
                blocked = 0
            else:
                blocked += 1
            if queue:
                self._waiting[account] = queue


def _subtract(counts: Counter[str], account: str, size: int) -> None:
    counts[account] -= size
    if not counts[account]:
        del counts[account]
