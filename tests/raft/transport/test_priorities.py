"""Votes and heartbeats have a link of their own, apart from bulk traffic and snapshots."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raft.core.messages import Message, MessageKind
from raft.host.group import Group
from raft.host.round_loop import send_messages
from raft.snapshot.frames import FrameKind, SnapshotFrame
from raft.transport.transport import RAFT_BULK, RAFT_CONTROL, SNAPSHOTS, Transport
from raft.types import GroupId, NodeId, Term
from tests.support.transport_rig import Cluster, cluster_test, loop_kind, until

__all__ = ["loop_kind"]  # a fixture: every test here runs on both event loops

BULKY = {MessageKind.APPEND, MessageKind.APPEND_REPLY, MessageKind.SNAPSHOT}


class RecordingTransport:
    """Records which channel and link messages were sent on."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bool]] = []

    def send(self, _to: NodeId, channel: int, _payload: Any, *, control: bool = False) -> bool:
        self.sent.append((channel, control))
        return True


@pytest.mark.parametrize("kind", MessageKind)
def test_every_kind_of_message_uses_its_link(kind: MessageKind) -> None:
    transport = RecordingTransport()
    group = cast(Group, SimpleNamespace(id=GroupId(1)))
    messages = [Message(kind, NodeId(1), NodeId(2), Term(1))]
    send_messages(cast(Transport, transport), [(group, messages)])
    assert transport.sent == [(RAFT_BULK, False) if kind in BULKY else (RAFT_CONTROL, True)]


def test_a_heartbeat_overtakes_blocked_bulk_traffic_and_snapshots() -> None:
    """The bulk link is blocked and its queue full; the control link is empty."""

    async def body(c: Cluster) -> None:
        a = await c.start("a")
        b = await c.start("b", a.port)
        await until(c.is_full_mesh)
        beats: list[bytes] = []
        bulk: list[int] = []
        a.register(RAFT_CONTROL, lambda _node, payload: beats.append(payload))
        a.register(RAFT_BULK, lambda _node, payload: bulk.append(len(payload)))
        a.register(SNAPSHOTS, lambda _node, payload: bulk.append(len(payload)))
        incoming = [k for (_, kind), k in a._acceptor.links.items() if kind.value == "bulk"]
        for link in incoming:
            assert link._transport is not None
            link._transport.pause_reading()
        piece = SnapshotFrame(FrameKind.PIECE, GroupId(1), 1, 1, data=bytes(1 << 20)).pieces()
        while b.send(a.node, SNAPSHOTS, piece) and b.send(a.node, RAFT_BULK, bytes(1 << 20)):
            pass
        assert not b.send(a.node, RAFT_BULK, bytes(1 << 20))
        for number in range(20):
            assert b.send(a.node, RAFT_CONTROL, b"%d" % number, control=True)
        await until(lambda: len(beats) == 20)
        assert bulk == []
        assert b.pending_bytes(a.node) > 1 << 20
        for link in incoming:
            assert link._transport is not None
            link._transport.resume_reading()
        await until(lambda: b.pending_bytes(a.node) == 0)

    cluster_test(body)
