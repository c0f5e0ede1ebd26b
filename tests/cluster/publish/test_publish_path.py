"""Batches between two nodes, and the table that owns the outboxes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.accounts import Account
from broker.cluster.meta.assignments import Assignment
from broker.cluster.peers.channels import CHANNEL_PUBLISH, CHANNEL_PUBLISH_FAST, CHANNEL_PUBLISHED
from broker.cluster.publish.forwarding import AnswerForwarder, PublishForwarder
from broker.cluster.publish.outbox_table import SESSION_BITS, OutboxTable
from broker.cluster.publish.outbox_turns import OutboxTurns
from broker.cluster.publish.publish_batch import BatchAnswer, PublishBatch
from broker.jetstream.commands.publish_entry import FastOp, FastSpan, encode_marks
from broker.jetstream.config import StreamConfig
from broker.server.routing.router import Router
from broker.subjects import Subscription
from broker.wire import ReplyColumn
from raft import NodeId
from tests.support.cluster_fakes import Client, pub_run, run, turns

HERE, THERE = NodeId(1), NodeId(2)
GROUP = 1001


class Links:
    """The mesh of one node: frames reach the other one at once."""

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.peer: Links | None = None
        self.channels: list[int] = []
        self.on_frame: dict[int, Callable[[NodeId, bytes], None]] = {}

    def register(self, channel: int, on_frame: Callable[[NodeId, bytes], None]) -> None:
        self.on_frame[channel] = on_frame

    def send(self, to: NodeId, channel: int, frame: bytes) -> bool:
        assert self.peer is not None
        assert to == self.peer.node
        self.channels.append(channel)
        self.peer.on_frame[channel](self.node, frame)
        return True


class Leader:
    """A replica that remembers what it was asked to propose."""

    def __init__(self) -> None:
        self.proposed: list[tuple[NodeId, int, int, bytes, bytes]] = []

    def publish(
        self, from_node: NodeId, session: int, number: int, block: bytes, *, marks: bytes = b""
    ) -> None:
        self.proposed.append((from_node, session, number, block, marks))


class PathNode:
    def __init__(self, node: NodeId, leaders: dict[int, NodeId]) -> None:
        self.links = Links(node)
        self.replicas: dict[int, Leader] = {}
        self.answered: list[BatchAnswer] = []
        self.batches = PublishForwarder(
            node, self.links, leader=leaders.get, replica=self.replicas.get
        )
        self.answers = AnswerForwarder(node, self.links, self.answered.append)
        self.batches.start()
        self.answers.start()


def pair(leader: NodeId | None) -> tuple[PathNode, PathNode]:
    leaders = {} if leader is None else {GROUP: leader}
    here, there = PathNode(HERE, leaders), PathNode(THERE, leaders)
    here.links.peer, there.links.peer = there.links, here.links
    return here, there


def batch(*, fast: bool = False) -> PublishBatch:
    spans = [FastSpan(0, 1, FastOp.START, b"id", seq=1)] if fast else []
    return PublishBatch(b"block", ReplyColumn(), [(0, 1, True)], 1, spans)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("leader", [HERE, THERE])
def test_a_batch_reaches_the_leader_on_either_node(leader: NodeId, fast: bool) -> None:
    here, there = pair(leader)
    replica = Leader()
    (here if leader == HERE else there).replicas[GROUP] = replica
    sent = batch(fast=fast)
    here.batches.transmit(GROUP, 99, 5, sent)
    marks = encode_marks(sent.fast) if fast else b""
    assert replica.proposed == [(HERE, 99, 5, b"block", marks)]
    channel = CHANNEL_PUBLISH_FAST if fast else CHANNEL_PUBLISH
    assert here.links.channels == ([] if leader == HERE else [channel])


def test_without_a_leader_or_its_replica_the_batch_is_dropped() -> None:
    here, _ = pair(None)
    here.batches.transmit(GROUP, 99, 5, batch())
    assert here.links.channels == []
    for leader in (HERE, THERE):  # the replica is not open yet, or it has moved away
        here, _ = pair(leader)
        here.batches.transmit(GROUP, 99, 5, batch())
        here.batches.transmit(GROUP, 99, 5, batch(fast=True))


def test_answers_return_to_the_node_of_the_batch() -> None:
    here, there = pair(HERE)
    answer = BatchAnswer(GROUP, 99, 5, 7, [(1, b"{}")])
    here.answers.send(HERE, answer)
    here.answers.send(THERE, answer)
    assert (here.answered, there.answered) == ([answer], [answer])
    assert here.links.channels == [CHANNEL_PUBLISHED]


class DiskIsFine:
    def disk_refuses(self, account: str, stream: str, group: int) -> bool:
        return False

    def stored_as(self, account: str, stream: str, subject: bytes) -> tuple[bytes, bool]:
        return b"%b/%b/%b" % (account.encode(), stream.encode(), subject), False


class TableRig:
    def __init__(self) -> None:
        self.account, self.router = Account("A"), Router()
        self.sent: list[tuple[int, int, int]] = []  # group, session, number
        self.waiting: list[Callable[[], None]] = []  # for another turn of the loop
        self.table = OutboxTable(
            account=lambda _name: self.account,
            router=self.router,
            transmit=lambda group, session, number, _: self.sent.append((group, session, number)),
            admission=DiskIsFine(),
            session=3,
            later=lambda act, _account, _owner: self.waiting.append(act),
            turns=OutboxTurns(),
            domain="hub",
        )
        self.client = Client(self.account)
        inbox = Subscription(self.client, self.account, b"_INBOX.*", b"", b"1")
        self.router.subscribe(self.account, inbox)

    async def publish(self, subject: bytes) -> None:
        self.router.publish_run(self.client, pub_run(subject, b"x", reply=b"_INBOX.1"))
        await turns()


def assignment(*subjects: str, group: int = GROUP, no_ack: bool = False) -> Assignment:
    config = StreamConfig(name=f"S{group}", subjects=list(subjects), no_ack=no_ack)
    return Assignment("A", config, created_ns=0, group=group, peers=[1])


def test_many_subjects_are_captured_in_steps() -> None:
    """50,000 at once held the loop for 0.4 s on every node."""
    rig = TableRig()
    subs = rig.account.subs
    many = [f"m.{i}" for i in range(5000)]
    steps: list[int] = []

    def settle() -> None:
        while rig.waiting:
            before = len(subs)
            rig.waiting.pop(0)()
            steps.append(abs(len(subs) - before))

    rig.table.assigned(assignment("first", *many))
    assert not rig.table.captured(GROUP)
    settle()
    assert rig.table.captured(GROUP)
    held = len(subs)
    assert held == 1 + 1 + len(many)
    # The same subjects again are no work; a subject that stays is captured all the time.
    rig.table.reconfigured(assignment("first", *many))
    assert not rig.waiting
    rig.table.reconfigured(assignment("first", *(f"n.{i}" for i in range(5000))))
    rig.table.reconfigured(assignment("first", "last"))  # before the other is done
    while rig.waiting:
        assert subs.match(b"first")
        assert subs.match(b"last") or not rig.table.captured(GROUP)
        rig.waiting.pop(0)()
    assert len(subs) == 1 + 2
    rig.table.reconfigured(assignment(*many))
    settle()
    rig.table.removed(assignment(*many))
    settle()
    assert len(subs) == 1
    assert max(steps) <= 256


def test_an_assigned_stream_captures_its_subjects_until_it_is_removed() -> None:
    async def test() -> None:
        rig = TableRig()
        table = rig.table
        for _ in range(2):  # assignments are repeated after a restart
            table.assigned(assignment("a.*"))
        await rig.publish(b"a.1")
        assert rig.sent == [(GROUP, 3 << SESSION_BITS, 1)]
        assert not table.all_answered()
        table.answered(BatchAnswer(GROUP, 3 << SESSION_BITS, 1, 9, []))
        assert b'{"stream":"S1001","seq":9,"domain":"hub"}' in rig.client.encoded[0][1]
        assert table.all_answered()
        table.reconfigured(assignment("b.*", no_ack=True))
        await rig.publish(b"a.2")
        await rig.publish(b"b.2")
        assert [number for _, _, number in rig.sent] == [1, 2]
        table.answered(BatchAnswer(GROUP, 3 << SESSION_BITS, 2, 10, []))
        assert len(rig.client.encoded) == 1  # no_ack
        table.removed(assignment("b.*"))
        await rig.publish(b"b.3")
        assert len(rig.sent) == 2
        assert table.account_of(GROUP) is None
        table.answered(BatchAnswer(GROUP, 3 << SESSION_BITS, 3, 11, []))  # late
        table.removed(assignment("b.*"))  # repeated

    run(test())


def test_a_new_leader_and_a_restored_link_resend_only_their_groups() -> None:
    async def test() -> None:
        rig = TableRig()
        for group in (GROUP, GROUP + 1):
            rig.table.assigned(assignment(f"{group}.*", group=group))
            await rig.publish(b"%d.x" % group)
        rig.sent.clear()
        rig.table.resend(GROUP + 1)
        rig.table.resend(GROUP + 2)  # no such stream
        assert [group for group, _, _ in rig.sent] == [GROUP + 1]
        rig.table.link_restored(lambda group: group == GROUP)
        assert [group for group, _, _ in rig.sent] == [GROUP + 1, GROUP]

    run(test())
