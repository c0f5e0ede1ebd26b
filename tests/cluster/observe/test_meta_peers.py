"""Which members of the meta group are shown as current: connected is not enough."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.observe.asset_info import AssetInfo
from raft import Index, NodeId
from raft.core.ready import PeerStatus
from raft.host.group import UnknownGroup

HERE, B, C = NodeId(1), NodeId(2), NodeId(3)


def info(core: Any, *connected: NodeId) -> AssetInfo:
    def status(_group: int) -> Any:
        if core is None:
            raise UnknownGroup("gone")
        return SimpleNamespace(core=core)

    links = SimpleNamespace(node=HERE, connected=lambda node: node in connected)
    unused: Any = None
    return AssetInfo(
        server_name="a",
        domain="",
        system_account="$SYS",
        links=cast(Any, links),
        members=unused,
        leader=unused,
        status=status,
        member_changes=unused,
        origin_infos=unused,
        mirrors=unused,
        now_ns=unused,
    )


def core(
    *peers: PeerStatus, leader: NodeId = HERE, voters: tuple[NodeId, ...] = (HERE, B, C)
) -> Any:
    return SimpleNamespace(
        leader=leader, commit=9, applied=9, voters=voters, outgoing=(), recovering=False,
        peers=peers,
    )  # fmt: skip


def peer(node: NodeId, match: int, *, recovering: bool = False) -> PeerStatus:
    at = Index(match)
    return PeerStatus(node, "replicate", at, at, active=True, inflight=0, recovering=recovering)


@pytest.mark.parametrize(
    ("known", "connected", "expected"),
    [
        (core(peer(B, 9)), (B,), (True, 0)),
        (core(peer(B, 9)), (), (False, 0)),
        (core(peer(B, 4)), (B,), (False, 5)),
        (core(peer(B, 9, recovering=True)), (B,), (False, 0)),  # it may not vote yet
        (core(peer(B, 9), voters=(HERE, C)), (B,), (False, 0)),  # it learns
        (core(), (B,), (False, 0)),
        (core(leader=C), (B,), (True, 0)),  # only the leader knows more
        (None, (B,), (False, 0)),
    ],
)
def test_a_current_member_votes_and_has_everything(
    known: Any, connected: tuple[NodeId, ...], expected: tuple[bool, int]
) -> None:
    assert info(known, *connected).meta_peer(B) == expected


def test_of_itself_a_node_knows_whether_it_is_current() -> None:
    behind = core(leader=C)
    behind.applied = 7
    assert info(core(leader=C)).meta_peer(HERE) == (True, 0)
    assert info(behind).meta_peer(HERE) == (False, 2)
