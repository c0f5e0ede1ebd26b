"""Snapshots of groups: sent to followers that need one, received from a leader and installed.

Owns: when a transfer may start in either direction, and the order in which a received snapshot
replaces machine and log.
May not touch: frames and flow control of the transfers (raft.snapshot), the decision to install
(raft.core).
Spec: Raft section 7. State and log are consistent after a crash at any point of an installation:
write a record of the snapshot (`installing`) beside the log and flush it; replace the machine's
state and flush it; replace the log and flush it. A node that crashed in between finds the record
and, if its state is already the new one, moves its log forward (raft/host/group_table.py)."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from raft.core.messages import Message, MessageKind
from raft.host.group import Arrived, Group, HostLimits, SnapshotUnavailable
from raft.snapshot.frames import FrameKind, read_frame
from raft.snapshot.inbound import Incoming, SnapshotReceiver
from raft.snapshot.outbound import SnapshotSender
from raft.store.log_store import LogStore
from raft.store.records import StoreBusy, StoreFailed
from raft.store.write_batch import LogBatch
from raft.transport.transport import SNAPSHOTS, Transport
from raft.types import GroupId, Index, InvariantViolation, NodeId, Role, SnapshotMeta

_log = logging.getLogger("raft.host")
_BUSY_RETRY_SECONDS: Final = 0.005
_ANSWERS: Final = frozenset({FrameKind.TAKEN, FrameKind.HELD, FrameKind.DONE, FrameKind.REFUSED})


class SnapshotRounds(Protocol):
    """The rounds, as far as snapshots use them."""

    def mark(self, group: Group) -> None: ...

    def supersede(self, group: GroupId) -> None: ...


@dataclass(slots=True, eq=False)
class OutgoingSnapshot:
    """A transfer to a follower."""

    index: Index | None = None  # known when it begins


class SnapshotExchange:
    """Its tasks live in the TaskGroup of the host's run(), between `open` and `close`."""

    def __init__(
        self,
        *,
        node: NodeId,
        store: LogStore,
        transport: Transport,
        groups: Mapping[GroupId, Group],
        limits: HostLimits,
        group_failed: Callable[[Group, Exception], None],
        store_failed: Callable[[BaseException], None],
    ) -> None:
        self.sent = self.installed = 0
        self._node = node
        self._store = store
        self._groups = groups
        self._group_failed = group_failed
        self._store_failed = store_failed
        self._sender = SnapshotSender(transport, bytes_per_second=limits.snapshot_bytes_per_second)
        self._receiver = SnapshotReceiver(transport, directory=store.db.path(), cipher=store.cipher)
        # Per receiver: one that is unreachable must not delay the others.
        self._slots: defaultdict[NodeId, asyncio.Semaphore] = defaultdict(
            partial(asyncio.Semaphore, limits.snapshot_transfers_max)
        )
        self._transfers: dict[tuple[GroupId, NodeId], OutgoingSnapshot] = {}  # the newest of each
        self._tasks: asyncio.TaskGroup | None = None
        self._thread: Executor | None = None
        self._rounds: SnapshotRounds | None = None
        self._running: set[asyncio.Task[None]] = set()
        transport.register(SNAPSHOTS, self._on_frame, borrowed=True)

    @property
    def resumed(self) -> int:
        return self._sender.resumed

    def open(self, rounds: SnapshotRounds, tasks: asyncio.TaskGroup, thread: Executor) -> None:
        """`thread` runs the flushes of whole states: they take long, and flushes of the log must
        not wait for them."""
        self._rounds, self._tasks, self._thread = rounds, tasks, thread

    def close(self) -> None:
        self._tasks = None
        for task in self._running:
            task.cancel()
        self._receiver.drop_all()

    def forget(self, group: Group) -> None:
        """The group was removed from this node. Its outgoing transfers notice that and end."""
        self._receiver.drop(group.id)
        if group.arrived is not None and not group.installing:
            arrived, group.arrived = group.arrived, None
            arrived.refuse()

    def sweep(self) -> None:
        self._receiver.sweep()

    def indices_needed(self, group: Group) -> list[Index]:
        """The indices of snapshots being sent: their receivers will need the log after them."""
        sent = [one for (held, _), one in self._transfers.items() if held == group.id]
        return [one.index for one in sent if one.index is not None]

    # sending

    def start_transfer(self, group: Group, to: NodeId) -> None:
        """A follower needs a snapshot. The result is reported to the core, unless the core asked
        for another one meanwhile, because the follower had lost what it received. Then the first
        transfer ends: two transfers would keep ending each other."""
        self._spawn(self._transfer(group, to), f"snapshot of group {group.id} to {to}")

    async def _transfer(self, group: Group, to: NodeId) -> None:
        core = group.core
        term = core.term
        outgoing = self._transfers[group.id, to] = OutgoingSnapshot()

        def wanted() -> bool:
            newest = self._transfers.get((group.id, to)) is outgoing
            leads = core.term == term and core.role is Role.LEADER
            return newest and leads and group.stopped is None

        ok = False
        try:
            async with self._slots[to]:
                if wanted():
                    ok = await self._send(group, to, outgoing, wanted)
        except SnapshotUnavailable as error:
            _log.warning("cannot send a snapshot of group %d to node %d: %s", group.id, to, error)
        except Exception as error:  # noqa: BLE001 - a machine that cannot show its state
            self._group_failed(group, error)
        finally:
            if wanted():
                core.report_snapshot(to, ok)
                self._mark(group)
            if self._transfers.get((group.id, to)) is outgoing:
                del self._transfers[group.id, to]
        self.sent += ok

    async def _send(
        self, group: Group, to: NodeId, outgoing: OutgoingSnapshot, wanted: Callable[[], bool]
    ) -> bool:
        index, chunks = group.machine.snapshot()
        term = group.core.log.term(index)
        if term is None or index > group.core.applied_index:
            raise InvariantViolation(
                f"the machine's snapshot is at index {index}, applied {group.core.applied_index}"
            )
        outgoing.index = index

        def useful() -> bool:  # not once the log was cut beyond it
            return wanted() and group.log.first_index() <= index + 1

        return await self._sender.send(
            group=group.id,
            to=to,
            term=group.core.term,
            meta=SnapshotMeta(index, term, group.core.members_at(index)),
            chunks=chunks,
            wanted=useful,
        )

    # receiving

    def _on_frame(self, node: NodeId, view: memoryview) -> None:
        frame = read_frame(view)
        if frame.kind in _ANSWERS:
            self._sender.answered(node, frame)
            return
        group = self._groups.get(frame.group)
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
        """All chunks have arrived: the core decides whether to install it, in its next Ready."""
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
        except Exception as error:  # noqa: BLE001 - stops this group
            self._group_failed(group, error)
        if group.stopped is None and group.core.has_ready():
            self._mark(group)
        else:
            self.unused(group)

    def unused(self, group: Group) -> None:
        """The core does not need the snapshot: it has all of it, or has seen a newer term."""
        if group.arrived is not None and not group.installing:
            arrived, group.arrived = group.arrived, None
            arrived.accept()

    def install(self, group: Group, meta: SnapshotMeta) -> None:
        """The core wants the snapshot that has arrived to be installed."""
        arrived = group.arrived
        if arrived is None or arrived.meta != meta or self._tasks is None:
            raise InvariantViolation(f"no snapshot at index {meta.index} has arrived")
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
            self._store_failed(error)
        except Exception as error:  # noqa: BLE001 - stops this group
            self._group_failed(group, error)
        finally:
            group.installing = False
            group.arrived = None
            if ok:
                arrived.accept()
            else:
                arrived.refuse()
        self._mark(group)

    # the disk

    async def _write(self, fill: Callable[[LogBatch], None]) -> None:
        """Write and flush a batch. There is no await between `fill` and the write."""
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
        assert self._rounds is not None
        self._rounds.supersede(group)
        batch.put_snapshot(group, meta)

    def _mark(self, group: Group) -> None:
        assert self._rounds is not None
        self._rounds.mark(group)

    async def _off_loop(self, blocking: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, blocking)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        if self._tasks is None:
            work.close()
            return
        task = self._tasks.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
