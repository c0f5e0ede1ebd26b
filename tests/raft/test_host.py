"""Hosts over real stores and real sockets on loopback, all in one process."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from raft.codec import encode_frames
from raft.compaction import CompactionPolicy, cut_point
from raft.group import GroupBusy, GroupStopped, UnknownGroup
from raft.handshake import LinkClass
from raft.host import Host, HostLimits
from raft.messages import Entry, EntryKind, Message, MessageKind
from raft.ready import CoreConfig
from raft.store import DamagedLog, LogStore, StoreTuning
from raft.transport import RAFT_CONTROL, Transport, TransportLimits
from raft.types import GroupId, Index, NodeId, NotLeader, Role, SnapshotMeta, Term, node_id

G = GroupId(1)
NAMES = ("a", "b", "c")
TICK_MS = 10
SMALL = StoreTuning(log_buffer_bytes=4 << 20, state_buffer_bytes=4 << 20)
FAST_LINKS = TransportLimits(ping_seconds=0.2, retry_last_seconds=0.1)
EAGER = CompactionPolicy(
    keep_entries=5, keep_bytes=1 << 20, lag_bytes_max=0, step_entries=1, every_ticks=5
)
NO_TAIL = HostLimits(tail_bytes_max=1)  # followers are served from the stored log only


class Ledger:
    """A dict as a state machine: an entry is JSON of [key, value]. Its state lives in column
    "state" as one record, written when told to."""

    def __init__(self, store: LogStore, group: GroupId = G) -> None:
        self.values: dict[str, Any] = {}
        self.applied = Index(0)
        self.indices: list[int] = []  # seen by this object, for order and gaps
        self.news: list[tuple[NodeId | None, bool]] = []
        self.restored: list[SnapshotMeta] = []
        self.fail_at: Index | None = None
        self._durable = Index(0)
        self._store = store
        self._key = b"ledger%d" % group
        raw = store.state_column().get(self._key)
        if raw is not None:
            self.applied, self.values = json.loads(raw)
            self._durable = self.applied

    def apply(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.index == self.fail_at:
                raise ValueError("planted")
            assert entry.index == self.applied + 1, "a gap or a repetition"
            self.applied = entry.index
            self.indices.append(entry.index)
            if entry.kind is EntryKind.NORMAL:
                key, value = json.loads(entry.data)
                self.values[key] = value

    def leader_changed(self, *, leader: NodeId | None, term: Term, ours: bool) -> None:
        self.news.append((leader, ours))

    def snapshot(self) -> tuple[Index, Iterable[bytes]]:
        frozen = list(self.values.items())
        return self.applied, (json.dumps(item).encode() for item in frozen)

    def restore(self, meta: SnapshotMeta, chunks: Sequence[bytes]) -> None:
        self.values = dict(json.loads(chunk) for chunk in chunks)
        assert len(self.values) == len(chunks)
        self.applied = meta.index
        self.restored.append(meta)
        self.save()

    def save(self) -> None:
        self._store.state_column().put(self._key, json.dumps([self.applied, self.values]).encode())
        self._durable = self.applied

    def durable_index(self) -> Index:
        return self._durable


class Node:
    """Store, transport, host and ledgers of one server; may be killed and started again."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.node = node_id(name)
        self.port = 0
        self.ledgers: dict[GroupId, Ledger] = {}
        self.alive = False

    async def start(self, *, groups: Sequence[GroupId] = (G,), **options: Any) -> None:
        self.store = LogStore.open(
            self.cluster.path / self.name, node_name=self.name, cluster_name="t", tuning=SMALL
        )
        self.transport = Transport(
            node=self.node,
            name=self.name,
            cluster="t",
            listen_host="127.0.0.1",
            listen_port=self.port,
            routes=[("127.0.0.1", n.port) for n in self.cluster.nodes if n.port and n is not self],
            limits=FAST_LINKS,
        )
        await self.transport.start()
        self.port = self.transport.port
        self.host = Host(
            node=self.node,
            store=self.store,
            transport=self.transport,
            tick_ms=TICK_MS,
            **{"compaction": self.cluster.compaction, **options},
        )
        self.ledgers = {}
        for group in groups:
            ledger = self.ledgers[group] = Ledger(self.store, group)
            self.host.add_group(
                group, voters=self.cluster.voters, machine=ledger, applied=ledger.applied
            )
        self.task = asyncio.create_task(self.host.run())
        self.alive = True

    async def kill(self) -> None:
        if self.alive:
            self.alive = False
            await self.transport.stop()
            await self.host.stop()
            await self.task
            self.store.close()

    @property
    def ledger(self) -> Ledger:
        return self.ledgers[G]

    def leads(self, group: GroupId = G) -> bool:
        return self.alive and self.host.role(group) is Role.LEADER


class Cluster:
    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.path = path
        self.compaction = CompactionPolicy()
        self.voters = [node_id(name) for name in names]
        self.nodes: list[Node] = []
        self.nodes.extend(Node(self, name) for name in names)

    @property
    def alive(self) -> list[Node]:
        return [node for node in self.nodes if node.alive]

    async def leader(self, group: GroupId = G) -> Node:
        """A leader whose followers agree."""

        def agreed() -> bool:
            leaders = {n.host.leader(group) for n in self.alive}
            return len(leaders) == 1 and any(n.leads(group) for n in self.alive)

        await until(agreed)
        return next(n for n in self.alive if n.leads(group))

    async def put(self, key: str, value: Any, group: GroupId = G) -> None:
        """Propose at whoever leads, until it is applied there."""
        data = json.dumps([key, value]).encode()
        while True:
            node = await self.leader(group)
            try:
                _, index = node.host.propose(group, data)
            except NotLeader:
                continue
            ledger = node.ledgers[group]
            await until(lambda: ledger.applied >= index or not node.leads(group))  # noqa: B023
            if ledger.values.get(key) == value:
                return

    async def settled(self, group: GroupId = G) -> None:
        """All that live have applied the same."""

        def same() -> bool:
            ledgers = [n.ledgers[group] for n in self.alive]
            return len({x.applied for x in ledgers}) == 1

        await until(same)
        first, *rest = [n.ledgers[group] for n in self.alive]
        assert all(x.values == first.values for x in rest)


async def until(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.002)


@asynccontextmanager
async def running(path: Path, names: Sequence[str], **options: Any) -> AsyncIterator[Cluster]:
    cluster = Cluster(path, names)
    cluster.compaction = options.pop("compaction", cluster.compaction)
    cluster.voters = options.pop("voters", cluster.voters)
    try:
        for node in cluster.nodes:
            await node.start(**options)
        yield cluster
    finally:
        for node in cluster.nodes:
            await node.kill()


def run(
    path: Path,
    body: Callable[[Cluster], Awaitable[None]],
    *,
    names: Sequence[str] = NAMES,
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    **options: Any,
) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(40), running(path, names, **options) as cluster:
            await body(cluster)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(bounded())


def test_a_single_node_commits_and_remembers(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        (node,) = c.nodes
        for i in range(20):
            await c.put(f"k{i}", i)
        assert node.ledger.news[-1] == (node.node, True)
        before = dict(node.ledger.values)
        await node.kill()
        await node.start()
        await until(lambda: node.ledger.values == before)  # replayed from the log
        await c.put("after", 1)
        assert node.ledger.indices == list(range(1, node.ledger.applied + 1))

    run(tmp_path, body, names=["solo"])


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_three_nodes_apply_the_same_and_survive_the_death_of_each(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def body(c: Cluster) -> None:
        began = time.monotonic()
        first = await c.leader()
        assert time.monotonic() - began < 5
        for i in range(10):
            await c.put(f"k{i}", i)
        await c.settled()
        await first.kill()
        second = await c.leader()
        assert second is not first
        for i in range(10, 20):
            await c.put(f"k{i}", i)
        await first.start()
        await c.settled()  # caught up by log
        assert not first.ledger.restored
        await second.kill()
        await c.put("last", "one")
        await second.start()
        await c.settled()
        assert len(second.ledger.values) == 21

    run(tmp_path, body, new_loop=new_loop)


def test_a_node_that_missed_a_compaction_catches_up_by_snapshot(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        absent = next(n for n in c.nodes if n is not leader)
        await c.put("early", 1)
        await c.settled()
        await absent.kill()
        for i in range(60):
            await c.put(f"k{i}", "x" * 1000)
        for node in c.alive:
            node.ledger.save()
        await until(lambda: all(n.store.reader(G).first_index() > 40 for n in c.alive))
        await absent.start()
        await until(lambda: bool(absent.ledger.restored))
        await c.settled()
        for i in range(5):
            await c.put(f"z{i}", i)  # and the log goes on from there
        await c.settled()
        assert len(absent.ledger.values) == 66
        assert absent.host.statistics().snapshots_installed == 1
        await until(lambda: leader.host.statistics().snapshots_sent == 1)
        await absent.kill()  # what was installed is on disk, state and log
        await absent.start()
        await c.settled()
        assert not absent.ledger.restored

    run(tmp_path, body, compaction=EAGER, limits=NO_TAIL)


def test_a_snapshot_larger_than_its_window_streams_while_the_log_goes_on(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        absent = next(n for n in c.nodes if n is not leader)
        await c.settled()
        await absent.kill()
        for i in range(40):
            await c.put(f"k{i}", "x" * 700_000)
        for node in c.alive:
            node.ledger.save()
        await until(lambda: all(n.store.reader(G).first_index() > 30 for n in c.alive))
        await absent.start()
        for i in range(10):
            await c.put(f"z{i}", i)
        await until(lambda: bool(absent.ledger.restored))
        await c.settled()
        assert len(absent.ledger.values) == 50

    run(tmp_path, body, compaction=EAGER, limits=NO_TAIL)


def test_a_leader_that_dies_while_it_streams_is_replaced(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        absent = next(n for n in c.nodes if n is not leader)
        await c.settled()
        await absent.kill()
        for i in range(30):
            await c.put(f"k{i}", "x" * 700_000)
        for node in c.alive:
            node.ledger.save()
        await until(lambda: all(n.store.reader(G).first_index() > 20 for n in c.alive))
        await absent.start()
        receiver = absent.host._exchange._receiver
        await until(lambda: any(len(s.chunks) > 2 for s in receiver._streams.values()))
        await leader.kill()
        await until(lambda: bool(absent.ledger.restored), seconds=20)
        await c.put("after", 1)
        await c.settled()
        assert len(absent.ledger.values) == 31

    run(tmp_path, body, compaction=EAGER, limits=NO_TAIL)


def test_many_groups_share_rounds_and_flushes(tmp_path: Path) -> None:
    groups = [GroupId(i) for i in range(1, 41)]

    async def body(c: Cluster) -> None:
        for group in groups:
            await c.leader(group)
        before = [n.host.statistics().flushes for n in c.nodes]
        wanted = {}
        for group in groups:
            leader = await c.leader(group)
            wanted[group] = leader.host.propose(group, json.dumps(["k", group]).encode())[1]
        await until(
            lambda: all(
                n.ledgers[g].applied >= index for n in c.nodes for g, index in wanted.items()
            )
        )
        for node, flushes in zip(c.nodes, before, strict=True):
            assert node.host.statistics().flushes - flushes < len(groups)
        assert all(n.ledgers[g].values == {"k": g} for n in c.nodes for g in groups)

    run(tmp_path, body, groups=groups)


def test_leadership_can_be_handed_over(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        await c.put("k", 1)
        other = next(n for n in c.nodes if n is not leader)
        leader.host.transfer(G, other.node)
        await until(other.leads)
        await c.put("k", 2)
        assert leader.ledger.news[-1] == (other.node, False)
        with pytest.raises(NotLeader) as caught:
            leader.host.propose(G, b"[]")
        assert caught.value.leader == other.node

    run(tmp_path, body)


def test_a_failing_machine_stops_its_group_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = GroupId(2)

    async def body(c: Cluster) -> None:
        await c.put("k", 1)
        await c.put("k", 1, other)
        leader = await c.leader()
        leader.ledger.fail_at = Index(leader.ledger.applied + 1)
        leader.host.propose(G, b'["k", 2]')
        await until(lambda: G in leader.host.statistics().stopped)
        assert "planted" in leader.host.statistics().stopped[G]
        assert leader.ledger.news[-1] == (None, False)
        assert leader.host.leader(G) is None
        with pytest.raises(GroupStopped):
            leader.host.propose(G, b'["k", 3]')
        assert leader.host.statistics().healthy
        rest = [n for n in c.nodes if n is not leader]
        await until(lambda: any(n.leads() for n in rest))
        await until(lambda: all(n.ledger.values == {"k": 2} for n in rest))
        await c.put("k", 9, other)
        await c.settled(other)

    with caplog.at_level(logging.CRITICAL):
        run(tmp_path, body, groups=[G, other])
    assert any(r.levelno == logging.CRITICAL and r.exc_info for r in caplog.records)


@pytest.mark.parametrize("operation", ["flush_wal", "write"])
def test_a_failing_disk_stops_every_promise_of_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, operation: str
) -> None:
    async def body(c: Cluster) -> None:
        await c.put("k", 1)
        leader = await c.leader()

        class BrokenDisk:
            def __init__(self, db: Any) -> None:
                self._db = db

            def __getattr__(self, name: str) -> Any:
                if name == operation:
                    raise OSError(28, "No space left on device")
                return getattr(self._db, name)

        real, leader.store.db = leader.store.db, BrokenDisk(leader.store.db)
        applied = leader.ledger.applied
        leader.host.propose(G, b'["k", 2]')
        await until(lambda: bool(failures))
        assert not leader.host.statistics().healthy
        assert "No space left" in str(leader.host.statistics().failure)
        assert leader.ledger.applied == applied
        with pytest.raises(GroupStopped):
            leader.host.propose(G, b'["k", 3]')
        rest = [n for n in c.nodes if n is not leader]
        await until(lambda: any(n.leads() for n in rest))
        leader.store.db = real

    failures: list[BaseException] = []
    with caplog.at_level(logging.CRITICAL):
        run(tmp_path, body, on_failure=failures.append)
    assert "disk has failed" in caplog.text


def test_a_refused_write_is_tried_again(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        await c.put("k", 1)
        (node,) = c.nodes
        refusals = 5

        class StallingDisk:
            def __init__(self, db: Any) -> None:
                self._db = db

            def write(self, *arguments: Any) -> None:
                nonlocal refusals
                if refusals:
                    refusals -= 1
                    raise Exception("Result incomplete: Write stall")  # noqa: TRY002
                self._db.write(*arguments)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._db, name)

        real, node.store.db = node.store.db, StallingDisk(node.store.db)
        for i in range(3):
            await c.put(f"k{i}", i)
        assert node.host.statistics().refused_writes == 5
        node.store.db = real

    run(tmp_path, body, names=["solo"])


class GatedFlush:
    """Holds flushes of a store back until it is opened."""

    def __init__(self, store: LogStore) -> None:
        self.gate = threading.Event()
        self.waiting = threading.Event()
        self._flush = store.flush
        store.flush = self.flush  # type: ignore[method-assign]

    def flush(self) -> None:
        self.waiting.set()
        self.gate.wait(10)
        self._flush()


def test_nothing_is_applied_before_a_majority_has_flushed(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        await c.put("k", 1)
        leader = await c.leader()
        await c.settled()
        followers = [n for n in c.nodes if n is not leader]
        gates = [GatedFlush(n.store) for n in followers]
        _, index = leader.host.propose(G, b'["k", 2]')
        await until(lambda: all(gate.waiting.is_set() for gate in gates))
        await until(lambda: leader.host.status(G).core.persisted_index == index)
        # Heartbeats go on meanwhile: nobody loses patience, and nobody applies.
        beats = leader.transport.statistics().sent_frames + 20
        await until(lambda: leader.transport.statistics().sent_frames > beats)
        assert leader.host.status(G).core.commit < index
        assert all(n.ledger.values == {"k": 1} for n in c.nodes)
        gates[0].gate.set()  # with the leader that is a majority
        await until(lambda: leader.ledger.values == {"k": 2})
        gates[1].gate.set()
        await c.settled()

    run(tmp_path, body)


def test_a_leader_counts_itself_only_after_its_own_flush(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        await c.put("k", 1)
        (node,) = c.nodes
        gate = GatedFlush(node.store)
        node.host.propose(G, b'["k", 2]')
        await until(gate.waiting.is_set)
        rounds = node.host.statistics().rounds
        node.host.propose(G, b'["k", 3]')  # gathers for the next flush
        await until(lambda: node.host.statistics().rounds > rounds)
        assert node.ledger.values == {"k": 1}
        gate.gate.set()
        await until(lambda: node.ledger.values == {"k": 3})

    run(tmp_path, body, names=["solo"])


def test_a_message_in_anothers_name_ends_the_connection(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        await c.put("k", 1)
        liar, victim = (n for n in c.nodes if n is not leader)
        term = Term(leader.host.status(G).core.term + 5)
        forged = Message(MessageKind.HEARTBEAT, leader.node, victim.node, term)
        links = victim.transport._acceptor.links
        link = links[liar.node, LinkClass.CONTROL]
        for frame in encode_frames([(G, forged)]):
            assert liar.transport.send(victim.node, RAFT_CONTROL, frame, control=True)
        await until(lambda: links.get((liar.node, LinkClass.CONTROL), link) is not link)
        await until(lambda: liar.transport.connected(victim.node))
        assert victim.host.status(G).core.term < term
        await c.put("k", 2)
        await c.settled()

    run(tmp_path, body)


def test_proposals_are_bounded(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        (node,) = c.nodes
        await c.leader()
        data = json.dumps(["k", "x" * 1000]).encode()
        for _ in range(9):
            node.host.propose(G, data)
        with pytest.raises(GroupBusy):
            node.host.propose(G, data)
        await until(lambda: node.host.status(G).waiting_bytes == 0)
        await c.put("k", 1)
        with pytest.raises(UnknownGroup):
            node.host.propose(GroupId(99), b"")

    run(tmp_path, body, names=["solo"], limits=HostLimits(waiting_bytes_max=10_000))


def test_a_late_tick_counts_as_one_and_causes_no_election(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        await c.put("k", 1)
        term = leader.host.status(G).core.term
        time.sleep(1.0)  # the whole process stalls, for many election timeouts
        await until(lambda: all(n.host.statistics().loop_lag_seconds_max > 0.5 for n in c.nodes))
        assert all(n.host.statistics().late_ticks > 0 for n in c.nodes)
        await c.put("k", 2)
        assert leader.leads()
        assert leader.host.status(G).core.term == term

    run(tmp_path, body, config=CoreConfig(election_ticks=20))


def test_a_group_without_a_log_on_disk(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        memory = GroupId(5)
        for node in c.nodes:
            node.ledgers[memory] = Ledger(node.store, memory)
            node.host.add_group(
                memory,
                voters=c.voters,
                machine=node.ledgers[memory],
                applied=Index(0),
                persistent=False,
            )
        for i in range(10):
            await c.put(f"k{i}", i, memory)
        await c.settled(memory)
        assert c.nodes[0].store.reader(memory).last_index() == 0, "promises are stored, no entry"

    run(tmp_path, body)


def test_groups_come_and_go(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        (node,) = c.nodes
        await c.put("k", 1)
        assert node.host.groups() == [G]
        node.host.remove_group(G, wipe=True)
        assert node.host.groups() == []
        assert node.store.groups() == []
        with pytest.raises(UnknownGroup):
            node.host.leader(G)
        fresh = node.ledgers[G] = Ledger(node.store)
        node.host.add_group(G, voters=c.voters, machine=fresh, applied=Index(0))
        await c.put("k", 2)
        assert fresh.indices[0] == 1

    run(tmp_path, body, names=["solo"])


def test_a_machine_ahead_of_its_log_is_damage_unless_an_installation_was_noted(
    tmp_path: Path,
) -> None:
    async def body(c: Cluster) -> None:
        (node,) = c.nodes
        await c.put("k", 1)
        host, store = node.host, node.store
        host.remove_group(G, wipe=False)
        ledger = Ledger(store)
        ledger.applied = Index(50)
        with pytest.raises(DamagedLog):
            host.add_group(G, voters=c.voters, machine=ledger, applied=Index(50))
        batch = store.begin()
        store.put_installing(batch, G, SnapshotMeta(Index(50), Term(7)))
        store.write(batch)
        host.add_group(G, voters=c.voters, machine=ledger, applied=Index(50))
        assert store.reader(G).snapshot() == SnapshotMeta(Index(50), Term(7))
        node.ledgers[G] = ledger
        await c.put("k", 2)
        assert ledger.indices[0] == 51

    run(tmp_path, body, names=["solo"])


def test_a_cut_keeps_what_followers_and_streams_will_read() -> None:
    policy = CompactionPolicy(
        keep_entries=100, keep_bytes=1000, lag_bytes_max=4000, step_entries=10, step_bytes=10**9
    )

    def cut(durable: int, *needed: int, average: int = 1, first: int = 1) -> Index | None:
        return cut_point(
            policy,
            first=Index(first),
            last=Index(1000),
            durable=Index(durable),
            average_bytes=average,
            needed=[Index(n) for n in needed],
        )

    assert cut(900) == 800
    assert cut(900, average=100) == 890  # fewer fit into keep_bytes
    assert cut(100) is None
    assert cut(115) == 15
    assert cut(109) is None  # not worth a cut
    assert cut(900, 300, 950) == 300
    assert cut(900, 0) is None
    assert cut(900, 100, average=10) == 800  # too far behind: it will get a snapshot
