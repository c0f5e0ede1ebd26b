"""API requests about streams as such: which there are, and the changes the meta group decides.

Owns: create, update, delete, names, list; the checks before a change is proposed.
May not touch: the content of streams (leader_api.py), the way of requests and answers (api.py).
Spec: JetStream sheet 1.1, 1.2, 2.2."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from broker.cluster.api.restore import Restores
from broker.cluster.meta.assignments import (
    Assignment,
    AssignStream,
    ReconfigureStream,
    RemoveStream,
)
from broker.cluster.meta.placement import choose_peers
from broker.cluster.observe.advisories import Client
from broker.cluster.peers.rpc import CallFailed
from broker.jetstream.api.info import StreamInfo
from broker.jetstream.api.requests import RestoreRequest, StreamsRequest
from broker.jetstream.api.responses import (
    LIST_LIMIT,
    DidCreate,
    StreamList,
    Success,
    encode_response,
    encode_stream_names,
    page,
)
from broker.jetstream.api.subjects import ApiKind, ApiRequest
from broker.jetstream.config.api_levels import same_stream
from broker.jetstream.config.limits import check_account_limits
from broker.jetstream.config.stream_config import StreamConfig, StreamConfigRequest
from broker.jetstream.config.stream_rules import check_no_overlap, check_stream_create
from broker.jetstream.config.stream_update import check_stream_update
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.subjects import collides
from raft import NodeId

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.cluster.node import JetStreamNode

_encode = msgspec.msgpack.Encoder().encode
_infos = msgspec.msgpack.Decoder(list[StreamInfo])


@dataclass(slots=True)
class StreamApi:
    """One per node; answers at the node that was asked."""

    node: JetStreamNode
    restores: Restores = field(init=False)

    def __post_init__(self) -> None:
        self.restores = Restores(self.node, self.info, self.tell_leader)

    async def create(
        self, account: Account, request: ApiRequest, body: StreamConfigRequest
    ) -> bytes:
        view = self.node.tenancy.view(account.name)
        config = check_stream_create(body, named=request.stream, view=view)
        known = self.node.meta.get(account.name, config.name)
        if known is not None and not same_stream(known.config, config):
            raise JetStreamError(ErrCode.STREAM_NAME_EXIST)
        check_account_limits(config, view)
        check_no_overlap(config, view.streams.values())
        assignment = await self.node.meta_calls.change(
            AssignStream(account.name, config, time.time_ns(), self._peers(config))
        )
        info = await self.info(account, assignment)
        if known is None:
            self.node.advising.of_stream(account, config.name, "create")
        return encode_response(request.kind, info, DidCreate(did_create=True))

    def _peers(self, config: StreamConfig) -> list[int]:
        peers = self._choose(config, keep=())
        if peers is None:
            raise JetStreamError.of(
                ErrCode.CLUSTER_NO_PEERS, err="no suitable peers for placement, insufficient nodes"
            )
        return peers

    def _peers_after(self, known: Assignment, config: StreamConfig) -> list[int]:
        """The present ones go before others, and the leader before them."""
        if config.num_replicas == len(known.peers):
            return known.peers
        leader = self.node.leader(known.group)
        present = sorted(known.peers, key=lambda peer: peer != leader)
        peers = self._choose(config, keep=[NodeId(peer) for peer in present])
        if peers is None:
            raise JetStreamError.of(ErrCode.CLUSTER_NO_PEERS, err="no suitable peers for placement")
        return peers

    def _choose(self, config: StreamConfig, *, keep: Sequence[NodeId]) -> list[int] | None:
        peers = choose_peers(
            name=config.name,
            replicas=config.num_replicas,
            members=self.node.members,
            alive=self.node.mesh.connected,
            load=self.node.meta.load,
            keep=keep,
        )
        return None if peers is None else [int(peer) for peer in peers]

    def restore(
        self, account: Account, request: ApiRequest, body: RestoreRequest, client: Client
    ) -> bytes:
        """The stream comes with its archive; here only what can be known before is checked."""
        asked = body.config
        fields = {name: getattr(asked, name) for name in StreamConfig.__struct_fields__}
        fields |= {"name": asked.name or request.stream, "sealed": False}
        view = self.node.tenancy.view(account.name)
        config = check_stream_create(StreamConfigRequest(**fields), named=request.stream, view=view)
        if config.name in view.streams:
            raise JetStreamError(ErrCode.STREAM_NAME_EXIST_RESTORE_FAILED)
        check_account_limits(config, view)
        check_no_overlap(config, view.streams.values())
        config = msgspec.structs.replace(config, sealed=asked.sealed)
        return self.restores.begin(account, client, config, self._peers(config))

    async def update(
        self, account: Account, request: ApiRequest, body: StreamConfigRequest
    ) -> bytes:
        known = self.node.meta.get(account.name, request.stream)
        config = check_stream_update(
            body,
            named=request.stream,
            old=known.config if known is not None else None,
            consumers={},
            view=self.node.tenancy.view(account.name),
        )
        assert known is not None, "the check above wants it"
        peers = self._peers_after(known, config)
        assignment = await self.node.meta_calls.change(
            ReconfigureStream(account.name, config, peers, time.time_ns())
        )
        await self.tell_leader(assignment)
        self.node.advising.of_stream(account, config.name, "modify")
        return encode_response(request.kind, await self.info(account, assignment))

    async def tell_leader(self, assignment: Assignment) -> None:
        """Have the stream's own log take over its new configuration. If this fails, the next
        leader of the stream does it."""
        body = _encode((assignment.group, assignment.config))
        deadline = time.monotonic() + 5.0
        while True:
            leader = await self.node.wait_leader(assignment.group)
            try:
                await self.node.mesh.rpc.call(leader, "reconfigured", body)
            except CallFailed:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.02)
            else:
                return

    async def delete(self, account: Account, request: ApiRequest) -> bytes:
        if self.node.meta.get(account.name, request.stream) is None:
            raise JetStreamError(ErrCode.STREAM_NOT_FOUND)
        await self.node.meta_calls.change(RemoveStream(account.name, request.stream))
        self.node.advising.of_stream(account, request.stream, "delete")
        return encode_response(request.kind, Success(success=True))

    # -- which there are, and how they are ------------------------------------------------------

    def names(self, account: Account, body: StreamsRequest) -> bytes:
        names = [a.name for a in self._matching(account, body.subject)]
        return encode_stream_names(names, body.offset)

    def _matching(self, account: Account, subject: str) -> list[Assignment]:
        found = self.node.meta.of_account(account.name)
        if not subject:
            return found
        wanted = subject.encode()
        return [a for a in found if any(collides(p, wanted) for p in a.config.subject_patterns)]

    async def list(self, account: Account, body: StreamsRequest) -> bytes:
        part, paged = page(self._matching(account, body.subject), body.offset, limit=LIST_LIMIT)
        infos = await self._infos(account, part)
        missing = tuple(a.name for a in part if a.name not in infos)
        found = StreamList(tuple(infos[a.name] for a in part if a.name in infos), missing)
        return encode_response(ApiKind.STREAM_LIST, paged, found)

    async def info(self, account: Account, assignment: Assignment) -> StreamInfo:
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            await self.node.wait_leader(assignment.group)
            infos = await self._infos(account, [assignment], shown=True)
            if assignment.name in infos:
                return infos[assignment.name]
            await asyncio.sleep(0.02)  # elected, but not yet through with earlier terms
        raise JetStreamError.of(ErrCode.CLUSTER_NOT_AVAIL, definite=False)

    async def _infos(
        self, account: Account, wanted: Sequence[Assignment], *, shown: bool = False
    ) -> dict[str, StreamInfo]:
        """Infos by name, gathered from the leaders, one call per leading node."""
        by_leader: dict[NodeId, list[int]] = {}
        for assignment in wanted:
            leader = self.node.leader(assignment.group)
            if leader is not None:
                by_leader.setdefault(leader, []).append(assignment.group)
        found: dict[str, StreamInfo] = {}

        async def ask(leader: NodeId, groups: list[int]) -> None:
            try:
                answer = await self.node.mesh.rpc.call(
                    leader, "infos", _encode((groups, shown)), timeout_s=4.0
                )
            except (CallFailed, TimeoutError):
                return  # listed as missing
            found.update((info.config.name, info) for info in _infos.decode(answer))

        async with asyncio.TaskGroup() as tasks:
            for leader, groups in by_leader.items():
                tasks.create_task(ask(leader, groups))
        return found
