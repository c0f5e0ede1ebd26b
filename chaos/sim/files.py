"""A simulated file system under the real log code: crashes, damage, faults, a full disk.

Owns: which parts of the files are on disk and which are only in the page cache.
May not touch: what the files mean. It implements LogFiles (raft/store/segments/files.py), with the
worst behavior that the contract allows.
Spec: a write is readable immediately. A power failure keeps any subset of the sectors that were
written after the last `sync` of their file, and may tear a sector; of the renames after the last
`sync_names` it keeps a prefix, as a journal does. A crash of the process alone keeps everything.
Every random choice comes from the caller's generator."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from raft.store.segments.files import LogFile

SECTOR: Final = 512
LOST_MAX: Final = 8  # of the last 8 writes of a file, one may turn out to be lost
NameChange = tuple[str, str, str]  # what, name, new name


@dataclass(slots=True, eq=False)
class SimInode:
    """The content of a file, whatever its name."""

    data: bytearray = field(default_factory=bytearray)  # what a reader sees
    durable: bytearray = field(default_factory=bytearray)  # what a power failure leaves at least
    pending: list[tuple[int, bytes]] = field(default_factory=list)  # since the last sync
    size_pending: bool = False
    # What the last synced writes have replaced: (offset, old content).
    replaced: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=LOST_MAX))

    def sync(self) -> None:
        if self.size_pending or len(self.durable) != len(self.data):
            del self.durable[len(self.data) :]
            self.durable.extend(bytes(len(self.data) - len(self.durable)))
            self.size_pending = False
        for offset, part in self.pending:
            end = offset + len(part)
            self.replaced.append((offset, bytes(self.durable[offset:end])))
            self.durable[offset:end] = part
        self.pending.clear()

    def lose_power(self, rng: Random, *, kept: float, torn: float) -> None:
        if self.size_pending and (rng.random() < kept or len(self.durable) > len(self.data)):
            size = len(self.data)
            del self.durable[size:]
            self.durable.extend(bytes(size - len(self.durable)))
        for offset, part in self.pending:
            for sector in range(offset // SECTOR, (offset + len(part) - 1) // SECTOR + 1):
                low, high = max(offset, sector * SECTOR), (sector + 1) * SECTOR
                piece = part[low - offset : high - offset]
                if rng.random() < torn:
                    piece = piece[: rng.randrange(len(piece) + 1)]
                elif rng.random() >= kept:
                    continue
                room = len(self.durable) - low
                if room > 0:  # what lies beyond the size of the file is lost with that size
                    self.durable[low : low + min(room, len(piece))] = piece[:room]
        self.data[:] = self.durable
        self.pending.clear()
        self.size_pending = False


class SimLogFile:
    """A LogFile that is open. A crash closes it: later calls raise."""

    def __init__(self, files: SimLogFiles, name: str, inode: SimInode) -> None:
        self._files, self._name, self._inode = files, name, inode
        self._life = files.life

    def _call(self, operation: str) -> None:
        if self._life != self._files.life:
            raise OSError(errno.EBADF, "the file was closed by a crash")
        self._files.call(operation, self._name)

    @property
    def size(self) -> int:
        return len(self._inode.data)

    def write(self, parts: Sequence[bytes | memoryview], offset: int) -> None:
        content = b"".join(parts)
        inode = self._inode
        try:
            self._call("write")
        except OSError:
            if self._life == self._files.life:  # a failed write may be partly done
                content = content[: len(content) // 2]
                self._store(content[: max(0, len(inode.data) - offset)], offset)
            raise
        grows = offset + len(content) - len(inode.data)
        if grows > 0:
            self._files.take(grows)
            inode.data.extend(bytes(grows))
            inode.size_pending = True
        self._store(content, offset)

    def _store(self, content: bytes, offset: int) -> None:
        if content:
            self._inode.data[offset : offset + len(content)] = content
            self._inode.pending.append((offset, content))

    def read(self, size: int, offset: int) -> bytes:
        self._call("read")
        return bytes(self._inode.data[offset : offset + size])

    def read_into(self, memory: memoryview, offset: int) -> int:
        found = self.read(len(memory), offset)
        memory[: len(found)] = found
        return len(found)

    def allocate(self, size: int) -> None:
        self._call("allocate")
        grows = size - len(self._inode.data)
        if grows > 0:
            self._files.take(grows)
            self._inode.data.extend(bytes(grows))
            self._inode.size_pending = True

    def sync(self) -> None:
        self._call("sync")
        self._inode.sync()

    def close(self) -> None:
        """Nothing to do: what was written stays."""


class SimLogFiles:
    """The LogFiles of one simulated directory."""

    def __init__(self, *, free_bytes: int = 1 << 40) -> None:
        self.free_bytes = free_bytes
        self.life = 0  # counts the crashes
        self.calls = 0
        # Called before every operation with its name and the file's; what it returns is raised.
        self.fault: Callable[[str, str], OSError | None] = lambda _operation, _name: None
        self._names: dict[str, SimInode] = {}
        self._durable_names: dict[str, SimInode] = {}
        self._pending: list[tuple[NameChange, SimInode | None]] = []

    def holds(self, text: bytes) -> bool:
        """Whether any file contains the text."""
        inodes = (*self._names.values(), *self._durable_names.values())
        return any(text in inode.data or text in inode.durable for inode in inodes)

    def call(self, operation: str, name: str) -> None:
        self.calls += 1
        error = self.fault(operation, name)
        if error is not None:
            raise error

    def take(self, size: int) -> None:
        if size > self.free_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.free_bytes -= size

    # LogFiles

    def names(self) -> list[str]:
        self.call("names", "")
        return sorted(self._names)

    def open(self, name: str) -> LogFile:
        self.call("open", name)
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        return SimLogFile(self, name, self._names[name])

    def create(self, name: str) -> LogFile:
        self.call("create", name)
        inode = SimInode()
        self._change(("create", name, ""), inode)
        return SimLogFile(self, name, inode)

    def rename(self, name: str, to: str) -> None:
        self.call("rename", name)
        self._change(("rename", name, to), None)

    def remove(self, name: str) -> None:
        self.call("remove", name)
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        self._change(("remove", name, ""), None)

    def sync_names(self) -> None:
        self.call("sync_names", "")
        self._durable_names = dict(self._names)
        self._pending.clear()

    def _change(self, change: NameChange, inode: SimInode | None) -> None:
        self._pending.append((change, inode))
        freed = _apply(self._names, change, inode)
        if freed is not None:
            self.free_bytes += len(freed.data)

    # faults

    def die(self) -> None:
        """The process is killed: nothing is lost, but its open files are closed."""
        self.life += 1

    @property
    def used(self) -> bool:
        return bool(self._names)

    def unsynced(self) -> int:
        """Writes that a power failure may lose."""
        return sum(len(inode.pending) for inode in self._names.values())

    def lose_power(self, rng: Random) -> None:
        """What was not synced is lost, or not, or in part."""
        self.life += 1
        kept = rng.choice((0.0, 0.3, 0.7, 1.0))
        torn = rng.choice((0.0, 0.0, 0.2))
        for change, inode in self._pending[: rng.randrange(len(self._pending) + 1)]:
            _apply(self._durable_names, change, inode)
        self._pending.clear()
        self._names = dict(self._durable_names)
        for inode in self._names.values():
            inode.lose_power(rng, kept=kept, torn=torn)

    def damage(self, rng: Random, kind: str | None = None) -> str:
        """Change, cut or remove what is on disk; or lose or misplace a synced write. Returns a
        description."""
        name = rng.choice(sorted(self._names))
        inode = self._names[name]
        used = len(bytes(inode.data).rstrip(b"\0"))
        at = rng.randrange(max(1, used))
        kind = kind or rng.choice(("bit", "zeros", "cut", "remove", "lost", "misdirected"))
        match kind:
            case "lost":
                if inode.replaced:
                    at, old = rng.choice(inode.replaced)
                    inode.data[at : at + len(old)] = old
            case "misdirected":
                at = at // SECTOR * SECTOR
                source = rng.randrange(max(1, used)) // SECTOR * SECTOR
                moved = inode.data[source : source + min(SECTOR, len(inode.data) - at)]
                inode.data[at : at + len(moved)] = moved
            case "bit":
                if inode.data:
                    inode.data[at] ^= 1 << rng.randrange(8)
            case "zeros":
                end = min(len(inode.data), at + rng.choice((1, SECTOR, 1 << 14)))
                inode.data[at:end] = bytes(end - at)
            case "cut":
                del inode.data[at:]
            case _:
                del self._names[name]
                self._durable_names.pop(name, None)
        inode.durable[:] = inode.data
        inode.pending.clear()
        inode.replaced.clear()
        inode.size_pending = False
        return f"{kind} at {at} of {name}"


def _apply(
    names: dict[str, SimInode], change: NameChange, inode: SimInode | None
) -> SimInode | None:
    """Returns a file that has no name any more."""
    what, name, to = change
    if what == "create":
        assert inode is not None
        freed = names.get(name)
        names[name] = inode
        return freed
    moved = names.pop(name, None)
    if what == "remove" or moved is None:
        return moved
    freed = names.get(to)
    names[to] = moved
    return freed


class SimJobs:
    """Background jobs that run when the test says so, or at once."""

    def __init__(self, *, at_once: bool = False) -> None:
        self._at_once = at_once
        self._jobs: list[Callable[[], None]] = []
        self._running = False

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        if self._at_once:
            self.run()

    def run(self) -> None:
        """All jobs, and those they submit."""
        if self._running:
            return
        self._running = True
        try:
            while self._jobs:
                self._jobs.pop(0)()
        finally:
            self._running = False

    def stop(self) -> None:
        self._jobs.clear()
