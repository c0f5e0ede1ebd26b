"""A stream's replicas follow its assignment: nodes join its group and leave it.

Owns: which replicas this node opens and lets go; for those it leads, taking the steps that bring
the members of the group to those the meta group asks for.
May not touch: how members change (raft.confchange), who is asked for (stream_api.py), which step
is next (moving.py).
Spec: docs/decisions/0010-reconfiguration-of-replicas.md."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from broker.cluster.meta.assignments import META_GROUP, Assignment, RecordMembers, RenewStream
from broker.cluster.meta.meta_group import eventually
from broker.cluster.peers.rpc import CallFailed, CallRefused
from broker.cluster.replica.reconfiguration import Change, HandOver, Record, Step, Wait, next_step
from broker.cluster.replica.replica import Replica
from broker.jetstream.config import Storage
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.store.state_keys import wipe
from raft import GroupId, NodeId, RaftError

if TYPE_CHECKING:
    from broker.cluster.node import JetStreamNode

logger = logging.getLogger("jetraft.cluster")

STEP_EVERY_S: Final = 0.05
STEP_EVERY_MAX_S: Final = 0.5  # when nothing changes
BARRIER_WITHIN_S: Final = 5.0


@dataclass(slots=True)
class Membership:
    node: JetStreamNode
    _at_work: set[int] = field(default_factory=set)
    _rejoining: set[int] = field(default_factory=set)
    _sweeping: bool = False
    _sweep_again: bool = False

    def start(self) -> None:
        self.node.mesh.rpc.register("meta barrier", self._serve_barrier)
        self.node.on_replica_leads.append(self._leads)

    def hold(self, assignment: Assignment) -> None:
        """Keep a replica if the assignment says so. One that it does not name any more is let go
        when it is certain (sweep)."""
        node, group = self.node, GroupId(assignment.group)
        replica = node.replicas.get(group)
        if node.node in assignment.holders:
            if replica is not None and replica.waits_in_vain(assignment):
                self._close(replica)
                replica = None
            if replica is None and self._was_here(assignment):
                self._rejoin_soon(assignment)
            elif replica is None:
                in_memory = assignment.config.storage is Storage.MEMORY
                voters = assignment.members if in_memory else assignment.founders
                replica = self._open(assignment, voters)
        elif replica is not None:
            self.sweep()
        if replica is not None:
            replica.assignment = assignment
            self.look_at(replica)

    def _open(self, assignment: Assignment, voters: list[int]) -> Replica:
        replica = Replica.open(self.node, assignment, [NodeId(voter) for voter in voters])
        self.node.replicas[assignment.group] = replica
        return replica

    def _close(self, replica: Replica) -> None:
        del self.node.replicas[replica.group]
        replica.leave()
        self.node.host.remove_group(replica.group, wipe=False)

    # -- the leader of a stream -----------------------------------------------------------------

    def _leads(self, replica: Replica, leads: bool) -> None:  # noqa: FBT001
        if leads:
            self.look_at(replica)

    def look_at(self, replica: Replica) -> None:
        """This node leads it, or it is assigned anew."""
        if replica.leading is None or replica.group in self._at_work:
            return
        if self.next_step(replica) is not None:
            self._at_work.add(replica.group)
            self.node.spawn(self._move(replica), f"members of {replica.name}")

    def next_step(self, replica: Replica) -> Step | None:
        meta = self.node.meta_group
        return next_step(
            self.node.host.status(replica.group).core,
            replica.assignment,
            connected=self.node.mesh.connected,
            recorded=meta.durable_index() >= meta.meta.applied,
        )

    async def _move(self, replica: Replica) -> None:
        """Step by step, for as long as we lead. Nothing is awaited between the last look and
        the end, so no other assignment can come unseen."""
        last: Step | None = None
        pause_s = STEP_EVERY_S
        try:
            while replica.leading is not None and (step := self.next_step(replica)) is not None:
                pause_s = STEP_EVERY_S if step != last else min(2 * pause_s, STEP_EVERY_MAX_S)
                if step != last:
                    logger.info("stream %s: %s", replica.name, self.describe(step))
                last = step
                await self._take(replica, step)
                await asyncio.sleep(pause_s)
        finally:
            self._at_work.discard(replica.group)

    def describe(self, step: Step) -> str:
        match step:
            case Wait():
                return step.why
            case HandOver():
                return f"handing leadership over to {self._names((step.to,))}"
            case Record():
                return "reporting membership to meta leader"
            case Change() if step.learners:
                return f"adding peers {self._names(step.learners)} to catch up"
            case Change():
                return f"changing peers to {self._names(step.voters)}"

    def _names(self, nodes: tuple[NodeId, ...]) -> str:
        return ", ".join(sorted(self.node.member_name(node) for node in nodes))

    async def _take(self, replica: Replica, step: Step) -> None:
        host, known = self.node.host, replica.assignment
        try:
            match step:
                case Change():
                    host.change_members(replica.group, voters=step.voters, learners=step.learners)
                case HandOver():
                    host.transfer(replica.group, step.to)
                case Record():
                    members = [int(member) for member in step.members]
                    await self.node.meta_calls.change(
                        RecordMembers(known.account, known.name, known.group, known.peers, members)
                    )
        except (RaftError, JetStreamError) as refused:
            logger.debug("stream %s: %s: %s", replica.name, step, refused)  # looked at again

    # -- a node that comes back without its log -------------------------------------------------

    def _was_here(self, assignment: Assignment) -> bool:
        """Whether this node was a member and has lost its log since: by leaving, or with the
        process. What it takes for the members must not be old then. It could find that all of
        them have lost everything, or that it is alone, and begin a second history."""
        group, store = GroupId(assignment.group), self.node.store
        if not store.exists(group):
            return False
        if assignment.config.storage is Storage.MEMORY:
            return assignment.asked_ns > 0
        log = store.reader(group)
        return log.hard_state().lives % 2 == 1 and log.members_at(log.last_index()) is None

    def _rejoin_soon(self, assignment: Assignment) -> None:
        if assignment.group not in self._rejoining:
            self._rejoining.add(assignment.group)
            self.node.spawn(self._rejoin(assignment), f"way back to {assignment.name}")

    async def _rejoin(self, asked: Assignment) -> None:
        node = self.node
        try:
            while True:
                try:
                    await self._meta_barrier()
                    now = node.meta.get(asked.account, asked.name)
                    if now is None or now.group != asked.group or now.group in node.replicas:
                        return
                    if node.node not in now.holders:
                        return
                    if now.members != [node.node]:
                        break
                    await self._renew(now)
                except (CallFailed, RaftError, TimeoutError, JetStreamError) as error:
                    logger.debug("way back to %s: %s", asked.name, error)  # tried again
                await asyncio.sleep(STEP_EVERY_S)
        finally:
            self._rejoining.discard(asked.group)
        self._open_again(now)

    def _open_again(self, assignment: Assignment) -> None:
        voters = assignment.members
        if assignment.config.storage is not Storage.MEMORY:
            # Not a voter before its log says so, not even by its own account.
            voters = [voter for voter in voters if voter != self.node.node]
            if self._log_given_up(GroupId(assignment.group)):
                self.wipe_state(GroupId(assignment.group))  # it may have died before that
        self.look_at(self._open(assignment, voters))

    async def _renew(self, lost: Assignment) -> None:
        """The only member was restarted and has nothing, while others may hold parts of it."""
        if lost.config.storage is not Storage.MEMORY:
            # Its own log would say so: not to be touched.
            raise JetStreamError(ErrCode.CLUSTER_NOT_AVAIL)
        command = RenewStream(lost.account, lost.name, lost.group, lost.members)
        await self.node.meta_calls.change(command)

    # -- a node that holds what it is not assigned ----------------------------------------------

    def sweep(self) -> None:
        """Let go of every replica that is no longer assigned to this node."""
        self._sweep_again = True
        if not self._sweeping:
            self._sweeping = True
            self.node.spawn(self._sweep(), "replicas that left")

    async def _sweep(self) -> None:
        """What this node knows of the assignments may be old, above all after a restart: it may
        have joined the group again since. So it asks the meta leader first."""
        try:
            while self._sweep_again:
                try:
                    await self._meta_barrier()
                except (CallFailed, RaftError, TimeoutError, JetStreamError):
                    await asyncio.sleep(STEP_EVERY_S)
                    continue
                meta = self.node.meta_group
                if meta.durable_index() < meta.meta.applied:
                    await asyncio.sleep(STEP_EVERY_S)
                    continue  # a restart has to know that we left
                self._sweep_again = False
                for assignment in self.node.meta:
                    if self.node.node in assignment.holders:
                        continue
                    if self._installing(GroupId(assignment.group)):
                        self._sweep_again = True
                    else:
                        self._let_go(assignment)
                if self._sweep_again:
                    await asyncio.sleep(STEP_EVERY_S)
        finally:
            self._sweeping = False

    async def _meta_barrier(self) -> None:
        """Until this node has applied all that the meta group has committed by now."""
        node = self.node
        leader = await node.wait_leader(META_GROUP)
        answer = await node.mesh.rpc.call(leader, "meta barrier", b"", timeout_s=BARRIER_WITHIN_S)
        index = int.from_bytes(answer, "little")
        if not await eventually(lambda: node.meta.applied >= index, timeout_s=BARRIER_WITHIN_S):
            raise TimeoutError

    async def _serve_barrier(self, _peer: NodeId, _body: bytes) -> bytes:
        try:
            index = await self.node.host.read_barrier(META_GROUP)
        except RaftError as error:
            raise CallRefused(str(error)) from error
        return index.to_bytes(8, "little")

    def _installing(self, group: GroupId) -> bool:
        """Whether a snapshot is being taken over: it would be written behind what we wipe, and
        leave a log without a state."""
        return group in self.node.replicas and self.node.host.status(group).installing

    def _let_go(self, assignment: Assignment) -> None:
        """Forget log and state. What was promised, term and vote, stays on record, and that the
        log is gone: coming back, this node votes only when it has caught up."""
        node, group = self.node, GroupId(assignment.group)
        in_memory = assignment.config.storage is Storage.MEMORY
        replica = node.replicas.get(group)
        if replica is not None:
            self._close(replica)
        elif in_memory or not node.store.exists(group) or self._log_given_up(group):
            return
        if not in_memory:
            if node.store.exists(group):
                node.store.give_up_log(group)
            self.wipe_state(group)
        node.tenancy.usage.forget(group)
        if node.leader(group) == node.node:
            node.leaders.forget(group)
        logger.info("stream %s: its replica here is gone", assignment.name)

    def _log_given_up(self, group: GroupId) -> bool:
        """Whether this node was a member of the group and has left it."""
        if not self.node.store.exists(group):
            return False
        log = self.node.store.reader(group)
        return log.hard_state().lives % 2 == 1 and log.last_index() == 0

    def wipe_state(self, group: GroupId) -> None:
        files = self.node.state_db.files(group)
        self.node.state_db.change(lambda batch: wipe(files, batch))
        self.node.block_cache.discard_group(group)

    def removed(self, group: GroupId) -> None:
        """The stream is gone, and this node has no replica of it; but it may have had one."""
        if self.node.store.exists(group):
            self.node.host.remove_group(group, wipe=True)
            self.wipe_state(group)
