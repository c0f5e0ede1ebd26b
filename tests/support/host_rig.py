"""Hosts over real stores and real sockets on loopback, all in one process, for tests of the
host."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker.local import free_ports
from raft.core.messages import Entry, EntryKind
from raft.host.compaction import CompactionPolicy
from raft.host.host import Host, HostLimits
from raft.store.log_store import LogStore, StoreTuning
from raft.store.segments.format import RECORD_BYTES, number_of, offset_of
from raft.transport.transport import Transport, TransportLimits
from raft.types import GroupId, Index, NodeId, NotLeader, Role, SnapshotMeta, Term, node_id

G = GroupId(1)
NAMES = ("a", "b", "c")
TICK_MS = 10
SMALL = StoreTuning(state_buffer_bytes=4 << 20)
FAST_LINKS = TransportLimits(ping_seconds=0.2, retry_last_seconds=0.1)
EAGER = CompactionPolicy(
    keep_entries=5, keep_bytes=1 << 20, lag_bytes_max=0, step_entries=1, every_ticks=5
)
NO_TAIL = HostLimits(tail_bytes_max=1)  # followers are served from the stored log only


class Ledger:
    """A dict as a state machine: an entry is JSON of [key, value]. Its state lives in column
    "state" as one record, written by `save`."""

    def __init__(self, store: LogStore, group: GroupId = G) -> None:
        self.values: dict[str, Any] = {}
        self.applied = Index(0)
        self.indices: list[int] = []  # applied by this object, to check order and gaps
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
            assert entry.index == self.applied + 1, "a gap or a duplicate"
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
    """Store, transport, host and ledgers of one server; can be killed and started again."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.node = node_id(name)
        self.port = 0
        self.ledgers: dict[GroupId, Ledger] = {}
        self.alive = False

    async def start(
        self,
        *,
        groups: Sequence[GroupId] = (G,),
        tuning: StoreTuning = SMALL,
        recovers: bool = False,
        **options: Any,
    ) -> None:
        self.store = LogStore.open(
            self.cluster.path / self.name, node_name=self.name, cluster_name="t", tuning=tuning
        )
        if recovers:
            options["on_recovered"] = lambda: self.add_groups(groups)
        self.transport = Transport(
            node=self.node,
            name=self.name,
            cluster="t",
            listen_host="127.0.0.1",
            listen_port=self.port or free_ports(1)[0],  # still free after a kill
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
        self.add_groups(groups)
        self.task = asyncio.create_task(self.host.run())
        self.alive = True

    def add_groups(self, groups: Sequence[GroupId]) -> None:
        for group in groups:
            ledger = self.ledgers[group] = Ledger(self.store, group)
            self.host.add_group(
                group, voters=self.cluster.voters, machine=ledger, applied=ledger.applied
            )

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
        """Wait for a leader that all nodes agree on."""

        def agreed() -> bool:
            leaders = {n.host.leader(group) for n in self.alive}
            return len(leaders) == 1 and any(n.leads(group) for n in self.alive)

        await until(agreed)
        return next(n for n in self.alive if n.leads(group))

    async def put(self, key: str, value: Any, group: GroupId = G) -> None:
        """Propose on the leader until the value is applied there."""
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

    async def leave_behind(self, absent: Node, values: Sequence[Any], *, cut: int) -> None:
        """Put the values while the node is down, and let the others cut their logs beyond `cut`, so
        that it needs a snapshot when it starts again."""
        await self.settled()
        await absent.kill()
        for i, value in enumerate(values):
            await self.put(f"k{i}", value)
        for node in self.alive:
            node.ledger.save()
        await until(lambda: all(n.store.reader(G).first_index() > cut for n in self.alive))
        await absent.start()

    async def settled(self, group: GroupId = G) -> None:
        """Wait until all running nodes have applied the same."""

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


class GatedFlush:
    """Blocks the flushes of a store until the gate is opened."""

    def __init__(self, store: LogStore) -> None:
        self.gate = threading.Event()
        self.waiting = threading.Event()
        self._flush = store.flush
        store.flush = self.flush  # type: ignore[method-assign]
        store.begin_flush = lambda _: None  # type: ignore[method-assign]

    def flush(self) -> None:
        self.waiting.set()
        self.gate.wait(10)
        self._flush()


class BrokenDisk:
    """The files of a store's log, of which one operation ("write" or "sync") fails until the disk
    is repaired."""

    def __init__(self, store: LogStore, operation: str, error: OSError) -> None:
        self.probes = 0
        self._store, self._probe = store, store.probe
        self._operation, self._error = operation, error
        log = store.log._segments
        for segment in (*log.segments.values(), *([log.next] if log.next is not None else [])):
            segment.file = BrokenFile(self, segment.file)  # type: ignore[assignment]
        assert log.active is not None
        log._unflushed = [log.active.file]
        store.probe = self.probe  # type: ignore[method-assign]

    def check(self, operation: str) -> None:
        if operation == self._operation:
            raise self._error

    def probe(self) -> None:
        self.probes += 1
        raise self._error

    def works(self) -> None:
        """The operation succeeds again, in the files that are open."""
        self._operation = ""

    def repair(self) -> None:
        """From now on the store can be reopened."""
        self._store.probe = self._probe  # type: ignore[method-assign]


class BrokenFile:
    def __init__(self, disk: BrokenDisk, file: Any) -> None:
        self._disk, self._file = disk, file

    def __getattr__(self, name: str) -> Any:
        self._disk.check(name)
        return getattr(self._file, name)


def flip_bit(store: LogStore, index: int, group: GroupId = G) -> None:
    """Change the last byte of an entry in the file that it is in."""
    log = store.reader(group)
    i = index - log.first_index()
    position, size = log._positions[i], log._sizes[i]
    segment = store.log._segments.segments[number_of(position)]
    offset = offset_of(position) + RECORD_BYTES + size - 1
    (byte,) = segment.file.read(1, offset)
    segment.file.write([bytes([byte ^ 1])], offset)
