"""Transfers of snapshots to one follower: the newest one counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from raft.host.group import HostLimits
from raft.host.snapshots import SnapshotExchange
from raft.types import GroupId, Index, NodeId, Role, Term

FOLLOWER = NodeId(7)


class Sender:
    """Transfers that end when the test says so, or when they are not wanted any more."""

    def __init__(self) -> None:
        self.begun: list[Callable[[], bool]] = []
        self.received = asyncio.Event()

    async def send(self, *, wanted: Callable[[], bool], **_: object) -> bool:
        self.begun.append(wanted)
        while not self.received.is_set():
            if not wanted():
                return False
            await asyncio.sleep(0)
        return True


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_second_snapshot_ends_the_first_one_which_is_not_reported() -> None:
    reported: list[bool] = []
    core = SimpleNamespace(
        term=Term(3),
        role=Role.LEADER,
        applied_index=Index(5),
        log=SimpleNamespace(term=lambda _: Term(3)),
        members_at=lambda _: None,
        report_snapshot=lambda _, ok: reported.append(ok),
    )
    group = SimpleNamespace(
        id=GroupId(1),
        core=core,
        stopped=None,
        machine=SimpleNamespace(snapshot=lambda: (Index(5), [])),
        log=SimpleNamespace(first_index=lambda: Index(1)),
    )

    async def test() -> None:
        unused = cast(Any, None)
        exchange = SnapshotExchange(
            node=NodeId(1),
            store=cast(Any, SimpleNamespace(db=SimpleNamespace(path=str), cipher=None)),
            transport=cast(Any, SimpleNamespace(register=lambda *_, **__: None)),
            groups={},
            limits=HostLimits(),
            group_failed=unused,
            store_failed=unused,
        )
        sender = Sender()
        exchange._sender = cast(Any, sender)
        async with asyncio.TaskGroup() as tasks:
            rounds = SimpleNamespace(mark=lambda _: None)
            exchange.open(cast(Any, rounds), tasks, unused)
            exchange.start_transfer(cast(Any, group), FOLLOWER)
            await turns()
            assert exchange.indices_needed(cast(Any, group)) == [5]
            exchange.start_transfer(cast(Any, group), FOLLOWER)
            await turns()
            assert [wanted() for wanted in sender.begun] == [False, True]
            assert not reported
            sender.received.set()
        assert reported == [True]
        assert exchange.indices_needed(cast(Any, group)) == []

    asyncio.run(test())
