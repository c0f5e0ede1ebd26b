"""What any node asks of the meta leader: to change the table of streams, or how far it is.

Owns: the two calls, here and at the leader, and the wait until their effect is known here.
May not touch: what a change means (meta.py), streams.
Spec: DESIGN section 6."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import msgspec

from broker.cluster.meta.assignments import (
    META_GROUP,
    Assignment,
    MetaCommand,
    MetaResult,
    RemoveStream,
)
from broker.cluster.meta.meta_group import MetaGroup, eventually
from broker.cluster.peers.leader_table import LeaderTable
from broker.cluster.peers.rpc import CallFailed, CallRefused, Rpc
from broker.cluster.proposals import LostLeadership
from broker.jetstream.errors import ErrCode, JetStreamError
from raft import NodeId, RaftError

CHANGE_WITHIN_S = 8.0
KNOWN_HERE_WITHIN_S = 2.0

_encode = msgspec.msgpack.Encoder().encode
_command = msgspec.msgpack.Decoder(MetaCommand)
_answer = msgspec.msgpack.Decoder(Assignment | tuple[ErrCode, str])


@dataclass(slots=True)
class MetaRequests:
    node: NodeId
    rpc: Rpc
    leaders: LeaderTable
    group: MetaGroup

    def start(self) -> None:
        self.rpc.register("meta", self._serve_change)
        self.rpc.register("meta index", self._serve_index)

    async def change(
        self, command: MetaCommand, *, timeout_s: float = CHANGE_WITHIN_S
    ) -> Assignment:
        """Have the meta leader commit it. Raises the JetStreamError it was refused with."""
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = deadline - time.monotonic()
            leader = await self.leaders.wait(META_GROUP, timeout_s=left_s)
            try:
                answer = await self.rpc.call(
                    leader, "meta", _encode(command), timeout_s=deadline - time.monotonic()
                )
                break
            except (CallFailed, TimeoutError, RaftError, LostLeadership) as error:
                # Proposals are idempotent here: an assignment that exists is met, not made again.
                if time.monotonic() + 0.1 > deadline:
                    raise JetStreamError.of(ErrCode.CLUSTER_NOT_AVAIL, definite=False) from error
                await asyncio.sleep(0.1)
        result = _answer.decode(answer)
        if isinstance(result, Assignment):
            await self._applied(result, command)
            return result
        raise JetStreamError(*result)

    async def current(self) -> None:
        """Until this node knows every stream that the meta leader knows now."""
        leader = await self.leaders.wait(META_GROUP)
        if leader == self.node:
            return
        answer = await self.rpc.call(leader, "meta index", b"", timeout_s=KNOWN_HERE_WITHIN_S)
        index = int.from_bytes(answer, "little")
        await eventually(
            lambda: self.group.meta.applied >= index, timeout_s=KNOWN_HERE_WITHIN_S, every_s=0.005
        )

    async def _applied(self, result: Assignment, command: MetaCommand) -> None:
        """Until this node itself has applied the change, so that a client that was answered
        finds it here."""

        def here() -> bool:
            known = self.group.meta.get(result.account, result.name)
            if isinstance(command, RemoveStream):
                return known is None or known.group != result.group
            return known is not None and known.config == result.config

        await eventually(here, timeout_s=KNOWN_HERE_WITHIN_S)

    # -- at the leader --------------------------------------------------------------------------

    async def _serve_change(self, _peer: NodeId, body: bytes) -> bytes:
        command = _command.decode(body)
        try:
            result: MetaResult = await self.group.propose(command)
        except (RaftError, LostLeadership) as error:
            raise CallRefused(str(error) or "leadership lost") from error
        if isinstance(result, JetStreamError):
            return _encode((result.err_code, result.description))
        return _encode(result)

    async def _serve_index(self, _peer: NodeId, _body: bytes) -> bytes:
        return self.group.meta.applied.to_bytes(8, "little")
