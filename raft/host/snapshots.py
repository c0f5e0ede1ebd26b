"""Snapshots given to followers that need one, and snapshots taken in from a leader.

Owns: when a stream may go out, when one may come in, and the order in which a received snapshot
replaces machine and log.
May not touch: frames of the stream (raft.snapshot), the decision to install (raft.core).
Spec: Raft section 7. Installing, so that a crash at any point leaves state and log that fit:
note the snapshot beside the log and flush; replace the machine's state and flush it; replace the
log and flush. A node that died in between finds the note, and takes its log forward if its state
is already there."""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, Protocol

from raft.core.messages import Message, MessageKind
from raft.host.group import Arrived, Group, HostLimits
from raft.host.rounds import Rounds
from raft.snapshot.frames import FrameKind, read_frame
from raft.snapshot.inbound import Incoming, SnapshotReceiver
from raft.snapshot.outbound import SnapshotSender
from raft.store.group_log import GroupLog
from raft.store.log_store import LogStore
from raft.store.records import StoreBusy, StoreFailed
from raft.store.write_batch import LogBatch
from raft.transport.transport import SNAPSHOTS, Transport
from raft.types import GroupId, Index, InvariantViolation, NodeId, Role, SnapshotMeta, Term

_BUSY_RETRY_SECONDS: Final = 0.005
_ANSWERS: Final = frozenset({FrameKind.TAKEN, FrameKind.HELD, FrameKind.DONE, FrameKind.REFUSED})


class Keeper(Protocol):
    """The host, as far as snapshots need it."""

    def held(self, group: GroupId) -> Group | None: ...

    def group_failed(self, group: Group, error: Exception) -> None: ...

    def store_failed(self, error: BaseException) -> None: ...


class SnapshotExchange:
    """Tasks live in the TaskGroup of the host's run()."""

    def __init__(
        self,
        *,
        node: NodeId,
        store: LogStore,
        transport: Transport,
        rounds: Rounds,
        keeper: Keeper,
        limits: HostLimits,
    ) -> None:
        self.sent = self.installed = 0
        self._node = node
        self._store = store
        self._rounds = rounds
        self._keeper = keeper
        self._sender = SnapshotSender(transport, bytes_per_second=limits.snapshot_bytes_per_second)
        self._receiver = SnapshotReceiver(transport, directory=store.db.path())
        # By receiver: one that is away must not hold up what others wait for.
        self._slots: defaultdict[NodeId, asyncio.Semaphore] = defaultdict(
            partial(asyncio.Semaphore, limits.snapshot_streams_max)
        )
        self._streaming: dict[tuple[GroupId, NodeId], Index] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._thread: Executor | None = None
        self._running: set[asyncio.Task[None]] = set()
        transport.register(SNAPSHOTS, self._on_frame, borrowed=True)

    @property
    def resumed(self) -> int:
        return self._sender.resumed

    def open(self, tasks: asyncio.TaskGroup, thread: Executor) -> None:
        self._tasks, self._thread = tasks, thread

    def close(self) -> None:
        self._tasks = None
        for task in self._running:
            task.cancel()
        self._receiver.drop_all()

    def forget(self, group: Group) -> None:
        """The group is gone from this node. Streams that go out find that out by themselves."""
        self._receiver.drop(group.id)
        if group.arrived is not None and not group.installing:
            arrived, group.arrived = group.arrived, None
            arrived.refuse()

    def sweep(self) -> None:
        self._receiver.sweep()

    def indices_needed(self, group: Group) -> list[Index]:
        """Where streams of this group stand: the log after them will be wanted."""
        return [index for (held, _), index in self._streaming.items() if held == group.id]

    # giving

    def stream(self, group: Group, to: NodeId) -> None:
        """A follower needs a snapshot. The core is told how it went, in any case."""
        self._spawn(self._stream(group, to), f"snapshot of group {group.id} to {to}")

    async def _stream(self, group: Group, to: NodeId) -> None:
        core = group.core
        term = core.term

        def leading() -> bool:
            return group.stopped is None and core.term == term and core.role is Role.LEADER

        ok = False
        try:
            async with self._slots[to]:
                if leading():
                    ok = await self._send(group, to, leading)
        except Exception as error:  # noqa: BLE001 - a machine that cannot show its state
            self._keeper.group_failed(group, error)
        finally:
            self._streaming.pop((group.id, to), None)
            if leading():
                core.report_snapshot(to, ok)
                self._rounds.mark(group)
        self.sent += ok

    async def _send(self, group: Group, to: NodeId, leading: Callable[[], bool]) -> bool:
        index, chunks = group.machine.snapshot()
        term = group.core.log.term(index)
        if term is None or index > group.core.applied_index:
            raise InvariantViolation(f"a snapshot at {index}, applied {group.core.applied_index}")
        self._streaming[group.id, to] = index

        def wanted() -> bool:  # a stale one, which the log does not continue, is of no use
            return leading() and group.log.first_index() <= index + 1

        return await self._sender.send(
            group=group.id,
            to=to,
            term=group.core.term,
            meta=SnapshotMeta(index, term, group.core.members_at(index)),
            chunks=chunks,
            wanted=wanted,
        )

    # taking

    def _on_frame(self, node: NodeId, view: memoryview) -> None:
        frame = read_frame(view)
        if frame.kind in _ANSWERS:
            self._sender.answered(node, frame)
            return
        group = self._keeper.held(frame.group)
        if group is None or group.stopped is not None or self._tasks is None:
            self._receiver.refuse(node, frame)
            return
        if frame.kind is FrameKind.BEGIN and (
            not group.admits(node, frame.term)
            or group.arrived is not None
            or frame.term < group.core.term
        ):
            self._receiver.refuse(node, frame)
            return
        incoming = self._receiver.received(node, frame)
        if incoming is not None:
            self._offer(group, incoming)

    def _offer(self, group: Group, incoming: Incoming) -> None:
        """All chunks are here: the core decides, and its next Ready tells."""
        meta = incoming.meta
        finish = partial(self._receiver.finish, group.id, incoming)
        group.arrived = Arrived(
            meta, incoming.chunks, accept=partial(finish, ok=True), refuse=partial(finish, ok=False)
        )
        message = Message(
            MessageKind.SNAPSHOT,
            incoming.sender,
            self._node,
            incoming.term,
            index=meta.index,
            log_term=meta.term,
        )
        try:
            group.core.step(message)
        except Exception as error:  # noqa: BLE001 - ends this group, loudly
            self._keeper.group_failed(group, error)
        if group.stopped is None and group.core.has_ready():
            self._rounds.mark(group)
        else:
            self.unused(group)

    def unused(self, group: Group) -> None:
        """The core has what the snapshot holds, or a newer term: let it go."""
        if group.arrived is not None and not group.installing:
            arrived, group.arrived = group.arrived, None
            arrived.accept()

    def install(self, group: Group, meta: SnapshotMeta) -> None:
        """The core wants the snapshot that has arrived."""
        arrived = group.arrived
        if arrived is None or arrived.meta != meta or self._tasks is None:
            raise InvariantViolation(f"no snapshot at {meta.index} has arrived")
        group.installing = True
        self._spawn(self._install(group, arrived), f"install snapshot of group {group.id}")

    async def _install(self, group: Group, arrived: Arrived) -> None:
        ok = False
        meta = arrived.meta
        try:
            if group.persistent:
                await self._write(lambda batch: batch.put_installing(group.id, meta))
            restoring = group.machine.restore(meta, arrived.chunks)
            if inspect.isawaitable(restoring):
                await restoring
            if group.persistent:
                await self._off_loop(self._store.flush_state)
                await self._write(lambda batch: self._replace_log(batch, group.id, meta))
            else:
                group.log.reset(meta)
            if group.stopped is None:
                group.core.snapshot_installed(meta.index, meta.term, meta.members)
                ok = True
                self.installed += 1
        except StoreFailed as error:
            self._keeper.store_failed(error)
        except Exception as error:  # noqa: BLE001 - ends this group, loudly
            self._keeper.group_failed(group, error)
        finally:
            group.installing = False
            group.arrived = None
            if ok:
                arrived.accept()
            else:
                arrived.refuse()
        self._rounds.mark(group)

    def complete_after_crash(self, log: GroupLog, applied: Index, term: Term | None) -> None:
        """The state was replaced, the log not yet, or the log has lost its end (`term` is given
        for groups where that may be): take the log forward. Blocking, and rare."""
        meta = log.record.installing
        if term is not None and applied > log.last_index():
            meta = SnapshotMeta(applied, term, log.members_at(log.last_index()))
        if meta.index and applied == meta.index and log.term(meta.index) != meta.term:
            batch = LogBatch()
            batch.put_snapshot(log.group, meta)
            self._store.write(batch, may_wait=True)
            self._store.flush()

    def wipe(self, group: GroupId) -> None:
        batch = LogBatch()
        batch.remove(group)
        self._store.write(batch, may_wait=True)

    # the disk

    async def _write(self, fill: Callable[[LogBatch], None]) -> None:
        """Written and flushed when it returns. `fill` and the write are one step of the loop."""
        while True:
            batch = LogBatch()
            fill(batch)
            try:
                self._store.write(batch)
                break
            except StoreBusy:
                await asyncio.sleep(_BUSY_RETRY_SECONDS)
        await self._off_loop(self._store.flush)

    def _replace_log(self, batch: LogBatch, group: GroupId, meta: SnapshotMeta) -> None:
        self._rounds.supersede(group)
        batch.put_snapshot(group, meta)

    async def _off_loop(self, blocking: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, blocking)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        if self._tasks is None:
            work.close()
            return
        task = self._tasks.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
