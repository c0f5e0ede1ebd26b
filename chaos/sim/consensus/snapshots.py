"""Checkpoints and snapshots of a simulated node: made, streamed to peers, received and installed.

Owns: when the state becomes durable and the log is compacted, the snapshots that have arrived, the
order in which a snapshot replaces state and log.
May not touch: the core's decision to install a snapshot, the rounds.
Spec: raft/host/snapshots.py. First the state with a record of the snapshot, then the log; each is
flushed before the next step. After a crash in between, the log is moved forward to the state."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from chaos.sim.consensus.disk import DiskWrite, MachineState, SimDisk
from chaos.sim.consensus.environment import SimEnvironment
from chaos.sim.consensus.schedule import MS
from raft.core.messages import Message, MessageKind
from raft.core.raft_core import RaftCore
from raft.types import Index, Members, NodeId, SnapshotMeta

STREAM_US = 300 * MS  # the sender learns within this time how its stream ended
INSTALL_US = 50 * MS  # each of the two steps of an installation takes at most this time


class SnapshotNode(Protocol):
    """The node, as far as its snapshots use it."""

    @property
    def id(self) -> NodeId: ...

    @property
    def core(self) -> RaftCore: ...

    @property
    def state(self) -> MachineState: ...

    def after(self, delay_us: int, action: Callable[..., None], *arguments: object) -> None: ...

    def count(self, event: str) -> None: ...

    def mark(self) -> None: ...

    def supersede_log(self) -> None: ...

    def restore(self, state: MachineState) -> None: ...

    def send_snapshot(self, message: Message, state: MachineState, members: Members) -> bool: ...


class SimSnapshots:
    """The snapshots of one node, across its restarts; `drop_received` when it loses its memory."""

    def __init__(
        self, node: SnapshotNode, disk: SimDisk, environment: SimEnvironment, rng: Random
    ) -> None:
        self._node = node
        self._disk = disk
        self._environment = environment
        self._rng = rng
        self._in_memory = environment.faults.memory_only
        self._received: dict[SnapshotMeta, tuple[MachineState, Members]] = {}

    def start(self) -> None:
        """The node has started: make checkpoints from time to time."""
        self._node.after(
            self._rng.randrange(self._environment.faults.checkpoint_us), self._checkpoint
        )

    # -- checkpoints

    def _checkpoint(self) -> None:
        """Make the state machine durable, then compact the log below it."""
        node, rng, faults = self._node, self._rng, self._environment.faults
        node.after(rng.randint(1, faults.checkpoint_us), self._checkpoint)
        if node.state.index > self._disk.live.state.index:
            node.after(rng.randint(1, faults.flush_us), self._checkpoint_done, node.state)

    def _checkpoint_done(self, state: MachineState) -> None:
        self._disk.save_state(state)
        upto = Index(self._disk.durable.state.index - self._environment.faults.keep_entries)
        if upto > self._disk.live.log.snapshot().index:
            self._environment.trace(self._node.id, "compacts its log", f"up to {upto}")
            self._node.count("compactions")
            self._change_log(DiskWrite(compact=upto))

    def _change_log(self, write: DiskWrite) -> None:
        """A change that is not part of a round."""
        if self._in_memory:
            self._disk.change_memory(write)
        else:
            self._disk.write(write)

    # -- sending

    def stream(self, to: NodeId) -> None:
        """Send the present state; report the result to the core after a delay."""
        node, rng, state = self._node, self._rng, self._node.state
        message = Message(
            MessageKind.SNAPSHOT,
            node.id,
            to,
            node.core.term,
            index=state.index,
            log_term=state.term,
        )
        self._environment.trace(node.id, "streams", f"snapshot {state.index} to {to}")
        node.count("snapshots sent")
        ok = node.send_snapshot(message, state, node.core.members_at(state.index))
        delay = rng.randint(1, STREAM_US)
        node.after(delay, self._reported, to, ok and rng.random() < 0.95)

    def _reported(self, to: NodeId, ok: bool) -> None:  # noqa: FBT001 - an event
        self._node.core.report_snapshot(to, ok)
        self._node.mark()

    # -- receiving

    def received(self, meta: SnapshotMeta, state: MachineState, members: Members) -> None:
        self._received[meta] = (state, members)

    def drop_received(self) -> None:
        self._received.clear()

    def install(self, meta: SnapshotMeta) -> None:
        """The core wants a snapshot that has arrived to be installed."""
        state, members = self._received[meta]
        self._received.clear()
        if self._in_memory:  # both in one step: nothing of it survives a crash
            replace_log = DiskWrite(install=state, members=members, replace_log=True)
        else:
            self._disk.write(DiskWrite(install=state, members=members))
            replace_log = DiskWrite(replace_log=True)
        delay = self._rng.randint(1, INSTALL_US)
        self._node.after(delay, self._state_flushed, meta, members, replace_log, self._disk.written)

    def _state_flushed(
        self, meta: SnapshotMeta, members: Members, replace_log: DiskWrite, position: int
    ) -> None:
        self._disk.flush_to(position)
        self._node.supersede_log()
        self._change_log(replace_log)
        delay = self._rng.randint(1, INSTALL_US)
        self._node.after(delay, self._log_flushed, meta, members, self._disk.written)

    def _log_flushed(self, meta: SnapshotMeta, members: Members, position: int) -> None:
        node = self._node
        self._disk.flush_to(position)
        self._environment.trace(node.id, "installs", f"snapshot {meta.index} term {meta.term}")
        node.restore(self._disk.live.state)
        node.count("snapshots installed")
        node.core.snapshot_installed(meta.index, meta.term, members)
        node.mark()
