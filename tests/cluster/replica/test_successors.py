"""Whom a leader hands over to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from broker.cluster.replica.replica import Replica
from raft import NodeId

B, C, D = NodeId(2), NodeId(3), NodeId(4)


def test_the_most_current_voter_that_is_connected_comes_first() -> None:
    """One that is behind may need a snapshot, which a leader with damaged data cannot make."""
    peers = [SimpleNamespace(node=node, match=match) for node, match in ((B, 39), (C, 52), (D, 60))]
    leader = SimpleNamespace(
        group=1,
        other_voters=lambda: [B, C, D],
        _services=SimpleNamespace(connected=lambda node: node != D),
        _host=SimpleNamespace(status=lambda _: SimpleNamespace(core=SimpleNamespace(peers=peers))),
    )
    assert Replica.successors(cast(Any, leader)) == [C, B]
