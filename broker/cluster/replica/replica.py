"""One stream's Raft group on this node.

Owns: the replicated Stream, its checkpoints, and, while this node leads, what only a leader does.
May not touch: how commands change the stream (broker.jetstream), other groups.
Promises: an answer to a publish or a command leaves only when its entry is applied, that is after
a majority has it on disk.
Spec: DESIGN sections 4, 5, 7."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from struct import Struct as Packing
from typing import TYPE_CHECKING

from msgspec.structs import replace

from broker.cluster.meta.assignments import Assignment
from broker.cluster.proposals import Proposals
from broker.cluster.publish.publish_batch import STALE_SESSION, BatchAnswer
from broker.cluster.replica.leadership import Leadership
from broker.jetstream.api.responses import PubAck, encode_pub_ack, encode_pub_error
from broker.jetstream.commands import stream_commands as commands
from broker.jetstream.commands.publish_entry import NO_MARKS, noted_prefix, publish_prefix
from broker.jetstream.commands.stream_commands import (
    AnyCommand,
    CommandKind,
    DeleteMessage,
    UpdateConfig,
)
from broker.jetstream.config import Storage
from broker.jetstream.delivery.pull_queue import CONSUMER_DELETED
from broker.jetstream.errors import JetStreamError
from broker.jetstream.publish.sessions import (
    Duplicate,
    FastBatchReply,
    OutOfOrder,
    PublishResult,
    RowAnswer,
    Staged,
)
from broker.jetstream.stream.stream import Stream
from broker.store.memory_db import MemoryDb
from broker.store.state_keys import POSITION, StateBatch, StateKeeper, key, wipe
from raft import Entry, EntryKind, GroupId, Index, NodeId, RaftError, SnapshotMeta, Term

if TYPE_CHECKING:
    from broker.cluster.node import JetStreamNode

logger = logging.getLogger("jetraft.cluster")

_POSITION = Packing("<QQ")  # index, term
CAMPAIGNS_MAX = 8
CAMPAIGN_EVERY_S = 0.025

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

_STORING_KINDS = frozenset(  # besides publishes
    {CommandKind.MIRROR_BATCH, CommandKind.SOURCE_BATCH, CommandKind.EXPIRE, CommandKind.FIRE}
)


class Replica:
    """Implements raft.StateMachine."""

    def __init__(
        self,
        node: JetStreamNode,
        assignment: Assignment,
        stream: Stream,
        state: StateKeeper,
        voters: Sequence[NodeId],
    ) -> None:
        self.node = node
        self.assignment = assignment
        self.stream = stream
        self._state = state
        self._in_memory = assignment.config.storage is Storage.MEMORY  # never changes
        self.group = GroupId(assignment.group)
        self._begun_with = list(voters)
        self.account = node.server.account(assignment.account)
        self.leading: Leadership | None = None
        self.leader_since_ns = 0
        self.term = Term(0)
        self.dirty = False  # applied something that is not checkpointed
        self._won: Term | None = None  # leader of this term, but its first entry is not applied
        self._waiting = Proposals()
        self._flushed = Index(stream.applied)
        self._applied_term = Term(0)
        # Flushes of the log are put off: the state may be on disk before its entries are.
        self._relaxed = node.options.flush_interval_s is not None and not self._in_memory
        self._last_stamp_ns = 0
        self._turn: asyncio.Handle | None = None  # of the work towards a checkpoint

    @classmethod
    def open(cls, node: JetStreamNode, assignment: Assignment, voters: Sequence[NodeId]) -> Replica:
        """Load what an earlier run left of the stream, or begin it; then join the group. A stream
        in memory begins anew with every run and fetches from its peers what they still have.
        `voters` are those the group has where the log here begins."""
        in_memory = assignment.config.storage is Storage.MEMORY
        state: StateKeeper = MemoryDb() if in_memory else node.state_db
        stream = Stream.open(
            assignment.begun_as,
            created_ns=assignment.created_ns,
            files=state.files(assignment.group),
            cache=node.block_cache,
        )
        replica = cls(node, assignment, stream, state, voters)
        node.tenancy.usage.changed(replica)
        term = replica._noted_term()
        node.host.add_group(
            replica.group,
            voters=voters,
            machine=replica,
            applied=Index(stream.applied),
            persistent=not in_memory,
            relaxed=replica._relaxed,
            applied_term=term,
        )
        if voters[0] == node.node and not stream.applied:
            replica.stand_for_election()
        return replica

    def stand_for_election(self, attempt: int = 0) -> None:
        """A new stream does not wait for a timeout. The other members may hear of it a moment
        later than we do, so the first attempts may meet nobody."""
        if self.group in self.node.host.groups() and self.node.host.leader(self.group) is None:
            self.node.host.campaign(self.group)
            if attempt < CAMPAIGNS_MAX:
                loop = asyncio.get_running_loop()
                loop.call_later(CAMPAIGN_EVERY_S, self.stand_for_election, attempt + 1)

    @property
    def name(self) -> str:
        return self.assignment.name

    @property
    def elected(self) -> bool:
        """Leader, but not serving before everything of earlier terms is applied."""
        return self._won is not None

    @property
    def reads_are_current(self) -> bool:
        """While we lead: nobody else can have stored anything that is not here."""
        return self.node.host.reads_are_current(self.group)

    def could_serve(self, consumer: str) -> bool:
        """False only when we lead and know that there is no such consumer."""
        return self.leading is None or consumer in self.stream.consumers

    def stamp(self) -> int:
        """The time of a command: wall time that never goes back within the stream."""
        self._last_stamp_ns = max(self.node.now_ns(), self._last_stamp_ns, self.stream.last_time)
        return self._last_stamp_ns

    # -- proposing, on the leader ---------------------------------------------------------------

    def publish(
        self, origin: NodeId, session: int, number: int, block: bytes, *, marks: bytes = b""
    ) -> None:
        """Propose a batch. Without leadership it is dropped: its origin sends it again.

        `marks` says which rows are of fast batches (jetstream/notes.py)."""
        if self.leading is None:
            return
        bounds = self.node.tenancy.usage.bounds(self)
        named = {"origin": origin, "session": session, "batch_no": number}
        if bounds is None and not marks:
            data = publish_prefix(time_ns=self.stamp(), **named) + block
        else:
            prefix = noted_prefix(time_ns=self.stamp(), bounds=bounds, **named)
            data = b"".join((prefix, marks or NO_MARKS, block))
        try:
            self.node.host.propose(self.group, data)
        except RaftError:
            return

    async def propose(self, command: AnyCommand) -> object:
        """The result of the applied command. Raises RaftError or LostLeadership."""
        term, index = self.node.host.propose(self.group, commands.encode(command))
        return await self._waiting.add(term, index)

    def propose_raw(self, data: bytes) -> asyncio.Future[object]:
        """As propose, for an entry that is encoded already."""
        term, index = self.node.host.propose(self.group, data)
        return self._waiting.add(term, index)

    def propose_all(self, proposed: Sequence[AnyCommand], confirms: Sequence[bytes]) -> None:
        """Commands nobody waits for, but for the double acks to confirm after the last."""
        try:
            for command in proposed:
                term, index = self.node.host.propose(self.group, commands.encode(command))
        except RaftError:
            # Not confirmed: the client asks again, the message is delivered again. The engines
            # think it is told, so they begin anew from what the replicas know.
            if self.leading is not None:
                asyncio.get_running_loop().call_soon(self._restart_leading, self.leading)
            return
        if proposed and confirms:
            self._waiting.add(term, index).add_done_callback(
                lambda done: self._confirm(done, confirms)
            )

    def _restart_leading(self, lost: Leadership) -> None:
        if self.leading is lost:
            lost.close()
            self.leading = Leadership(self)

    def _confirm(self, done: asyncio.Future[object], confirms: Sequence[bytes]) -> None:
        if not done.cancelled() and done.exception() is None and self.leading is not None:
            self.leading.confirm(confirms)

    # -- raft.StateMachine ----------------------------------------------------------------------

    def apply(self, entries: Sequence[Entry]) -> None:
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
                self._answer_publish(result)
                continue
            stored = stored or kind in _STORING_KINDS
            if kind in _CONSUMER_KINDS:
                changed_consumers.append(_consumer_name(entry.data))
            if kind == CommandKind.UPDATE_CONFIG:
                self._reconfigured()
            elif kind == CommandKind.DELETE_MESSAGE:
                self._deleted(commands.decode(entry.data))
            self._waiting.applied(entry.term, entry.index, result)
        self._waiting.passed(entries[-1].index)
        self._applied_term = entries[-1].term
        self.dirty = True
        self.node.tenancy.usage.changed(self)
        if self._won is not None and entries and entries[-1].term == self._won:
            self._begin_leading()
        elif self.leading is not None:
            self.leading.applied(stored=stored, consumers=changed_consumers)
        self._checkpoint_soon()

    def _reconfigured(self) -> None:
        if self.leading is not None:
            self.leading.reconfigured()
            for callback in self.node.on_reconfigured:
                callback(self)

    def _deleted(self, command: AnyCommand) -> None:
        erased = isinstance(command, DeleteMessage) and not command.no_erase
        if erased and not self._in_memory:
            self.node.flushing.erased(self)

    def leader_changed(self, *, leader: NodeId | None, term: Term, ours: bool) -> None:
        self.term = term
        if ours:
            self._won = term
            return
        self._won = None
        if self.leading is not None:
            logger.info("stream %s: no longer the leader (term %s)", self.name, term)
            self.leading.close()
            self.leading = None
            self._tell_leading(leads=False)
        if leader is not None:
            self.node.note_leader(self.group, term, leader)

    def snapshot(self) -> tuple[Index, Iterable[bytes]]:
        return Index(self.stream.applied), self.stream.snapshot()

    def restore(self, meta: SnapshotMeta, chunks: Sequence[bytes]) -> None:
        """Another replica's state in place of ours; the host flushes it before it goes on."""
        self._wipe()
        self._waiting.cancel()  # the snapshot may hold what they wait for, or not
        self.stream.restore(chunks)
        self._applied_term = meta.term
        self.node.tenancy.usage.changed(self)
        self.checkpoint()
        self._flushed = meta.index
        logger.info("stream %s: took over a snapshot at index %s", self.name, meta.index)

    def durable_index(self) -> Index:
        """In memory there is nothing to wait for: state and log are lost together."""
        return Index(self.stream.applied) if self._in_memory else self._flushed

    # -- checkpoints ----------------------------------------------------------------------------

    def _checkpoint_soon(self) -> None:
        if self.stream.overdue():
            self.checkpoint()
        elif self._turn is None and self.stream.needs_checkpoint():
            self._next_turn()

    def _next_turn(self) -> None:
        self._turn = asyncio.get_running_loop().call_soon(self._work_ahead)

    def _work_ahead(self) -> None:
        """Towards the next checkpoint, a part in each turn of the loop, and the checkpoint last."""
        self._turn = None
        try:
            if not self.stream.work_ahead():
                if not self.stream.needs_checkpoint():
                    return
                self.checkpoint()
        except Exception as error:  # noqa: BLE001 - ends this group, loudly
            held = self.node.host.held(self.group)
            if held is not None:
                self.node.host.group_failed(held, error)
            return
        self._next_turn()

    def checkpoint(self) -> Index:
        """Write the applied state (not durable before a flush); the index it stands for."""
        written = self._state.change(self._checkpoint)
        if not self._in_memory:
            self.node.flushing.written(written)
        self.dirty = False
        return Index(self.stream.applied)

    def _checkpoint(self, batch: StateBatch) -> int:
        written = self.stream.checkpoint(batch)
        if self._relaxed:
            position = _POSITION.pack(self.stream.applied, self._applied_term)
            batch.put(key(self.group, POSITION, 0), position)
        return written

    def _noted_term(self) -> Term | None:
        """That of the loaded state, when it was written while flushes of the log were put off."""
        raw = self._state.files(self.group).get(POSITION, 0)
        if raw is None:
            return None
        index, term = _POSITION.unpack(raw)
        if index != self.stream.applied:
            return None
        self._applied_term = Term(term)
        return self._applied_term

    def flushed(self, index: Index) -> None:
        self._flushed = max(self._flushed, index)

    # -- leadership -----------------------------------------------------------------------------

    def _begin_leading(self) -> None:
        """Everything of earlier terms is applied: this node may serve the stream now."""
        assert self._won is not None
        self._won = None
        self.leader_since_ns = self.node.now_ns()
        self.leading = Leadership(self)
        logger.info("stream %s: leader (term %s)", self.name, self.term)
        self.node.leads(self.group, self.term)
        if self.stream.config != self.assignment.config:
            # The update was assigned, but its leader died before this group heard of it.
            self.propose_all([UpdateConfig(self.stamp(), self.assignment.config)], [])
        self._tell_leading(leads=True)

    def _tell_leading(self, *, leads: bool) -> None:
        for callback in self.node.on_replica_leads:
            callback(self, leads)

    def heirs(self) -> list[NodeId]:
        """The other voters that are there."""
        voters = self.node.host.status(self.group).core.voters
        return [v for v in voters if v != self.node.node and self.node.mesh.connected(v)]

    def waits_in_vain(self, assignment: Assignment) -> bool:
        """A stream in memory was opened after a restart with members that it had before: it has
        nothing, and those it asks for what it lost may have left."""
        status = self.node.host.status(self.group).core
        stale = self._in_memory and self._begun_with != assignment.members
        return stale and status.recovering and not status.last_index

    def _answer_publish(self, result: object) -> None:
        if self.leading is None and self._won is None:
            return
        if isinstance(result, OutOfOrder):
            answer = BatchAnswer(
                self.group,
                result.session,
                result.batch_no,
                0,
                [],
                expected=result.expected or STALE_SESSION,
            )
            self.node.answers.send(NodeId(result.origin), answer)
            return
        assert isinstance(result, PublishResult)
        exceptions = [(row, self._reply(what)) for row, what in result.exceptions]
        answer = BatchAnswer(
            self.group, result.session, result.batch_no, result.first_seq, exceptions
        )
        self.node.answers.send(NodeId(result.origin), answer)

    def _reply(self, what: RowAnswer) -> bytes:
        if isinstance(what, Staged):
            return b""
        if isinstance(what, FastBatchReply):
            return what.text.encode()
        if isinstance(what, JetStreamError):
            return encode_pub_error(self.name, what)
        ack = PubAck(stream=self.name, seq=what.seq, domain=self.node.options.domain)
        if isinstance(what, Duplicate):
            count = 1 if what.batch else 0
            return encode_pub_ack(replace(ack, duplicate=True, batch=what.batch, count=count))
        return encode_pub_ack(replace(ack, val=what.val, batch=what.batch, count=what.count))

    # -- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """The process stops; the stream stays."""
        if self.leading is not None:
            self.leading.close()
            self.leading = None
        if self._turn is not None:
            self._turn.cancel()
        self._waiting.cancel()

    def leave(self) -> None:
        """The stream goes on, but not here."""
        led = self.leading is not None
        self.close()
        if led:
            self._tell_leading(leads=False)

    def delete(self) -> None:
        """The stream is gone: forget the group and everything it stored."""
        if self.leading is not None:
            self.leading.close(CONSUMER_DELETED)
            self.leading = None
            self._tell_leading(leads=False)
        self.close()
        self.node.host.remove_group(self.group, wipe=True)
        self._wipe()

    def _wipe(self) -> None:
        files = self._state.files(self.group)
        self._state.change(lambda batch: wipe(files, batch))


def _consumer_name(entry: bytes) -> str:
    name: str = getattr(commands.decode(entry), "name", "")  # a loaded state brings several
    return name
