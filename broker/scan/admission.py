"""Admission of scans: how many are open, how many bytes wait for readers, and their memory.

Owns: the counts of open scans and of held bytes by account, which scans wait for memory, and the
memory into which blocks are read.
May not touch: blocks, sockets; when a scan may work (the server's fair queue decides that).
Spec: a scan whose client does not read holds the block it could not send, until the write deadline
closes its connection. Such scans count against the memory of their account only: other accounts are
not affected. A scan for which there is no memory waits; it is not refused. Waiting scans are FIFO
within an account, and round-robin between accounts.
Memory is reused: the kernel does not have to clear it each time, and it is in the CPU cache. A
block of a megabyte that was read into new memory took three times as long
(docs/decisions/0048-reads-of-scans.md)."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from broker.scan.protocol import FRAME

MB: Final = 1 << 20
KEPT_PIECES_MAX: Final = 8  # pieces of memory kept for reuse; others are released to the system
KEPT_BYTES_MAX: Final = 2 * MB  # largest piece that is kept
ROUNDED_BYTES: Final = 256 << 10
BLOCK_BYTES: Final = 2 * MB  # reserved before a block is read; its true size is known afterwards


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """The comments state what happens when a limit is reached."""

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
        """Wait until the account may hold `size` more bytes. An account that holds nothing gets any
        size, so that no block is too large forever."""
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
        """Correct the reserved size: that of the block is known now."""
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
        """Admit one scan of each account in turn, while there is memory."""
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


@dataclass(slots=True)
class BlockMemory:
    """The free pieces of one node."""

    _free: list[bytearray] = field(default_factory=list)

    def borrow(self) -> BorrowedMemory:
        return BorrowedMemory(self)

    def take(self, size: int) -> bytearray:
        for position, piece in enumerate(self._free):
            if len(piece) >= size:
                return self._free.pop(position)
        return bytearray(-(-size // ROUNDED_BYTES) * ROUNDED_BYTES)

    def give_back(self, piece: bytearray) -> None:
        if len(self._free) >= KEPT_PIECES_MAX or len(piece) > KEPT_BYTES_MAX or _in_use(piece):
            return
        self._free.append(piece)


@dataclass(slots=True)
class BorrowedMemory:
    """Memory for one block at a time, after space for the header of its frame, so that both are
    sent in one write. `give_back` returns it for reuse, unless the socket still refers to it."""

    owner: BlockMemory
    _piece: bytearray | None = None
    _size: int = 0

    def of_size(self, size: int) -> memoryview:
        """For the bytes of a block."""
        piece = self._piece
        if piece is None or len(piece) < FRAME.size + size or _in_use(piece):
            self.give_back()
            piece = self._piece = self.owner.take(FRAME.size + size)
        self._size = size
        return memoryview(piece)[FRAME.size : FRAME.size + size]

    def framed(self, header: bytes, block: bytes | memoryview) -> memoryview | None:
        """The frame of a block, if it is all of this memory, without a copy."""
        piece = self._piece
        if piece is None or not isinstance(block, memoryview) or block.obj is not piece:
            return None
        if len(block) != self._size:
            return None
        piece[: FRAME.size] = header
        return memoryview(piece)[: FRAME.size + self._size].toreadonly()

    def give_back(self) -> None:
        piece, self._piece = self._piece, None
        if piece is not None:
            self.owner.give_back(piece)


def _in_use(piece: bytearray) -> bool:
    """Whether something still refers to its bytes: then a bytearray cannot be resized."""
    try:
        piece.append(0)
    except BufferError:
        return True
    piece.pop()
    return False
