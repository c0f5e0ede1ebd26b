"""Requests of any node to the leader of the meta group: change the table, read its position.

Owns: the three calls, on both sides, and the wait until their effect is applied on this node.
May not touch: what a change means (assignments.py), streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from broker.cluster.meta.assignments import (
    META_GROUP,
    Assignment,
    MetaCommand,
    MetaResult,
    NodeChange,
    NodeCommand,
    StreamCommand,
)
from broker.cluster.meta.meta_group import MetaGroup
from broker.cluster.meta.node_table import NodeRecord
from broker.cluster.peers.leader_table import LeaderTable
from broker.cluster.peers.rpc import CallFailed, CallRefused, Rpc
from broker.cluster.proposals import LostLeadership
from broker.jetstream.errors import ErrCode, JetStreamError
from raft import NodeId, RaftError

CHANGE_WITHIN_S = 8.0
KNOWN_HERE_WITHIN_S = 2.0
BARRIER_WITHIN_S = 5.0
LEVEL_OF_INDEX = 1  # the feature level from which leaders include the index in their answer

_encode = msgspec.msgpack.Encoder().encode
_command = msgspec.msgpack.Decoder(MetaCommand)
_stream_answer = msgspec.msgpack.Decoder(Assignment | tuple[ErrCode, str])
_node_answer = msgspec.msgpack.Decoder(NodeRecord | tuple[ErrCode, str])


class ChangeAnswer(msgspec.Struct, frozen=True):
    index: int  # the leader's applied index at that time
    result: msgspec.Raw  # of the command


_answer = msgspec.msgpack.Decoder(ChangeAnswer)


@dataclass(slots=True)
class MetaRequests:
    node: NodeId
    rpc: Rpc
    leaders: LeaderTable
    group: MetaGroup
    feature_level: Callable[[NodeId], int]
    now_ns: Callable[[], int]  # for the times in commands
    _one_question: asyncio.Lock = field(default_factory=asyncio.Lock)
    _asked: int = 0  # how often the leader was asked for its index
    _answered: int = 0  # the last of these questions that was answered
    _index: int = 0  # the answer

    def start(self) -> None:
        self.rpc.register("meta", self._serve_change_without_index)
        self.rpc.register("meta change", self._serve_change)
        self.rpc.register("meta index", self._serve_index)
        self.rpc.register("meta barrier", self._serve_barrier)

    async def change(
        self, command: StreamCommand, *, timeout_s: float = CHANGE_WITHIN_S
    ) -> Assignment:
        """Ask the meta leader to commit the command. Returns when this node has applied it as well,
        so that a client that is answered here also sees the change here. Raises the JetStreamError
        of a refusal."""
        answer = await self._ask(command, timeout_s)
        result = _stream_answer.decode(answer.result)
        if isinstance(result, Assignment):
            await self.group.applied_here(answer.index, timeout_s=KNOWN_HERE_WITHIN_S)
            return result
        raise JetStreamError(*result)

    async def change_node(self, command: NodeCommand) -> NodeRecord:
        """Like `change`, for a command about a node."""
        answer = await self._ask(command, CHANGE_WITHIN_S)
        result = _node_answer.decode(answer.result)
        if isinstance(result, NodeRecord):
            await self.group.applied_here(answer.index, timeout_s=KNOWN_HERE_WITHIN_S)
            return result
        raise JetStreamError(*result)

    async def _ask(self, command: MetaCommand, timeout_s: float) -> ChangeAnswer:
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = deadline - time.monotonic()
            leader = await self.leaders.wait(META_GROUP, timeout_s=left_s)
            try:
                return await self._ask_leader(leader, command, deadline - time.monotonic())
            except (CallFailed, TimeoutError, RaftError, LostLeadership) as error:
                # Meta commands are idempotent: assigning a stream that exists returns it.
                if time.monotonic() + 0.1 > deadline:
                    raise JetStreamError.of(ErrCode.CLUSTER_NOT_AVAIL, definite=False) from error
                await asyncio.sleep(0.1)

    async def _ask_leader(
        self, leader: NodeId, command: MetaCommand, timeout_s: float
    ) -> ChangeAnswer:
        body = _encode(command)
        if self.feature_level(leader) >= LEVEL_OF_INDEX:
            answer = await self.rpc.call(leader, "meta change", body, timeout_s=timeout_s)
            return _answer.decode(answer)
        result = await self.rpc.call(leader, "meta", body, timeout_s=timeout_s)
        return ChangeAnswer(await self._leader_index(leader), msgspec.Raw(result))

    async def current(self) -> None:
        """Wait until this node has applied what the meta leader has applied at the call."""
        leader = await self.leaders.wait(META_GROUP)
        if leader != self.node:
            index = await self._leader_index(leader)
            await self.group.applied_here(index, timeout_s=KNOWN_HERE_WITHIN_S)

    async def _leader_index(self, leader: NodeId) -> int:
        """The leader's applied index. One call is in flight at a time; callers that arrive
        meanwhile share the next one."""
        before = self._asked
        async with self._one_question:
            if self._answered > before:
                return self._index
            self._asked += 1
            answer = await self.rpc.call(leader, "meta index", b"", timeout_s=KNOWN_HERE_WITHIN_S)
            self._answered, self._index = self._asked, int.from_bytes(answer, "little")
            return self._index

    async def barrier(self) -> None:
        """Wait until this node has applied everything that the meta group has committed before the
        call. Unlike `current`, this does not trust a leader that may have been deposed. Raises
        CallFailed, RaftError, TimeoutError or JetStreamError."""
        leader = await self.leaders.wait(META_GROUP)
        answer = await self.rpc.call(leader, "meta barrier", b"", timeout_s=BARRIER_WITHIN_S)
        index = int.from_bytes(answer, "little")
        if not await self.group.applied_here(index, timeout_s=BARRIER_WITHIN_S):
            raise TimeoutError

    # -- at the leader --------------------------------------------------------------------------

    async def _serve_change(self, _peer: NodeId, body: bytes) -> bytes:
        result = await self._change(body)
        return _encode(ChangeAnswer(self.group.assignments.applied, msgspec.Raw(result)))

    async def _serve_change_without_index(self, _peer: NodeId, body: bytes) -> bytes:
        return await self._change(body)

    async def _change(self, body: bytes) -> bytes:
        command = _command.decode(body)
        try:
            result: MetaResult = await self.group.propose(command)
        except (RaftError, LostLeadership) as error:
            raise CallRefused(str(error) or "leadership lost") from error
        shown: object = result
        if isinstance(result, JetStreamError):
            shown = (result.err_code, result.description)
        elif isinstance(result, NodeChange):
            shown = result.record  # the streams that moved with it are known from the table
        return _encode(shown)

    async def _serve_index(self, _peer: NodeId, _body: bytes) -> bytes:
        return self.group.assignments.applied.to_bytes(8, "little")

    async def _serve_barrier(self, _peer: NodeId, _body: bytes) -> bytes:
        try:
            index = await self.group.host.read_barrier(META_GROUP)
        except RaftError as error:
            raise CallRefused(str(error)) from error
        return index.to_bytes(8, "little")
