"""One stream's Raft group on this node: the Raft state machine around a replicated Stream.

Owns: the Stream, its checkpoints, the proposals of this node, and the Leadership while it leads.
May not touch: how commands change the stream (broker.jetstream), other groups.
Promises: a publish or a command is answered once its entry is applied: a majority has it on disk.
The path of a publish: publish() -> Host.propose -> apply() -> services.answer.
Spec: docs/ARCHITECTURE.md, "Invariants"."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from broker.accounts import Account
from broker.cluster.limits.usage import Usage
from broker.cluster.meta.assignments import Assignment
from broker.cluster.meta.feature_level import COMPRESSED_BLOCKS, LEVEL_OF_RULES
from broker.cluster.proposals import Proposals
from broker.cluster.publish.publish_answers import publish_answer
from broker.cluster.publish.publish_batch import BatchAnswer
from broker.cluster.replica.checkpoints import Checkpoints
from broker.cluster.replica.leadership import DeliveryServices, Leadership
from broker.cluster.replica.replica_storage import StateDamaged
from broker.jetstream.commands import stream_commands as commands
from broker.jetstream.commands.publish_entry import NO_SPACE, RULES, entry_prefix
from broker.jetstream.commands.stream_commands import (
    AnyCommand,
    CommandKind,
    DeleteMessage,
    Purge,
    UpdateConfig,
)
from broker.jetstream.config import Storage
from broker.jetstream.config.consumer_update import is_internal
from broker.jetstream.config.stream_config import Compression
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.delivery.pull_queue import CONSUMER_DELETED, LEADERSHIP_CHANGE
from broker.jetstream.stream.stream import Stream
from broker.store.block.codec import BlockDamaged
from broker.store.memory_db import MemoryDb
from broker.store.segments import BlockCache
from broker.store.state_keys import StateKeeper
from raft import Entry, EntryKind, GroupId, Index, NodeId, RaftError, Role, SnapshotMeta, Term
from raft.host.group import MachineDamaged, Preparing, SnapshotUnavailable
from raft.host.host import Host
from raft.store.disk_space import Space

logger = logging.getLogger("jetraft.cluster")

CAMPAIGNS_MAX = 4  # further attempts of the first election
CAMPAIGN_AFTER_S = 0.05  # the first of them; each later one after twice the time
RESUME_EVERY_S = 0.02

_CONSUMER_KINDS = frozenset(
    {
        CommandKind.CREATE_CONSUMER,
        CommandKind.DELETE_CONSUMER,
        CommandKind.UPDATE_CONSUMER,
        CommandKind.PAUSE_CONSUMER,
        CommandKind.RESET_CONSUMER,
        CommandKind.LOAD_STATE,
    }
)

_FREEING = (DeleteMessage, Purge, UpdateConfig)  # may free space: accepted on a full disk

_STORING_KINDS = frozenset(  # besides publishes
    {CommandKind.MIRROR_BATCH, CommandKind.SOURCE_BATCH, CommandKind.EXPIRE, CommandKind.FIRE}
) | {CommandKind.WRITER_BATCH}


@dataclass(frozen=True, slots=True)
class ReplicaServices:
    """What a replica uses of its node, the same for all replicas. Wired in assembly.py."""

    node: NodeId
    host: Host
    usage: Usage
    delivery: DeliveryServices
    state_db: StateKeeper  # of streams in files
    block_cache: BlockCache  # decoded blocks of all streams
    relaxed: bool  # flushes of the log are postponed (sync_interval)
    feature_level: Callable[[], int]  # of the cluster
    domain: str
    now_ns: Callable[[], int]
    time_is_guess: Callable[[], bool]  # cluster time is unknown, only the local clock is known
    account: Callable[[str], Account]
    connected: Callable[[NodeId], bool]
    answer: Callable[[NodeId, BatchAnswer], None]  # answers a batch, to the node it came from
    on_leader: Callable[[int, Term, NodeId], None]  # another node leads the group
    on_leadership: Callable[[Replica, bool], None]  # this node serves it from now on, or stopped
    on_reconfigured: Callable[[Replica], None]  # while this node leads
    on_erased: Callable[[GroupId, Index], None]  # a message was overwritten at this index
    on_checkpoint: Callable[[int], None]  # this many bytes of state were written


class Replica:
    """Implements raft.StateMachine."""

    def __init__(
        self,
        services: ReplicaServices,
        assignment: Assignment,
        stream: Stream,
        state: StateKeeper,
        voters: Sequence[NodeId],
    ) -> None:
        self.assignment = assignment
        self.stream = stream
        self.storage = assignment.config.storage  # never changes
        self.group = GroupId(assignment.group)
        self.account = services.account(assignment.account)
        self.leading: Leadership | None = None
        self.refused: Leadership | None = None  # restarts in the next turn: it is ahead of the log
        self.leader_since_ns = 0
        # No other node is known to have led after this one: everything acked is applied here.
        self.led_last = False
        self.term = Term(0)
        self._services = services
        self._host = services.host
        self._in_memory = self.storage is Storage.MEMORY
        self._voters_at_open = list(voters)
        self._won: Term | None = None  # leader of this term, but its first entry is not applied
        self._proposals = Proposals()
        self._last_stamp_ns = 0
        self._proposed = Index(0)  # the last command of the delivery engines in this term
        self.relaxed = services.relaxed and not self._in_memory
        stream.store.segments.packs = self._packs_blocks
        self.checkpoints = Checkpoints(
            stream,
            state,
            self.group,
            in_memory=self._in_memory,
            relaxed=self.relaxed,
            on_written=services.on_checkpoint,
            on_failure=self._failed,
        )

    @classmethod
    def open(
        cls, services: ReplicaServices, assignment: Assignment, voters: Sequence[NodeId]
    ) -> Replica:
        """Load the stream as an earlier run stored it, or create it; then join the group. A stream
        in memory starts empty in every run and fetches its state from its peers. `voters` are
        those of the group at the beginning of the local log. Raises StateDamaged, DamagedLog."""
        in_memory = assignment.config.storage is Storage.MEMORY
        state: StateKeeper = MemoryDb() if in_memory else services.state_db
        try:
            stream = Stream.open(
                assignment.initial_config,
                created_ns=assignment.created_ns,
                files=state.files(assignment.group),
                cache=services.block_cache,
            )
        except Exception as error:  # of the database, of decoding, of comparing
            raise StateDamaged(f"its state cannot be loaded: {error}") from error
        replica = cls(services, assignment, stream, state, voters)
        services.usage.changed(replica)
        term = replica.checkpoints.loaded_term()
        services.host.add_group(
            replica.group,
            voters=voters,
            machine=replica,
            applied=Index(stream.applied),
            persistent=not in_memory,
            relaxed=replica.relaxed,
            applied_term=term,
        )
        if voters[0] == services.node and not stream.applied:
            replica.campaign()
        return replica

    def campaign(self, attempt: int = 0) -> None:
        """Campaign without waiting for an election timeout, because the stream is new. The other
        members may open their replicas a moment later, or miss the pre-vote, so it is repeated
        until a majority has answered; then the election takes its course."""
        held = self._host.held(self.group)
        if held is None or held.core.leader is not None or held.stopped is not None:
            return
        if held.core.role is not Role.CANDIDATE:
            self._host.campaign(self.group)
        if attempt < CAMPAIGNS_MAX:
            loop = asyncio.get_running_loop()
            loop.call_later(CAMPAIGN_AFTER_S * 2**attempt, self.campaign, attempt + 1)

    @property
    def name(self) -> str:
        return self.assignment.name

    @property
    def rules(self) -> int:  # by which entries are judged (jetstream/commands/publish_entry.py)
        return RULES if self._services.feature_level() >= LEVEL_OF_RULES else 0

    def _packs_blocks(self) -> bool:
        """Whether blocks are compressed on disk, which versions of level 0 cannot read."""
        wanted = self.stream.config.compression is Compression.S2 and not self._in_memory
        return wanted and self._services.feature_level() >= COMPRESSED_BLOCKS

    @property
    def is_leading(self) -> bool:
        """Whether this node leads the group and serves it."""
        return self.leading is not None

    @property
    def elected(self) -> bool:
        """Elected, but not yet serving: entries of earlier terms are not applied yet."""
        return self._won is not None

    @property
    def reads_are_current(self) -> bool:
        """While this node leads: no other node can have stored anything that is not here."""
        return self._host.reads_are_current(self.group)

    @property
    def stored_bytes(self) -> int:
        return self.stream.store.bytes

    @property
    def consumer_count(self) -> int:
        """The number of consumers, without those that mirrors and sources create."""
        return sum(not is_internal(c.config) for c in self.stream.consumers.values())

    def consumers(self) -> list[Consumer]:
        return list(self.stream.consumers.values())

    def has_consumer(self, name: str) -> bool:
        return name in self.stream.consumers

    def could_serve(self, consumer: str) -> bool:
        """False only when this node leads and knows that there is no such consumer."""
        return self.leading is None or consumer in self.stream.consumers

    def stamp(self) -> int:
        """The timestamp of a command: cluster time, which never goes back within the stream. While
        only the local clock is known, which may be an hour ahead, stream time stands still."""
        last_ns = max(self._last_stamp_ns, self.stream.last_time)
        if not last_ns or not self._services.time_is_guess():
            last_ns = max(last_ns, self._services.now_ns())
        self._last_stamp_ns = last_ns
        return last_ns

    # -- proposing, on the leader ---------------------------------------------------------------

    def publish(
        self, from_node: NodeId, session: int, number: int, block: bytes, *, marks: bytes = b""
    ) -> None:
        """Propose a batch. Without leadership it is dropped: the node it came from resends it.
        `marks`: which rows belong to fast batches (jetstream/commands/publish_entry.py)."""
        if self.leading is None:
            return
        bounds = NO_SPACE if self.stream.dedup.overfull else self._services.usage.bounds(self)
        named = {"from_node": from_node, "session": session, "batch_no": number}
        prefix = entry_prefix(
            time_ns=self.stamp(), rules=self.rules, bounds=bounds, marks=marks, **named
        )
        try:  # the publishing node refuses new ones if the disk is full (publish/admission.py)
            self._host.propose(self.group, prefix + block, space=Space.SHORT)
        except RaftError:
            return  # definite: that node resends it

    async def propose(self, command: AnyCommand) -> object:
        """The result of the applied command. Raises RaftError or LostLeadership."""
        space = Space.SCARCE if isinstance(command, _FREEING) else Space.SHORT
        term, index = self._host.propose(self.group, commands.encode(command), space=space)
        return await self._proposals.add(term, index)

    def propose_raw(self, data: bytes) -> asyncio.Future[object]:
        """Like propose, for messages that are already encoded."""
        term, index = self._host.propose(self.group, data)
        return self._proposals.add(term, index)

    def propose_all(self, proposed: Sequence[AnyCommand], confirms: Sequence[bytes]) -> None:
        """Commands whose results are not awaited. The double acks in `confirms` are answered when
        the last command is applied."""
        try:
            for command in proposed:
                data = commands.encode(command)
                term, index = self._host.propose(self.group, data, space=Space.SCARCE)
                self._proposed = index
        except RaftError:
            # Not confirmed: the client repeats its ack, or the message is redelivered. The engines
            # assume that the commands were proposed, so they are restarted from applied state.
            self.refused = self.leading
            if self.leading is not None:
                asyncio.get_running_loop().call_soon(self._restart_leading, self.leading)
            return
        if proposed and confirms:
            self._proposals.add(term, index).add_done_callback(
                lambda done: self._confirm(done, confirms)
            )

    def _restart_leading(self, lost: Leadership) -> None:
        if self.leading is lost:
            lost.close()
            self._resume_leading(lost)

    def _resume_leading(self, lost: Leadership) -> None:
        """Restart the engines once everything proposed by the old ones is applied: engines started
        earlier would deliver those messages again."""
        if self.leading is not lost:
            return
        if self.stream.applied < self._proposed:
            asyncio.get_running_loop().call_later(RESUME_EVERY_S, self._resume_leading, lost)
            return
        try:
            self.leading = Leadership(self, self._services.delivery)
        except BlockDamaged as damage:
            self._failed(MachineDamaged(str(damage)))

    def _confirm(self, done: asyncio.Future[object], confirms: Sequence[bytes]) -> None:
        if not done.cancelled() and done.exception() is None and self.leading is not None:
            self.leading.confirm(confirms)

    # -- raft.StateMachine ----------------------------------------------------------------------

    def is_long(self, entry: Entry) -> bool:
        searches = entry.kind is EntryKind.NORMAL and self.stream.is_long(entry.data)
        return searches or self.checkpoints.held_back() is not None

    def prepare(self, entry: Entry) -> Preparing:
        try:
            yield from self.checkpoints.room()
            yield from self.stream.prepare(entry.data)
        except BlockDamaged as damage:
            raise MachineDamaged(str(damage)) from damage

    def apply(self, entries: Sequence[Entry]) -> None:
        try:
            self._apply(entries)
        except BlockDamaged as damage:  # also where a new leader reads its stream
            raise MachineDamaged(str(damage)) from damage

    def _apply(self, entries: Sequence[Entry]) -> None:
        stored = False
        changed_consumers: list[str] = []
        for entry in entries:
            if entry.kind is not EntryKind.NORMAL:
                self.stream.advanced(entry.index)
                continue
            result = self.stream.apply(entry.index, entry.data)
            kind = entry.data[0]
            if kind in (CommandKind.PUBLISH, CommandKind.NOTED_PUBLISH):
                stored = True
                if self.leading is not None or self._won is not None:
                    from_node, answer = publish_answer(
                        result, group=self.group, stream=self.name, domain=self._services.domain
                    )
                    self._services.answer(from_node, answer)
                continue
            stored = stored or kind in _STORING_KINDS
            if kind in _CONSUMER_KINDS:
                changed_consumers.append(_consumer_name(entry.data))
            if kind == CommandKind.UPDATE_CONFIG:
                self._reconfigured()
            elif kind == CommandKind.DELETE_MESSAGE:
                self._deleted(commands.decode(entry.data))
            self._proposals.applied(entry.term, entry.index, result)
        self._proposals.passed(entries[-1].index)
        self._services.usage.changed(self)
        if self._won is not None and entries[-1].term == self._won:
            self._begin_leading()
        elif self.leading is not None:
            self.leading.applied(stored=stored, consumers=changed_consumers)
        self.checkpoints.applied(entries[-1].term)

    def _reconfigured(self) -> None:
        if self.leading is not None:
            self.leading.reconfigured()
            self._services.on_reconfigured(self)

    def _deleted(self, command: AnyCommand) -> None:
        erased = isinstance(command, DeleteMessage) and not command.no_erase
        if erased and not self._in_memory:
            self._services.on_erased(self.group, Index(self.stream.applied))

    def leader_changed(self, *, leader: NodeId | None, term: Term, ours: bool) -> None:
        self.term = term
        if ours:
            self._won = term
            return
        self._won = None
        if self.leading is not None:
            logger.info("stream %s: no longer the leader (term %s)", self.name, term)
            self._end_leading()
        if leader is not None:
            self.led_last = False
            self._services.on_leader(self.group, term, leader)

    def snapshot(self) -> tuple[Index, Iterable[bytes]]:
        return Index(self.stream.applied), _undamaged(self.stream.snapshot())

    def restore(self, meta: SnapshotMeta, chunks: Sequence[bytes]) -> None:
        """Replace the state by that of another replica."""
        self.checkpoints.wipe()
        self._proposals.cancel()  # whether the snapshot includes their entries is unknown
        self.stream.restore(chunks)
        self._services.usage.changed(self)
        self.checkpoints.restored(meta)
        logger.info("stream %s: installed a snapshot at index %s", self.name, meta.index)

    def durable_index(self) -> Index:
        return self.checkpoints.durable_index()

    def _failed(self, error: Exception) -> None:
        """A checkpoint, or a restart of the engines, has failed: stop this group and log it."""
        held = self._host.held(self.group)
        if held is not None:
            self._host.group_failed(held, error)

    # -- leadership -----------------------------------------------------------------------------

    def _begin_leading(self) -> None:
        """Everything of earlier terms is applied: this node may serve the stream now."""
        assert self._won is not None
        self._won = None
        self.led_last = True
        self._proposed = Index(0)
        self.leader_since_ns = self._services.now_ns()
        self.leading = Leadership(self, self._services.delivery)
        logger.info("stream %s: leader (term %s)", self.name, self.term)
        self._services.on_leadership(self, True)  # noqa: FBT003

    def _end_leading(self, line: str = LEADERSHIP_CHANGE) -> None:
        if self.leading is None:
            return
        self.leading.close(line)
        self.leading = None
        self._services.on_leadership(self, False)  # noqa: FBT003

    def other_voters(self) -> list[NodeId]:
        voters = self._host.status(self.group).core.voters
        return [voter for voter in voters if voter != self._services.node]

    def successors(self) -> list[NodeId]:
        """The other voters that are connected; the one with the most of the log first."""
        connected = [voter for voter in self.other_voters() if self._services.connected(voter)]
        matches = {peer.node: peer.match for peer in self._host.status(self.group).core.peers}
        return sorted(connected, key=lambda voter: -matches.get(voter, 0))

    def transfer(self, to: NodeId) -> None:
        """Transfer leadership to another voter."""
        if self.leading is not None:
            self.leading.propose_changes()
        self._host.transfer(self.group, to)

    @property
    def has_unapplied(self) -> bool:
        """Whether some proposed entries are not applied yet."""
        core = self._host.status(self.group).core
        return core.last_index > core.applied

    async def read_barrier(self) -> None:
        """Wait until this node has applied all that was committed before. Raises RaftError."""
        await self._host.read_barrier(self.group)

    def is_stranded(self, assignment: Assignment) -> bool:
        """Whether a stream in memory was reopened empty with outdated members: the nodes it would
        fetch its data from may have left the group."""
        status = self._host.status(self.group).core
        stale = self._in_memory and self._voters_at_open != assignment.members
        return stale and status.recovering and not status.last_index

    # -- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """The process stops; the replica stays on disk."""
        if self.leading is not None:
            self.leading.close()
            self.leading = None
        self.checkpoints.close()
        self._proposals.cancel()

    def leave(self) -> None:
        """Remove the replica from this node; the stream continues on other nodes."""
        self._end_leading()
        self.close()
        self._host.remove_group(self.group, wipe=False)

    def delete(self) -> None:
        """The stream was deleted: leave the group. Its data stays on disk until Membership.removed
        removes it."""
        self._end_leading(CONSUMER_DELETED)
        self.close()
        self._host.remove_group(self.group, wipe=self._in_memory)


def _undamaged(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Raises SnapshotUnavailable for a damaged block. The reader of the block has reported it to
    Membership, which fetches the stream again."""
    try:
        yield from chunks
    except BlockDamaged as damage:
        raise SnapshotUnavailable(str(damage)) from damage


def _consumer_name(entry: bytes) -> str:
    name: str = getattr(commands.decode(entry), "name", "")  # LOAD_STATE may bring several
    return name
