"""The check of a stream's subjects before it is proposed, and the one that remains at apply."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from broker.cluster.meta.assignments import (
    Assignment,
    AssignmentTable,
    AssignStream,
    MetaResult,
    ReconfigureStream,
    RemoveStream,
    encode_command,
)
from broker.cluster.meta.subject_overlaps import SubjectOverlaps
from broker.jetstream.config import StreamConfig
from broker.jetstream.errors import JetStreamError
from broker.server.routing.fair_queue import FairQueue
from raft import Index
from tests.support.server import run

OVERLAP, TOO_MUCH = 10065, 10023


def stream(name: str, *subjects: str) -> StreamConfig:
    return StreamConfig(name=name, subjects=subjects)


class Rig:
    def __init__(self) -> None:
        self.table = AssignmentTable()
        self.overlaps = SubjectOverlaps(self.table, FairQueue())
        self.overlaps.start()

    def apply(self, command: AssignStream | ReconfigureStream | RemoveStream) -> MetaResult:
        index = Index(self.table.applied + 1)
        return self.table.apply(index, encode_command(command))[1]

    def assign(self, config: StreamConfig, *, checked: int = 0, account: str = "A") -> MetaResult:
        return self.apply(AssignStream(account, config, 1, [7], checked))

    async def refused(self, config: StreamConfig, account: str = "A") -> bool:
        try:
            checked = await self.overlaps.check(account, config, connection=1)
        except JetStreamError as refusal:
            return refusal.err_code == OVERLAP
        assert checked == self.table.applied
        return False


def code(result: MetaResult) -> int:
    return result.err_code if isinstance(result, JetStreamError) else 0


def test_a_check_follows_streams_that_come_change_and_go() -> None:
    async def test() -> None:
        rig = Rig()
        rig.assign(stream("ONE", "a.*", "b"))
        assert await rig.refused(stream("TWO", "a.x"))
        assert await rig.refused(stream("TWO", "c", "*"))
        assert not await rig.refused(stream("TWO", "a.x"), account="B")
        assert not await rig.refused(stream("ONE", "a.>")), "its own subjects"
        rig.assign(stream("TWO", "c"))
        assert await rig.refused(stream("ONE", "a.*", "c"))
        # A subject moves from a stream to another, and both have changed before the next check.
        rig.apply(ReconfigureStream("A", stream("TWO", "d")))
        rig.apply(ReconfigureStream("A", stream("ONE", "c")))
        rig.apply(ReconfigureStream("A", stream("TWO", "d", "e")))
        assert await rig.refused(stream("THREE", "c"))
        assert await rig.refused(stream("THREE", "e"))
        assert not await rig.refused(stream("THREE", "b", "a.x"))
        rig.apply(RemoveStream("A", "ONE"))
        assert not await rig.refused(stream("THREE", "c"))
        rig.table.load_dump(rig.table.dump())
        assert await rig.refused(stream("THREE", "d"))
        rig.table.load_dump(None)
        assert not await rig.refused(stream("THREE", "d"))

    run(test())


def test_the_cost_of_a_check_does_not_grow_with_the_number_of_streams() -> None:
    async def test() -> None:
        rig, work = Rig(), []
        for i in range(2000):
            config = stream(f"S{i}", f"s.{i}", f"t.*.{i}")
            before = rig.overlaps._accounts["A"].index.lookups if i else 0
            checked = await rig.overlaps.check("A", config, connection=1)
            work.append(rig.overlaps._accounts["A"].index.lookups - before)
            assert isinstance(rig.assign(config, checked=checked), Assignment)
        assert max(work[10:]) <= max(work[:10]) <= 10

    run(test())


def test_a_check_that_was_given_up_is_made_good_by_the_next_one() -> None:
    async def test() -> None:
        rig = Rig()
        rig.assign(stream("BIG", *(f"b.{i}" for i in range(20_000))))
        rig.assign(stream("ONE", "a"))
        first = asyncio.ensure_future(rig.refused(stream("TWO", "b.19999")))
        await asyncio.sleep(0)
        assert not first.done(), "it takes several turns"
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        rig.apply(ReconfigureStream("A", stream("BIG", "b.7")))
        assert not await rig.refused(stream("TWO", "b.19999"))
        assert await rig.refused(stream("TWO", "b.*"))
        assert await rig.refused(stream("TWO", "a")), "of a stream that has not changed since"
        assert not await rig.refused(stream("BIG", "b.*"))

    run(test())


def test_apply_compares_with_the_streams_newer_than_the_check() -> None:
    rig = Rig()
    rig.assign(stream("ONE", "a"))
    checked = rig.table.applied
    rig.assign(stream("TWO", "b"))
    assert code(rig.assign(stream("THREE", "*"), checked=checked)) == OVERLAP
    assert code(rig.assign(stream("THREE", "c"), checked=checked)) == 0
    # An update that keeps the subjects does not make them newer; one that changes them does.
    checked = rig.table.applied
    rig.apply(ReconfigureStream("A", replace(stream("TWO", "b"), max_msgs=5)))
    assert rig.table.get("A", "TWO").subjects_since == 2
    rig.apply(ReconfigureStream("A", stream("ONE", "d")))
    assert code(rig.assign(stream("FOUR", "d"), checked=checked)) == OVERLAP
    # A replica that has loaded a snapshot decides the same.
    other = Rig()
    other.table.load_dump(rig.table.dump())
    assert code(other.assign(stream("FOUR", "d"), checked=checked)) == OVERLAP
    assert code(other.assign(stream("FOUR", "e"), checked=checked)) == 0
    # An entry of an older version was not checked before: it is compared with all streams.
    assert code(other.assign(stream("FIVE", "c"))) == OVERLAP


def test_what_would_take_long_to_apply_is_refused_by_all_replicas() -> None:
    """The node that asked checks again: then nothing is newer than its check."""
    rig = Rig()
    rig.assign(stream("ZERO", "x"))
    checked = rig.table.applied
    rig.assign(stream("ONE", *(f"a.{i}" for i in range(10_000))))
    large = stream("TWO", *(f"*.{i}.y" for i in range(10_000)))
    assert code(rig.assign(large, checked=checked)) == TOO_MUCH
    assert code(rig.assign(stream("TWO", "y"), checked=rig.table.applied)) == 0
    assert code(rig.assign(stream("LARGE", *large.subjects), checked=rig.table.applied)) == 0
