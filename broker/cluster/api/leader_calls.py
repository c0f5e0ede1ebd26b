"""Calls to the leader of a stream. Leadership may move to another node during a call.

Owns: the retry when leadership has moved; how an API request is sent to another node.
May not touch: what the calls do."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import msgspec

from broker.accounts import Account
from broker.cluster.peers.leader_table import LeaderTable
from broker.cluster.peers.rpc import CallFailed, CallRefused, Rpc
from broker.jetstream.api.subjects import ApiRequest
from broker.subjects import PublishingConnection, PublishRules
from raft import NodeId

_encode = msgspec.msgpack.Encoder().encode
# An API request between two nodes: account, subject, headers, payload. The receiver parses the
# subject itself.
decode_api_call = msgspec.msgpack.Decoder(tuple[str, bytes, bytes, bytes]).decode


@dataclass(slots=True)
class ApiCall:
    """One request of a client of this node."""

    account: Account
    request: ApiRequest
    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes
    publisher: PublishingConnection | None = None

    @property
    def rules(self) -> PublishRules | None:
        """The user's publish permissions; None: unrestricted, or the request comes from another
        account."""
        return None if self.publisher is None else self.publisher.rules

    def encoded(self) -> bytes:
        return _encode((self.account.name, self.subject, self.headers, self.payload))


@dataclass(slots=True)
class LeaderCalls:
    leaders: LeaderTable
    rpc: Rpc

    def leader(self, group: int) -> NodeId | None:
        return self.leaders.leader(group)

    async def wait_leader(self, group: int) -> NodeId:
        """Raises JetStreamError (CLUSTER_NOT_AVAIL) after a timeout without a leader."""
        return await self.leaders.wait(group)

    async def call(
        self,
        group: int,
        method: str,
        body: bytes,
        *,
        within_s: float,
        retry_every_s: float = 0.02,
        timeout_s: float = 5.0,
        repeatable: bool = True,
    ) -> bytes:
        """The answer of the group's leader. The call is retried when leadership moves; one that is
        not `repeatable` only if it certainly was not carried out. Raises CallFailed, or
        JetStreamError (CLUSTER_NOT_AVAIL) when there is no leader in time."""
        deadline = time.monotonic() + within_s
        while True:
            left_s = max(deadline - time.monotonic(), 0.0)
            leader = await self.leaders.wait(group, timeout_s=left_s)
            try:
                return await self.rpc.call(leader, method, body, timeout_s=timeout_s)
            except CallFailed as failed:
                again = repeatable or isinstance(failed, CallRefused)
                if not again or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(retry_every_s)
