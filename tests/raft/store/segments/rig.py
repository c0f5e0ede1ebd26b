"""A NodeLog over simulated files, beside a model of what it must hold."""

from __future__ import annotations

import errno
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

from broker.store.encryption.directory_cipher import DirectoryCipher
from chaos.sim.files import SimJobs, SimLogFiles
from raft.core.messages import Entry
from raft.store.disk_space import Space
from raft.store.node_log import LogPlace, NodeLog
from raft.store.records import DamagedLog
from raft.store.segments.log import SegmentBusy
from raft.store.segments.sizes import SegmentSizes
from raft.store.write_batch import LogBatch
from raft.types import GroupId, HardState, Index, NodeId, SnapshotMeta, Term

SIZES = SegmentSizes(
    first=16 << 10,
    largest=64 << 10,
    log_goal=128 << 10,
    spare_max=128 << 10,
    rest=16 << 10,
)
EIO = OSError(errno.EIO, "Input/output error")


@dataclass(slots=True)
class ModelGroup:
    hard_state: HardState = field(default_factory=HardState)
    snapshot: tuple[int, int] = (0, 0)
    entries: list[tuple[int, int, bytes]] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.snapshot[0] + len(self.entries)


Model = dict[GroupId, ModelGroup]


def contents(log: NodeLog) -> tuple[Model, set[GroupId]]:
    """What the log holds, and which groups are damaged."""
    found: Model = {}
    damaged: set[GroupId] = set()
    for group in log.groups():
        try:
            stored = log.reader(group)
            low, high = stored.first_index(), Index(stored.last_index() + 1)
            entries = stored.entries(low, high, 1 << 40) if low < high else []
        except DamagedLog:
            damaged.add(group)
            continue
        meta = stored.snapshot()
        found[group] = ModelGroup(
            stored.hard_state(),
            (meta.index, meta.term),
            [(e.index, e.term, e.data) for e in entries],
        )
    return found, damaged


class Rig:
    """Writes random batches; `versions[0]` is what was last flushed, the others came after it."""

    def __init__(self, seed: int, *, groups: int = 4, removals: float = 0.02) -> None:
        self.rng = Random(seed)
        self.segments, self.promises = SimLogFiles(), SimLogFiles()
        self.jobs = SimJobs()
        # Every other log is encrypted.
        self.cipher = DirectoryCipher(bytes(32), "chachapoly") if seed % 2 else None
        self.removals = removals
        self.numbers = [GroupId(n) for n in range(1, groups + 1)]
        self.versions: list[Model] = [{}]
        self.log = self.open()

    def open(self, trusted_end: int | None = None) -> NodeLog:
        def new_jobs() -> SimJobs:
            self.jobs = SimJobs(at_once=self.rng.random() < 0.3)
            return self.jobs

        disk = LogPlace(
            segments=self.segments,
            promises=self.promises,
            jobs=new_jobs,
            draw_salt=lambda: self.rng.getrandbits(64),
            space=lambda size: Space.AMPLE if self.segments.free_bytes > size else Space.NONE,
            cipher=self.cipher,
        )
        self.log = NodeLog(disk, SIZES, trusted_end=trusted_end)
        return self.log

    @property
    def model(self) -> Model:
        return self.versions[-1]

    def batch(self) -> tuple[LogBatch, Model]:
        """Something that a node might write, and what it leads to."""
        rng, batch, after = self.rng, LogBatch(), deepcopy(self.model)
        for group in rng.sample(self.numbers, rng.randrange(1, len(self.numbers) + 1)):
            held = after.get(group)
            if held is not None and rng.random() < self.removals:
                batch.remove(group)
                del after[group]
                continue
            held = after.setdefault(group, ModelGroup())
            term = max(held.hard_state.term, held.snapshot[1], 1)
            if rng.random() < 0.1:
                term += 1
            self._put_entries(batch, group, held, term)
            before = held.hard_state
            vote = before.vote if before.term == term and before.vote else NodeId(rng.randrange(3))
            state = HardState(Term(term), vote, Index(min(held.last, held.snapshot[0] + 1)))
            batch.put_hard_state(group, state)
            held.hard_state = state
        return batch, after

    def _put_entries(self, batch: LogBatch, group: GroupId, held: ModelGroup, term: int) -> None:
        rng = self.rng
        first = held.last + 1
        if held.entries and held.entries[-1][1] < term and rng.random() < 0.3:
            first = rng.randrange(held.snapshot[0] + 1, first)  # a new leader replaces the end
        size = rng.choice((0, 10, 300, 300, 2000, 9000))
        new = [
            Entry(Index(first + i), Term(term), rng.randbytes(size))
            for i in range(rng.randrange(5))
        ]
        if new:
            batch.put_entries(group, new)
            del held.entries[first - held.snapshot[0] - 1 :]
            held.entries.extend((e.index, e.term, e.data) for e in new)

    def shrink(self) -> tuple[LogBatch, Model]:
        """Cut logs, or replace one by a snapshot."""
        rng, batch, after = self.rng, LogBatch(), deepcopy(self.model)
        for group, held in after.items():
            if held.entries and rng.random() < 0.8:
                index, term, _ = rng.choice(held.entries)
                batch.cut(group, SnapshotMeta(Index(index), Term(term)))
                held.entries = [e for e in held.entries if e[0] > index]
                held.snapshot = (index, term)
            elif rng.random() < 0.2:
                index = held.last + rng.randrange(3)
                term = held.entries[-1][1] if held.entries else held.snapshot[1]
                batch.put_snapshot(group, SnapshotMeta(Index(index), Term(term)))
                held.entries, held.snapshot = [], (index, term)
        return batch, after

    def write(self, *, shrink: bool = False) -> None:
        batch, after = self.shrink() if shrink else self.batch()
        self.versions.append(after)  # from now on a crash may leave it
        for _ in range(3):
            try:
                self.log.write(batch, frees=shrink)
            except SegmentBusy:
                self.jobs.run()
            else:
                return
        self.versions.pop()  # the disk is full: refused for good

    def flush(self) -> None:
        self.log.flush()
        del self.versions[:-1]

    def step(self) -> None:
        what = self.rng.random()
        if what < 0.5:
            self.write()
        elif what < 0.65:
            self.write(shrink=True)
        elif what < 0.9:
            self.flush()
        else:
            for _ in range(1000 if self.rng.random() < 0.02 else 1):  # a rest
                self.log.tick()
            if self.rng.random() < 0.7:
                self.jobs.run()

    def recovered(self) -> None:
        """After a crash: the log is as it was after some write, none before the last flush."""
        found, damaged = contents(self.open())
        assert not damaged, damaged
        matching = [i for i, version in enumerate(self.versions) if version == found]
        assert matching, explain(found, self.versions)
        self.versions = [found]


def explain(found: Model, versions: list[Model]) -> str:
    def outline(model: Model) -> str:
        return ", ".join(
            f"{g}: {m.snapshot}..{m.last} {m.hard_state}" for g, m in sorted(model.items())
        )

    return "\n".join(["found " + outline(found), *("model " + outline(v) for v in versions)])
