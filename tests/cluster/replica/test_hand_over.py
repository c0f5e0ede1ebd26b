"""Leadership before a node stops: it goes to voters only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from broker.cluster.replica.hand_over import HandOver
from raft import NodeId, NotLeader

US, VOTER, LEARNER = NodeId(1), NodeId(2), NodeId(3)


def hand_over(*, voters: tuple[NodeId, ...], transferred: list[NodeId]) -> HandOver:
    status = SimpleNamespace(core=SimpleNamespace(voters=voters))
    host = SimpleNamespace(
        status=lambda _group: status, transfer=lambda _group, to: transferred.append(to)
    )
    parts: dict[str, Any] = {
        "replicas": [],
        "meta_group": SimpleNamespace(is_leader=True, host=host),
        "members": SimpleNamespace(others=[LEARNER, VOTER]),
    }
    return HandOver(**cast(Any, parts), connected=lambda _node: True, yields=lambda _node: False)


def test_the_meta_group_goes_to_a_voter_not_to_a_node_that_has_just_joined() -> None:
    transferred: list[NodeId] = []
    hand_over(voters=(US, VOTER), transferred=transferred).begin()
    assert transferred == [VOTER]


def test_without_a_connected_voter_nothing_is_handed_over_and_nobody_waits() -> None:
    transferred: list[NodeId] = []
    leaving = hand_over(voters=(US,), transferred=transferred)
    leaving.begin()
    assert transferred == []
    assert leaving._done()


def test_a_leadership_that_was_just_lost_keeps_no_other_from_being_handed_over() -> None:
    """The core knows it first; its replica hears of it in the next turn."""
    transferred: list[NodeId] = []

    def deposed(_to: NodeId) -> None:
        raise NotLeader(VOTER)

    lost, led = (
        SimpleNamespace(leading=object(), successors=lambda: [VOTER], transfer=transfer)
        for transfer in (deposed, transferred.append)
    )
    leaving = hand_over(voters=(US,), transferred=[])
    leaving.replicas = cast(Any, [lost, led])
    leaving.begin()
    assert transferred == [VOTER]


def test_without_a_successor_what_consumers_acknowledged_is_proposed() -> None:
    """A single server that is stopped remembers the acks of its last milliseconds."""
    proposed: list[bool] = []
    leading = SimpleNamespace(propose_changes=lambda: proposed.append(True))
    leaving = hand_over(voters=(US,), transferred=[])
    leaving.replicas = cast(Any, [SimpleNamespace(leading=leading, successors=list)])
    leaving.begin()
    assert proposed == [True]
