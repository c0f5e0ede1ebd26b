"""Opens and drops the replicas of this node as its assignments change.

Owns: opening a replica that is assigned here, rejoining a group after its log was lost, dropping a
replica that is no longer assigned here, and updating a stream whose new leader has an outdated
configuration.
May not touch: the members of groups (member_changes.py), the assignments (broker.cluster.meta).
Spec: docs/decisions/0010-reconfiguration-of-replicas.md."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from broker.cluster.limits.usage import Usage
from broker.cluster.meta.assignments import META_GROUP, Assignment, RenewStream
from broker.cluster.meta.meta_group import MetaGroup
from broker.cluster.meta.meta_requests import MetaRequests
from broker.cluster.peers.leader_table import LeaderTable
from broker.cluster.peers.rpc import CallFailed
from broker.cluster.proposals import LostLeadership
from broker.cluster.replica.member_changes import MemberChanges, ReconfigurableReplica
from broker.cluster.replica.replica_storage import ReplicaStorage, StateDamaged
from broker.cluster.replica.replica_table import ReplicaTable
from broker.jetstream.commands.stream_commands import AnyCommand, UpdateConfig
from broker.jetstream.config import Storage
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.stream.stream import Stream
from raft import GroupId, NodeId, RaftError, Term
from raft.host.host import Host
from raft.store.records import DamagedLog, StoreBusy

logger = logging.getLogger("jetraft.cluster")

RETRY_EVERY_S: Final = 0.05
HEAL_EVERY_S: Final = 0.2


class ConfiguredReplica(ReconfigurableReplica, Protocol):
    """A replica that leads, as far as its configuration is concerned."""

    @property
    def term(self) -> Term: ...
    @property
    def stream(self) -> Stream: ...
    def stamp(self) -> int: ...
    async def propose(self, command: AnyCommand) -> object: ...


@dataclass(slots=True)
class Membership:
    node: NodeId
    replicas: ReplicaTable
    storage: ReplicaStorage
    host: Host
    meta_group: MetaGroup
    meta_requests: MetaRequests
    member_changes: MemberChanges
    leaders: LeaderTable
    usage: Usage
    spawn: Callable[[Awaitable[None], str], object]
    _rejoining: set[int] = field(default_factory=set)
    # Groups of deleted streams, and the index of the first table without them.
    _deleted: dict[GroupId, int] = field(default_factory=dict)
    _broken: set[int] = field(default_factory=set)  # log or state is damaged, or they do not match
    _incurable: dict[int, str] = field(default_factory=dict)  # damaged, and the only replica
    _sweeping: bool = False
    _sweep_again: bool = False

    def hold(self, assignment: Assignment) -> None:
        """Open a replica if this node is among the assignment's peers. One that is no longer
        assigned here is dropped once that is certain (sweep)."""
        replica = self.replicas.get(assignment.group)
        if self.node in assignment.holders:
            if replica is not None and replica.is_stranded(assignment):
                self.replicas.leave(replica)
                replica = None
            if replica is None and (
                self.storage.lost_log(assignment) or self._is_given_up(assignment.group)
            ):
                self._rejoin_soon(assignment)
            elif replica is None and self._open(assignment):
                replica = self.replicas.get(assignment.group)
        elif replica is not None:
            self.sweep()
        if replica is not None:
            replica.assignment = assignment
            self.member_changes.check(replica)

    def _is_given_up(self, group: int) -> bool:
        """Whether its data is damaged and to be fetched from other replicas. That may not be done
        yet when the disk fails and is reopened."""
        return group in self._broken and group not in self._incurable

    def leads(self, replica: ConfiguredReplica) -> None:
        """This node serves a stream as its leader from now on."""
        self.member_changes.check(replica)
        if replica.stream.config != replica.assignment.config:
            self.spawn(self._align_config(replica, replica.term), f"configure {replica.name}")

    async def _align_config(self, replica: ConfiguredReplica, term: Term) -> None:
        """The configurations in the table and in the stream differ. Either an update was assigned,
        and the previous leader failed before it proposed it to the stream. Or the stream has the
        update, and the local table is outdated, as after a restart: proposing the old configuration
        would then undo an answered update. So this node first waits until its table is current, and
        checks again after its proposal, because a newer update may have come meanwhile."""
        while replica.is_leading and replica.term == term:
            try:
                await self.meta_requests.barrier()
                config = replica.assignment.config
                if replica.stream.config == config or replica.term != term:
                    return
                await replica.propose(UpdateConfig(replica.stamp(), config))
            except (CallFailed, RaftError, LostLeadership, TimeoutError, JetStreamError) as error:
                logger.debug("configure %s: %s", replica.name, error)  # tried again
                await asyncio.sleep(RETRY_EVERY_S)

    def _open(self, assignment: Assignment) -> bool:
        """False if the log is found to be damaged: it is then given up, later."""
        in_memory = assignment.config.storage is Storage.MEMORY
        voters = assignment.members if in_memory else assignment.founders
        try:
            self.replicas.open(assignment, [NodeId(voter) for voter in voters])
        except (DamagedLog, StateDamaged) as damage:
            logger.warning("stream %s: %s", assignment.name, damage)
            self.usage.forget(GroupId(assignment.group))
            self._broken.add(assignment.group)
            self._rejoin_soon(assignment)
            return False
        return True

    def damaged(self, group: int, error: Exception) -> None:
        """Damage was found while reading a replica's data. The data is fetched again, if there is
        another replica. The only replica continues with what is left."""
        replica = self.replicas.get(group)
        if replica is None or group in self._broken or replica.storage is Storage.MEMORY:
            return
        assignment = replica.assignment
        self._broken.add(group)
        if set(assignment.members) <= {self.node}:
            said = f"is damaged and has no other replica: {error}. What can be read is served"
            self._incurable[group] = f"stream {assignment.name} {said}"
            logger.error("stream %s %s", assignment.name, said)
            return
        logger.error("stream %s is damaged here: %s", assignment.name, error)
        self.spawn(self._heal(replica, group), f"heal {assignment.name}")

    def incurable(self) -> list[str]:
        """Messages about damaged streams that have no other replica to fetch from."""
        return [said for group, said in self._incurable.items() if group in self.replicas]

    async def _heal(self, damaged: object, group: int) -> None:
        """Give the replica up once another node leads: that node has what is missing here, and the
        election did not have to be won without our vote."""
        while (replica := self.replicas.get(group)) is not None and replica is damaged:
            held = self.host.held(replica.group)
            stopped = held is None or held.stopped is not None
            leader = None if stopped else self.host.leader(replica.group)
            if stopped or leader not in (None, self.node):
                self.replicas.leave(replica)
                self._rejoin_soon(replica.assignment)
                return
            if leader == self.node and (others := replica.successors()):
                with suppress(RaftError):  # tried again
                    replica.transfer(others[0])
            await asyncio.sleep(HEAL_EVERY_S)

    def drop_unassigned(self) -> None:
        """Drop replicas that are not assigned here, and leftovers of deleted streams. Called at
        startup and after disk failures."""
        assignments = self.meta_group.assignments
        if self._leftovers() or any(self.node not in one.holders for one in assignments):
            self.sweep()

    def removed(self, group: GroupId) -> None:
        """The stream was deleted. Its data is removed when the table without it is on disk.
        Otherwise this node might restart with an older table and without the group's log: it would
        start the group again as a member that has promised nothing."""
        if self.replicas.delete(group) or self.storage.store.exists(group):
            self._deleted[group] = self.meta_group.assignments.applied

    def table_flushed(self, index: int) -> None:
        """The table as of this index is on disk."""
        for group in [group for group, at in self._deleted.items() if at <= index]:
            try:
                self._wipe(group)
            except StoreBusy as full:  # tried again after the next flush
                logger.warning("cannot remove the log of a deleted stream, will retry: %s", full)
                return
            del self._deleted[group]

    def _leftovers(self) -> list[GroupId]:
        """Groups on disk that are not in the table. The table may be outdated, so the meta leader
        is asked before they are removed."""
        known = {one.group for one in self.meta_group.assignments} | {META_GROUP}
        return [group for group in self.storage.store.groups() if group not in known]

    def _wipe(self, group: GroupId) -> None:
        if self.storage.store.exists(group):
            self.host.remove_group(group, wipe=True)
        self.storage.wipe_state(group)

    # -- a node that restarts without its log ---------------------------------------------------

    def _rejoin_soon(self, assignment: Assignment) -> None:
        if assignment.group not in self._rejoining:
            self._rejoining.add(assignment.group)
            self.spawn(self._rejoin(assignment), f"rejoin {assignment.name}")

    async def _rejoin(self, asked: Assignment) -> None:
        try:
            while True:
                try:
                    await self.meta_requests.barrier()
                    now = self.meta_group.assignments.get(asked.account, asked.name)
                    if now is None or now.group != asked.group or now.group in self.replicas:
                        return
                    if self.node not in now.holders:
                        return
                    if now.members != [self.node]:
                        break
                    if self._is_broken(now):
                        logger.error(
                            "stream %s is damaged and has no other replica: it is not opened",
                            now.name,
                        )
                        return
                    await self._renew(now)
                except (CallFailed, RaftError, TimeoutError, JetStreamError) as error:
                    logger.debug("rejoin %s: %s", asked.name, error)  # tried again
                await asyncio.sleep(RETRY_EVERY_S)
        finally:
            self._rejoining.discard(asked.group)
        try:
            self._give_up_broken(now)
            self._open_again(now)
        except DamagedLog as damage:
            logger.critical("stream %s: this node cannot rejoin its group: %s", now.name, damage)

    def _is_broken(self, assignment: Assignment) -> bool:
        if assignment.config.storage is Storage.MEMORY:
            return False
        group = GroupId(assignment.group)
        return group in self._broken or self.storage.damage(group) is not None

    def _give_up_broken(self, assignment: Assignment) -> None:
        """Give up a damaged log: what it has promised is with the other replicas."""
        if self._is_broken(assignment):
            self.storage.give_up(GroupId(assignment.group))
            self._broken.discard(assignment.group)
            logger.warning(
                "stream %s: rebuilding the damaged replica on this node", assignment.name
            )

    def _open_again(self, assignment: Assignment) -> None:
        """Open the replica with the current members, which include this node if it was one when it
        lost its log. It does not vote until it has caught up, and by then its log contains every
        later configuration."""
        group = GroupId(assignment.group)
        if assignment.config.storage is not Storage.MEMORY and self.storage.log_given_up(group):
            # The process may have crashed between giving up the log and wiping the state.
            self.storage.wipe_state(group)
        voters = [NodeId(voter) for voter in assignment.members]
        replica = self.replicas.open(assignment, voters)
        self.member_changes.check(replica)

    async def _renew(self, lost: Assignment) -> None:
        """The only member has restarted without data, while other nodes may hold old parts of the
        log (RenewStream)."""
        if lost.config.storage is not Storage.MEMORY:
            # Data in files survives a restart: never give it up.
            raise JetStreamError(ErrCode.CLUSTER_NOT_AVAIL)
        command = RenewStream(lost.account, lost.name, lost.group, lost.members)
        await self.meta_requests.change(command)

    # -- a node that holds replicas it is no longer assigned ------------------------------------

    def sweep(self) -> None:
        """Drop every replica that is no longer assigned to this node."""
        self._sweep_again = True
        if not self._sweeping:
            self._sweeping = True
            self.spawn(self._sweep(), "drop replicas")

    async def _sweep(self) -> None:
        """The assignments known here may be outdated, especially after a restart: this node may
        have been assigned the stream again since. So it asks the meta leader first."""
        try:
            while self._sweep_again:
                try:
                    await self.meta_requests.barrier()
                except (CallFailed, RaftError, TimeoutError, JetStreamError):
                    await asyncio.sleep(RETRY_EVERY_S)
                    continue
                if not self.meta_group.is_durable:
                    await asyncio.sleep(RETRY_EVERY_S)
                    continue  # after a restart, this node must know that it is no longer assigned
                self._sweep_again = False
                for assignment in self.meta_group.assignments:
                    if self.node in assignment.holders:
                        continue
                    if self._installing(GroupId(assignment.group)):
                        self._sweep_again = True
                    else:
                        self._drop(assignment)
                for group in self._leftovers():
                    if group not in self.replicas and group not in self._deleted:
                        self._wipe(group)
                if self._sweep_again:
                    await asyncio.sleep(RETRY_EVERY_S)
        finally:
            self._sweeping = False

    def _installing(self, group: GroupId) -> bool:
        """Whether a snapshot is being installed. It would write its log after the state was wiped,
        and leave a log without state."""
        return group in self.replicas and self.host.status(group).installing

    def _drop(self, assignment: Assignment) -> None:
        """Delete log and state. Term and vote of this node stay on disk, and so does the fact that
        the log was given up: if this node joins the group again, it votes only after it has caught
        up."""
        group, store = GroupId(assignment.group), self.storage.store
        in_memory = assignment.config.storage is Storage.MEMORY
        replica = self.replicas.get(group)
        if replica is not None:
            self.replicas.leave(replica)
        elif in_memory or not store.exists(group) or self.storage.log_given_up(group):
            return
        if not in_memory:
            if store.exists(group):
                store.give_up_log(group)
            self.storage.wipe_state(group)
            self._broken.discard(group)
        self.usage.forget(group)
        if self.leaders.leader(group) == self.node:
            self.leaders.forget(group)
        logger.info("stream %s: removed the replica on this node", assignment.name)
