"""API requests that any node answers: account info, and the table of streams.

Owns: create, update, delete, restore, names, list; the checks before a change is proposed.
May not touch: the content of streams (leader_api.py), routing of requests (jetstream_api.py).
Spec: NATS JetStream API, INFO and STREAM.CREATE, UPDATE, DELETE, RESTORE, NAMES, LIST."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from broker.cluster.api.leader_calls import ApiCall, LeaderCalls
from broker.cluster.api.restore import Restores
from broker.cluster.api.stream_moves import StreamMoves
from broker.cluster.limits.account_limits import AccountQuotas
from broker.cluster.meta.assignments import (
    Assignment,
    AssignmentTable,
    AssignStream,
    ReconfigureStream,
    RemoveStream,
    StreamCommand,
)
from broker.cluster.meta.members import ClusterMembers
from broker.cluster.meta.meta_requests import MetaRequests
from broker.cluster.meta.placement import NoPlacement, PlacementView, choose_peers
from broker.cluster.meta.subject_overlaps import SubjectOverlaps
from broker.cluster.observe.advisories import Advisories
from broker.cluster.peers.rpc import CallFailed
from broker.cluster.polling import eventually
from broker.jetstream.api.info import ApiStats, StreamInfo
from broker.jetstream.api.requests import (
    PeerRequest,
    RequestBody,
    RestoreRequest,
    StreamsRequest,
    request_steps,
)
from broker.jetstream.api.responses import (
    LIST_LIMIT,
    DidCreate,
    StreamList,
    Success,
    encode_response,
    encode_stream_names,
    list_steps,
    page,
)
from broker.jetstream.api.stream_access import check_config
from broker.jetstream.api.subjects import ApiKind, ApiRequest
from broker.jetstream.config.api_levels import same_stream
from broker.jetstream.config.limits import check_account_limits
from broker.jetstream.config.origin_rules import check_new_mirror
from broker.jetstream.config.stream_config import StreamConfig, StreamConfigRequest
from broker.jetstream.config.stream_rules import stream_create_steps
from broker.jetstream.config.stream_update import stream_update_steps
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.server.routing.fair_queue import Turns
from broker.subjects import STEP_ITEMS, Steps, collides
from raft import NodeId

if TYPE_CHECKING:
    from broker.accounts import Account

_encode = msgspec.msgpack.Encoder().encode
_infos = msgspec.msgpack.Decoder(list[StreamInfo])

LEADER_WITHIN_S = 5.0
SERVED_WITHIN_S = 0.2  # then the leader is called even if it has not announced itself
CHECKS_MAX = 3  # attempts to check subjects, when large streams are created at the same time

T = TypeVar("T")


@dataclass(slots=True)
class StreamApi:
    """One per node; answers at the node that received the request."""

    strict: bool
    assignments: AssignmentTable
    members: ClusterMembers
    meta_requests: MetaRequests
    calls: LeaderCalls
    quotas: AccountQuotas
    advisories: Advisories
    restores: Restores
    overlaps: SubjectOverlaps
    turns: Turns
    captured: Callable[[int], bool]  # whether this node captures all subjects of the group
    placement: Callable[[], PlacementView]
    moves: StreamMoves

    async def answer(self, call: ApiCall, stats: ApiStats) -> bytes:
        """Raises the JetStreamError to answer with."""
        account, request, kind = call.account, call.request, call.request.kind
        if kind is ApiKind.STREAM_PEER_REMOVE:
            self.moves.require_cluster()
        body = await self.decoded(call)
        if not self.members.founded.is_set():
            raise JetStreamError(ErrCode.CLUSTER_NOT_AVAIL)
        match kind, body:
            case ApiKind.INFO, _:
                return encode_response(kind, await self.quotas.info(account.name, stats))
            case ApiKind.STREAM_CREATE, StreamConfigRequest():
                return await self.create(call, body)
            case ApiKind.STREAM_UPDATE, StreamConfigRequest():
                return await self.update(call, body)
            case ApiKind.STREAM_RESTORE, RestoreRequest():
                return await self.restore(call, body)
            case ApiKind.STREAM_DELETE, _:
                return await self.delete(account, request)
            case ApiKind.STREAM_NAMES, StreamsRequest():
                return await self.names(call, body)
            case ApiKind.STREAM_LIST, StreamsRequest():
                return await self.list(call, body)
        return await self._move(account, request, body)

    async def _move(self, account: Account, request: ApiRequest, body: RequestBody) -> bytes:
        match request.kind, body:
            case ApiKind.STREAM_PEER_REMOVE | ApiKind.STREAM_PEER_EVACUATE, PeerRequest():
                await self.moves.remove_peer(account.name, request.stream, body.peer)
                return encode_response(request.kind, Success(success=True))
            case ApiKind.STREAM_CANCEL_MOVE, _:
                back = await self.moves.cancel(account.name, request.stream)
                return encode_response(request.kind, await self.info(account, back))
        raise JetStreamError(ErrCode.CLUSTER_UN_SUPPORT_FEATURE)

    async def decoded(self, call: ApiCall) -> RequestBody:
        kind = call.request.kind
        return await self._in_turns(call, request_steps(kind, call.payload, strict=self.strict))

    async def create(self, call: ApiCall, body: StreamConfigRequest) -> bytes:
        account, request = call.account, call.request
        config = await self._in_turns(
            call,
            stream_create_steps(body, named=request.stream, view=self.quotas.view(account.name)),
        )
        check_new_mirror(config)
        check_config(call.rules, config, None)
        known = self.assignments.get(account.name, config.name)
        if known is not None and not same_stream(known.config, config):
            raise JetStreamError(ErrCode.STREAM_NAME_EXIST)
        check_account_limits(config, self.quotas.view(account.name))

        def assign(checked: int) -> AssignStream:
            peers = self._peers(config)
            return AssignStream(account.name, config, self.meta_requests.now_ns(), peers, checked)

        assignment = await self._change(call, config, assign)
        info = await self.info(account, assignment)
        if known is None:
            self.advisories.of_stream(account, config.name, "create")
        return encode_response(request.kind, info, DidCreate(did_create=True))

    async def _in_turns(self, call: ApiCall, steps: Steps[T]) -> T:
        return await self.turns.run(steps, call.account.name, _connection(call))

    async def _change(
        self, call: ApiCall, config: StreamConfig, command: Callable[[int], StreamCommand]
    ) -> Assignment:
        """Propose `command(index)`, where the subjects are free as of this meta index."""
        account = call.account.name
        for left in range(CHECKS_MAX, 0, -1):
            checked = await self.overlaps.check(account, config, _connection(call))
            try:
                assignment = await self.meta_requests.change(command(checked))
            except JetStreamError as refused:
                # Since the check, too many subjects were captured to compare with at apply.
                if refused.err_code != ErrCode.INSUFFICIENT_RESOURCES or left == 1:
                    raise
            else:  # once answered, the client may publish to any of the subjects
                captures = partial(self.captured, assignment.group)
                await eventually(captures, timeout_s=LEADER_WITHIN_S)
                return assignment
        raise AssertionError

    def _peers(self, config: StreamConfig) -> list[int]:
        return self._choose(config, keep=())

    def _peers_after(self, known: Assignment, config: StreamConfig) -> list[int]:
        """Peers for an updated configuration: the leader is preferred, then the current peers, then
        other nodes. An update that changes neither the number of replicas nor the placement moves
        nothing."""
        moves = config.placement is not None and config.placement != known.config.placement
        if config.num_replicas == known.config.num_replicas and not moves:
            return known.peers
        leader = self.calls.leader(known.group)
        present = sorted(known.peers, key=lambda peer: peer != leader)
        return self._choose(config, keep=[NodeId(peer) for peer in present])

    def _choose(self, config: StreamConfig, *, keep: Sequence[NodeId]) -> list[int]:
        view = self.placement()
        peers = choose_peers(
            view,
            name=config.name,
            replicas=config.num_replicas,
            keep=keep,
            # A single server has no other choice; nats-server does the same.
            placement=config.placement if self.members.clustered else None,
        )
        if isinstance(peers, NoPlacement):
            why = peers.sentence(view.unique_tag, self.members.name)
            raise JetStreamError.of(ErrCode.CLUSTER_NO_PEERS, err=why)
        return [int(peer) for peer in peers]

    async def restore(self, call: ApiCall, body: RestoreRequest) -> bytes:
        """Begin a restore. Checks everything that can be checked before the archive arrives."""
        account, request = call.account, call.request
        asked = body.config
        fields = {name: getattr(asked, name) for name in StreamConfig.__struct_fields__}
        fields |= {"name": asked.name or request.stream, "sealed": False}
        view = self.quotas.view(account.name)
        wanted = StreamConfigRequest(**fields)
        config = await self._in_turns(
            call, stream_create_steps(wanted, named=request.stream, view=view)
        )
        check_config(call.rules, config, None)
        if self.assignments.get(account.name, config.name) is not None:
            raise JetStreamError(ErrCode.STREAM_NAME_EXIST_RESTORE_FAILED)
        check_account_limits(config, self.quotas.view(account.name))
        await self.overlaps.check(account.name, config, _connection(call))
        config = msgspec.structs.replace(config, sealed=asked.sealed)
        return self.restores.begin(
            account,
            self.advisories.client(call.publisher, account),
            config,
            self._peers(config),
            info=self.info,
            reconfigure=self.reconfigure,
            change=partial(self._change, call),
        )

    async def update(self, call: ApiCall, body: StreamConfigRequest) -> bytes:
        account, request = call.account, call.request
        known = self.assignments.get(account.name, request.stream)
        steps = stream_update_steps(
            body,
            named=request.stream,
            old=known.config if known is not None else None,
            consumers={},
            view=self.quotas.view(account.name),
        )
        config = await self._in_turns(call, steps)
        assert known is not None, "stream_update_steps refuses a stream that does not exist"
        check_config(call.rules, config, known.config)
        old = known
        if config.consumer_limits != old.config.consumer_limits:
            await self._check_consumer_limits(old, config)

        def reconfigure(checked: int) -> ReconfigureStream:
            peers = self._peers_after(old, config)
            return ReconfigureStream(
                account.name, config, peers, self.meta_requests.now_ns(), checked
            )

        assignment = await self._change(call, config, reconfigure)
        await self.reconfigure(assignment)
        self.advisories.of_stream(account, config.name, "modify")
        return encode_response(request.kind, await self.info(account, assignment))

    async def _check_consumer_limits(self, known: Assignment, config: StreamConfig) -> None:
        """Only the stream's leader knows its consumers."""
        body = _encode((known.group, config))
        refusal = await self.calls.call(known.group, "check limits", body, within_s=LEADER_WITHIN_S)
        if refusal:
            raise JetStreamError.of(ErrCode.STREAM_UPDATE, err=refusal.decode())

    async def reconfigure(self, assignment: Assignment) -> None:
        """Ask the stream's leader to propose the new configuration to the stream's own log. If that
        fails, the next leader of the stream does it."""
        body = _encode((assignment.group, assignment.config))
        await self.calls.call(assignment.group, "reconfigured", body, within_s=LEADER_WITHIN_S)

    async def delete(self, account: Account, request: ApiRequest) -> bytes:
        """The table must be current (`barrier`), so that the right stream is deleted."""
        known = self.assignments.get(account.name, request.stream)
        if known is None:
            raise JetStreamError(ErrCode.STREAM_NOT_FOUND)
        await self.meta_requests.change(RemoveStream(account.name, known.name, known.created_ns))
        self.advisories.of_stream(account, request.stream, "delete")
        return encode_response(request.kind, Success(success=True))

    # -- reading --------------------------------------------------------------------------------

    async def names(self, call: ApiCall, body: StreamsRequest) -> bytes:
        found = await self._in_turns(call, self._matching(call.account, body.subject))
        return encode_stream_names([a.name for a in found], body.offset)

    def _matching(self, account: Account, subject: str) -> Steps[list[Assignment]]:
        """The streams with a subject that overlaps, in name order."""
        streams = self.assignments.of_account(account.name)
        if not subject:
            return streams
        wanted = subject.encode()
        found: list[Assignment] = []
        seen = 0
        for assignment in streams:
            for mine in assignment.config.subjects:
                seen += 1
                if seen % STEP_ITEMS == 0:
                    yield
                if collides(mine.encode(), wanted):
                    found.append(assignment)
                    break
        return found

    async def list(self, call: ApiCall, body: StreamsRequest) -> bytes:
        account = call.account
        streams = await self._in_turns(call, self._matching(account, body.subject))
        part, paged = page(streams, body.offset, limit=LIST_LIMIT)
        infos = await self._infos(account, part)
        missing = tuple(a.name for a in part if a.name not in infos)
        found = StreamList(tuple(infos[a.name] for a in part if a.name in infos), missing)
        return await self._in_turns(call, list_steps(ApiKind.STREAM_LIST, paged, found))

    async def info(self, account: Account, assignment: Assignment) -> StreamInfo:
        deadline = time.monotonic() + LEADER_WITHIN_S
        while time.monotonic() < deadline:
            await self.calls.wait_leader(assignment.group)
            # Elected, but entries of earlier terms are not applied yet.
            await self.calls.leaders.wait_served(assignment.group, timeout_s=SERVED_WITHIN_S)
            infos = await self._infos(account, [assignment], shown=True)
            if assignment.name in infos:
                return infos[assignment.name]
            await asyncio.sleep(0.02)
        raise JetStreamError.of(ErrCode.CLUSTER_NOT_AVAIL, definite=False)

    async def _infos(
        self, account: Account, wanted: Sequence[Assignment], *, shown: bool = False
    ) -> dict[str, StreamInfo]:
        """Infos by name, gathered from the leaders, one call per leading node."""
        by_leader: dict[NodeId, list[int]] = {}
        for assignment in wanted:
            leader = self.calls.leader(assignment.group)
            if leader is not None:
                by_leader.setdefault(leader, []).append(assignment.group)
        found: dict[str, StreamInfo] = {}

        async def ask(leader: NodeId, groups: list[int]) -> None:
            try:
                answer = await self.calls.rpc.call(
                    leader, "infos", _encode((groups, shown)), timeout_s=4.0
                )
            except (CallFailed, TimeoutError):
                return  # listed as missing
            found.update((info.config.name, info) for info in _infos.decode(answer))

        async with asyncio.TaskGroup() as tasks:
            for leader, groups in by_leader.items():
                tasks.create_task(ask(leader, groups))
        return found


def _connection(call: ApiCall) -> int:
    return call.publisher.cid if call.publisher is not None else 0
