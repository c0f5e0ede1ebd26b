"""The log beside the thread that frees its segments: whatever is read is what was written.

The moments are up to the machine, so a failure need not repeat; test_freeing has those that were
found, one by one. `python -m tests.raft.store.segments.test_real_threads SECONDS` runs longer."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from raft.store.disk_space import Space
from raft.store.node_log import LogPlace, NodeLog
from raft.store.segments.background_jobs import JobThread
from raft.types import Index
from tests.raft.store.segments.rig import SIZES, Model, Rig, contents

FREED = 300  # segments in one run
STEPS_MAX = 50_000


class ThreadedRig(Rig):
    """Segments are prepared and freed by another thread, at any time."""

    def open(self, trusted_end: int | None = None) -> NodeLog:
        place = LogPlace(
            segments=self.segments,
            promises=self.promises,
            jobs=JobThread,
            draw_salt=lambda: self.rng.getrandbits(64),
            space=lambda _size: Space.AMPLE,
            cipher=self.cipher,
        )
        self.log = NodeLog(place, SIZES, trusted_end=trusted_end)
        return self.log

    def step(self) -> None:
        what = self.rng.random()
        if what < 0.7:
            batch, after = self.shrink() if what < 0.3 else self.batch()
            self.log.write_when_ready(batch)
            self.versions = [after]
        elif what < 0.8:
            self.log.flush()
        self.log.tick()

    @property
    def oldest(self) -> int:
        with self.log._segments.lock:
            return next(iter(self.log._segments.segments))

    def read(self) -> None:
        """A part of one log, and what was written there."""
        group = self.rng.choice(self.numbers)
        held = self.model.get(group)
        if held is None or not held.entries:
            return
        low, high = sorted(self.rng.randrange(len(held.entries) + 1) for _ in range(2))
        if low == high:
            return
        first = held.snapshot[0] + 1
        found = self.log.reader(group).entries(Index(first + low), Index(first + high), 1 << 40)
        assert [(e.index, e.term, e.data) for e in found] == held.entries[low:high]

    def again(self) -> None:
        """Restart, or recover from a failed flush, in the middle of what the thread does."""
        expected: Model = self.model
        trusted_end = self.log.trusted_end if self.rng.random() < 0.5 else None
        self.log.close()
        found, damaged = contents(self.open(trusted_end))
        assert not damaged
        assert found == expected


@contextmanager
def frequent_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run(seed: int) -> None:
    rig = ThreadedRig(seed, removals=0.005)
    freed, when = 0, Random(seed)
    with frequent_turns():
        for _ in range(STEPS_MAX):
            oldest = rig.oldest
            rig.step()
            for _ in range(3):
                rig.read()
            freed += rig.oldest - oldest
            if freed >= FREED:
                break
            if when.random() < 0.01:
                rig.again()
    rig.log.close()
    assert freed >= FREED


def test_entries_are_right_while_a_thread_moves_them_and_frees_their_segments() -> None:
    run(1)  # encrypted
    run(2)


if __name__ == "__main__":
    until, seed = time.monotonic() + float(sys.argv[1]), 0
    while time.monotonic() < until:
        seed += 1
        run(seed)
    sys.stdout.write(f"{seed} seeds, {FREED} segments freed in each: clean\n")
