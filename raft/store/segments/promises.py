"""The promises file: how far each group of this node has promised, stored apart from the log.

Owns: the file of promises: per group the position of its last flushed record, term, vote, lives
and last index.
May not touch: the log; raft/store/segments/replay.py compares.
Spec: docs/decisions/0019-a-log-of-our-own.md, "Promises". A slot is written after the flush of the
log and before the promises are sent, without a flush of its own: it survives a crash of the
process, and after a power failure it may be as old as the last `sync` (about a second). It is never
ahead of the log, so an old slot may miss a loss, but never reports one that did not happen.

    file  one block of 4096 bytes with a magic; then slots of 64 bytes, each within one sector
    slot  group, position, term, vote, lives, last index: u64 each; crc u32; zeros. Group 0: free"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Iterable
from typing import Final, NamedTuple

from isal.isal_zlib import crc32

from raft.store.segments.files import LogFile, LogFiles
from raft.types import GroupId, HardState, Index, NodeId, Term

_log = logging.getLogger("raft.store")
_NAME: Final = "promises"
_MAGIC: Final = b"jetraft promises 1"
_BLOCK: Final = 4096
_SLOT: Final = struct.Struct("<QQQQQQI12x")
_BODY: Final = _SLOT.size - 16
_CHECK: Final = struct.Struct("<I")
_PER_BLOCK: Final = _BLOCK // _SLOT.size
_GROW_BLOCKS: Final = 16


class KeptPromise(NamedTuple):  # one is made at every flush: cheaper than a frozen dataclass
    position: int
    term: Term
    vote: NodeId
    lives: int
    last: Index

    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, Index(0), self.lives)


class PromiseTable:
    """Built by reading the file. `note` and `sync` may be called on other threads."""

    def __init__(self, files: LogFiles) -> None:
        """Blocking. Raises OSError."""
        self.existed = _NAME in files.names()
        self.damaged = 0  # slots that cannot be read
        self._lock = threading.Lock()
        self._slots: dict[GroupId, int] = {}
        self._free: list[int] = []
        self.unsynced = False
        self.found: dict[GroupId, KeptPromise] = {}  # as read at the start
        self._file: LogFile
        if self.existed:
            self._file = files.open(_NAME)
            self._load()
        else:
            self._create(files)

    def _create(self, files: LogFiles) -> None:
        self._image = bytearray(_BLOCK)
        self._image[: len(_MAGIC)] = _MAGIC
        self._file = files.create(_NAME + ".new")
        self._file.write([bytes(self._image)], 0)
        self._grow()
        self._file.close()
        files.rename(_NAME + ".new", _NAME)
        files.sync_names()
        self._file = files.open(_NAME)

    def _load(self) -> None:
        content = self._file.read(self._file.size, 0)
        whole = max(_BLOCK, len(content) // _BLOCK * _BLOCK)
        self._image = bytearray(content[:whole].ljust(whole, b"\0"))
        if not self._image.startswith(_MAGIC):
            self.damaged += 1
            self._image[: len(_MAGIC)] = _MAGIC
        for slot in range(whole // _SLOT.size - _PER_BLOCK):
            at = _BLOCK + slot * _SLOT.size
            group, position, term, vote, lives, last, check = _SLOT.unpack_from(self._image, at)
            if check != crc32(bytes(self._image[at : at + _BODY])) or not group:
                if any(self._image[at : at + _SLOT.size]):
                    self.damaged += 1
                self._free.append(slot)
                continue
            known = self.found.get(GroupId(group))
            if known is not None:  # a group that was removed and added again
                old = slot if known.position > position else self._slots[GroupId(group)]
                self._erase(old)
                if old == slot:
                    continue
            self._slots[GroupId(group)] = slot
            self.found[GroupId(group)] = KeptPromise(
                position, Term(term), NodeId(vote), lives, Index(last)
            )
        self._free.reverse()
        if self.damaged:
            _log.warning("%d records of the promises file are damaged", self.damaged)

    def _grow(self) -> None:
        """Raises OSError."""
        start = len(self._image)
        self._file.allocate(start + _GROW_BLOCKS * _BLOCK)
        self._file.write([bytes(_GROW_BLOCKS * _BLOCK)], start)
        self._file.sync()
        first = start // _SLOT.size - _PER_BLOCK
        self._image += bytes(_GROW_BLOCKS * _BLOCK)
        self._free.extend(reversed(range(first, first + _GROW_BLOCKS * _PER_BLOCK)))

    def highest_position(self) -> int:
        """A position that the log had reached, and flushed, when the promises were read."""
        return max((promise.position for promise in self.found.values()), default=0)

    def reserve(self, group: GroupId) -> None:
        """Reserve a slot for this group. Raises OSError."""
        if group in self._slots or not group:
            return
        with self._lock:
            if not self._free:
                self._grow()
            self._slots[group] = self._free.pop()

    def reserve_all(self, groups: Iterable[GroupId]) -> None:
        """Like `reserve`, for each of these groups."""
        slots = self._slots
        for group in groups:
            if group not in slots:
                self.reserve(group)

    def note(self, promises: Iterable[tuple[GroupId, KeptPromise]]) -> None:
        """Record promises that are about to be sent. Raises OSError."""
        with self._lock:
            blocks: set[int] = set()
            for group, promise in promises:
                slot = self._slots.get(group)
                if slot is not None:
                    at = _BLOCK + slot * _SLOT.size
                    _SLOT.pack_into(self._image, at, group, *promise, 0)
                    check = crc32(self._image[at : at + _BODY])
                    _CHECK.pack_into(self._image, at + _BODY, check)
                    blocks.add(at // _BLOCK)
            self._write(blocks)

    def clear(self, group: GroupId) -> None:
        """The group was removed. Raises OSError."""
        self.found.pop(group, None)
        with self._lock:
            slot = self._slots.pop(group, None)
            if slot is not None:
                self._erase(slot)

    def _erase(self, slot: int) -> None:
        at = _BLOCK + slot * _SLOT.size
        self._image[at : at + _SLOT.size] = bytes(_SLOT.size)
        self._free.append(slot)
        self._write({at // _BLOCK})

    def _write(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            start = block * _BLOCK
            self._file.write([bytes(self._image[start : start + _BLOCK])], start)
            self.unsynced = True

    def sync(self) -> None:
        """Blocking. Afterwards earlier notes and clears survive a power failure. Raises OSError."""
        if self.unsynced:
            self.unsynced = False
            self._file.sync()

    def close(self) -> None:
        self._file.close()
