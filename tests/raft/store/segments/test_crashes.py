"""The log over a simulated disk: power failures, dead processes, faults, a full disk, damage.

Every seed is a schedule of writes, flushes, cuts, background work and one kind of trouble. The log
must be as after one of its writes, and none before the last flush that succeeded.
`python -m tests.raft.store.segments.many_seeds` runs more of them."""

from __future__ import annotations

import errno

import pytest

from raft.types import GroupId
from tests.raft.store.segments.rig import EIO, Rig, contents, explain
from tests.support.fresh_seeds import fresh_seeds

SEEDS = (*range(10), *fresh_seeds("segments", 10))  # every change of the code draws new ones
DAMAGE_SEEDS = (*range(30), *fresh_seeds("damaged segments", 30))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_failure_loses_nothing_that_was_flushed(seed: int) -> None:
    rig = Rig(seed)
    for _ in range(12):
        for _ in range(rig.rng.randrange(1, 60)):
            rig.step()
        rig.segments.lose_power(rig.rng)
        rig.promises.lose_power(rig.rng)
        rig.recovered()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_process_loses_nothing(seed: int) -> None:
    rig = Rig(seed)
    for _ in range(8):
        for _ in range(rig.rng.randrange(1, 60)):
            rig.step()
        rig.segments.die()
        rig.promises.die()
        del rig.versions[:-1]
        rig.recovered()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_failing_call_at_any_point_loses_nothing_that_was_flushed(seed: int) -> None:
    """Also a second failure during recovery. The store is opened again as the host does it."""
    rig = Rig(seed)
    for _ in range(12):
        for files in (rig.segments, rig.promises):
            bad = files.calls + rig.rng.randrange(1, 150)
            files.fault = lambda _operation, _name, f=files, b=bad: EIO if f.calls == b else None
        try:
            for _ in range(rig.rng.randrange(1, 60)):
                rig.step()
        except OSError:
            pass  # the host would stop promising now
        trusted = rig.log.trusted_end if rig.rng.random() < 0.5 else None
        if trusted is None:
            rig.segments.lose_power(rig.rng)
            rig.promises.lose_power(rig.rng)
        else:
            rig.log.close()
        while True:
            try:
                rig.open(trusted)
                break
            except OSError:
                continue
        rig.segments.fault = rig.promises.fault = lambda _operation, _name: None
        found, damaged = contents(rig.log)
        assert not damaged
        assert found in rig.versions, explain(found, rig.versions)
        rig.versions = [found]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_full_disk_refuses_and_loses_nothing(seed: int) -> None:
    rig = Rig(seed)
    for _ in range(8):
        rig.segments.free_bytes = rig.rng.choice((0, 30 << 10, 200 << 10, 1 << 30))
        for _ in range(rig.rng.randrange(1, 60)):
            rig.step()
        rig.segments.free_bytes = max(rig.segments.free_bytes, 64 << 10)  # the reserve at a start
        rig.segments.lose_power(rig.rng)
        rig.promises.lose_power(rig.rng)
        rig.recovered()


def test_cuts_free_a_full_disk() -> None:
    rig = Rig(3)
    rig.jobs._at_once = True
    rig.segments.free_bytes = 300 << 10
    refused = 0
    for _ in range(400):
        before = len(rig.versions)
        rig.write()
        refused += len(rig.versions) == before
        if refused:
            rig.write(shrink=True)
            rig.flush()
            rig.log.tick()
    assert 0 < refused < 300
    assert contents(rig.log)[0] == rig.model


@pytest.mark.parametrize("seed", DAMAGE_SEEDS)
def test_damage_is_found_by_the_groups_that_it_hits(seed: int) -> None:
    """After the death of the process, the promises are exact. A group is whole, or it is damaged;
    it is never older than what it promised."""
    rig = Rig(seed, removals=0)  # damage may bring a removed group back
    for _ in range(rig.rng.randrange(20, 150)):
        rig.step()
    promised = {g: m for g, m in rig.versions[0].items()}
    rig.segments.die()
    rig.promises.die()
    sentence = rig.segments.damage(rig.rng)
    found, damaged = contents(rig.open())
    for group in rig.numbers:
        if group in damaged:
            continue
        allowed = [version.get(group) for version in rig.versions]
        assert found.get(group) in allowed, (sentence, group, explain(found, rig.versions))
    for group in damaged & set(promised):
        before = promised[group].hard_state
        after = rig.log.give_up(group).hard_state()
        assert after.term >= before.term, sentence
        if after.term == before.term and before.vote:
            assert after.vote == before.vote, sentence
        assert after.lives % 2 == 1
    if damaged.issubset(promised):
        rig.log.flush()
        rig.segments.lose_power(rig.rng)
        rig.promises.lose_power(rig.rng)
        again, still = contents(rig.open())
        assert not still & damaged, sentence
        assert all(again[g] == found[g] for g in found), sentence


def test_every_prefix_of_the_last_write_is_a_torn_end() -> None:
    """Byte by byte around the frame's borders, over a recycled file with old records behind it."""
    size = 900
    for kept in (*range(0, 120), *range(120, size + 200, 7)):
        rig = Rig(1, groups=1)
        for _ in range(60):
            rig.write()
            rig.write(shrink=True)
            rig.flush()
            rig.log.tick()
            rig.jobs.run()
        assert any("spare" in name for name in rig.segments.names()) or kept
        active = rig.log._segments.active
        assert active is not None
        inode = rig.segments._names[active.name]
        before = bytes(inode.data)
        rig.write()
        after = bytes(inode.data)
        changed = [i for i in range(len(after)) if after[i] != before[i]]
        if active is not rig.log._segments.active or not changed:
            continue
        cut = min(changed[0] + kept, changed[-1] + 1)
        inode.data[cut:] = before[cut:]
        rig.segments.die()
        rig.promises.die()
        rig.recovered()


def test_old_records_in_a_recycled_segment_do_not_come_back() -> None:
    rig = Rig(5, groups=2)
    names: set[str] = set()
    for _ in range(300):
        rig.write()
        rig.write(shrink=True)
        rig.flush()
        rig.log.tick()
        rig.jobs.run()
        names.update(rig.segments.names())
    assert sum(name.endswith(".spare") for name in names) > 5
    assert len(rig.segments.names()) < 12
    rig.segments.die()
    rig.promises.die()
    rig.recovered()


def test_a_group_that_never_changes_is_carried_forward() -> None:
    rig = Rig(7, groups=3)
    rig.numbers = [GroupId(9)]
    rig.write()
    rig.flush()
    still = rig.model[GroupId(9)]
    rig.numbers = [GroupId(1), GroupId(2)]
    for _ in range(300):
        rig.write()
        batch, after = rig.shrink()
        batch.cuts.pop(GroupId(9), None)
        if GroupId(9) not in batch.snapshots:
            after[GroupId(9)] = still
            rig.log.write(batch, frees=True)
            rig.versions.append(after)
        rig.flush()
        rig.log.tick()
        rig.jobs.run()
    assert rig.log.nbytes < 400 << 10
    rig.segments.lose_power(rig.rng)
    rig.promises.lose_power(rig.rng)
    rig.recovered()
    assert rig.model[GroupId(9)] == still


def test_no_space_at_the_start_is_an_error_of_the_system() -> None:
    rig = Rig(1)
    rig.write()
    rig.flush()
    rig.segments.die()
    rig.segments.free_bytes = 0
    with pytest.raises(OSError, match="No space") as caught:
        rig.open()
    assert caught.value.errno == errno.ENOSPC
    rig.segments.free_bytes = 1 << 20
    rig.recovered()
