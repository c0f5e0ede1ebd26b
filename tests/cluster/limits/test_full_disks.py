"""What a node tells about a full disk, and to whom it hands over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from broker.cluster.limits import full_disks
from broker.cluster.limits.full_disks import FullDisks
from broker.jetstream.config import Storage
from raft import NodeId

B, C = NodeId(2), NodeId(3)


@dataclass
class Led:
    storage: Storage = Storage.FILE
    is_leading: bool = True
    name: str = "S"
    moved_to: list[NodeId] = field(default_factory=list)

    def successors(self) -> list[NodeId]:
        return [B, C]

    def transfer(self, to: NodeId) -> None:
        self.moved_to.append(to)


@dataclass
class Told:
    """A peer, as far as it matters here."""

    node: NodeId
    hello: dict[str, Any]


def test_a_full_leader_hands_over_to_a_replica_with_space(monkeypatch: Any) -> None:
    monkeypatch.setattr(full_disks, "CHECK_EVERY_S", 0.001)
    full = True
    told: list[dict[str, Any]] = []
    resent: list[Callable[[int], bool]] = []
    led, memory, followed = Led(), Led(Storage.MEMORY), Led(is_leading=False)
    disks = FullDisks(
        full=lambda: full,
        tell=lambda **facts: told.append(facts),
        resend=resent.append,
        leader=lambda _group: B,
        flush=lambda: None,
        replicas=lambda: [led, memory, followed],
    )

    async def work() -> None:
        nonlocal full
        disks.peer_changed(cast(Any, Told(B, {"disk_full": True})), connected=True)
        disks.peer_changed(cast(Any, Told(C, {"disk_full": "no"})), connected=True)
        task = asyncio.create_task(disks.run())
        while not led.moved_to:
            await asyncio.sleep(0.001)
        full = False
        while not resent:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(work())
    assert set(led.moved_to) == {C}, "the other one is full too"
    assert not memory.moved_to
    assert not followed.moved_to
    assert told == [{"disk_full": True}, {"disk_full": False}]
    disks.peer_changed(cast(Any, Told(B, {"disk_full": False})), connected=True)
    assert not disks.peers
    assert resent[-1](1), "what the full leader dropped is sent again"
