"""API requests that the leader of a stream answers.

Owns: what each request does to, or reads from, one stream.
May not touch: routing of requests and answers (jetstream_api.py).
Changes are proposed and answered when applied; reads are served from the leader's applied state.
Spec: NATS JetStream API, the requests that name a stream or a consumer."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

import msgspec

from broker.cluster.api import direct_get as direct
from broker.cluster.api.backup import Snapshots
from broker.cluster.api.leader_calls import decode_api_call
from broker.cluster.limits.account_limits import AccountQuotas
from broker.cluster.limits.request_budget import RequestBudget
from broker.cluster.observe.advisories import Advisories
from broker.cluster.observe.asset_info import AssetInfo, details_bytes, info_details
from broker.cluster.peers.rpc import CallRefused, Rpc
from broker.cluster.proposals import LostLeadership
from broker.cluster.replica.replica import Replica
from broker.cluster.replica.replica_table import ReplicaTable
from broker.jetstream.api.requests import (
    MsgDeleteRequest,
    MsgGetRequest,
    PagedRequest,
    PauseRequest,
    PurgeRequest,
    RequestBody,
    ResetRequest,
    SnapshotRequest,
    StepdownRequest,
    StreamInfoRequest,
    UnpinRequest,
    decode_request,
    named_consumer,
    request_steps,
)
from broker.jetstream.api.responses import (
    INFOS_PER_STEP,
    LIST_LIMIT,
    ConsumerList,
    Paged,
    Paused,
    Purged,
    Reset,
    Success,
    encode_consumer_names,
    encode_error,
    encode_response,
    list_steps,
    page,
)
from broker.jetstream.api.subjects import ApiKind, ApiRequest, parse_api_subject
from broker.jetstream.commands.consumer_commands import Acks
from broker.jetstream.commands.publish_entry import mirror_prefix
from broker.jetstream.commands.stream_commands import (
    AnyCommand,
    CreateConsumer,
    DeleteConsumer,
    DeleteMessage,
    LoadState,
    PauseConsumer,
    Purge,
    ResetConsumer,
    UpdateConfig,
)
from broker.jetstream.config import (
    AckPolicy,
    ConsumerConfig,
    ConsumerCreateRequest,
    StreamConfig,
)
from broker.jetstream.config.consumer_rules import consumer_config_steps
from broker.jetstream.config.consumer_update import (
    check_consumer_update,
    check_repeated_create,
    decide_create,
    is_internal,
    sourcing_consumer,
    without_default_threshold,
)
from broker.jetstream.config.names import NUID_RANDOM_BYTES, consumer_name
from broker.jetstream.config.stream_config import Retention
from broker.jetstream.config.stream_update import check_consumer_limits
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.stream.purge import purge_scope
from broker.server.routing.fair_queue import Turns, some_steps
from broker.store.block.block_format import BlockDamaged
from broker.store.removal import PurgePart
from broker.subjects import finish
from raft import NodeId, RaftError
from raft.host.group import GroupStopped

_encode = msgspec.msgpack.Encoder().encode
_groups = msgspec.msgpack.Decoder(tuple[list[int], bool])
_load = msgspec.msgpack.Decoder(tuple[int, bytes, bytes])
_state = msgspec.msgpack.Decoder(LoadState)
_reconfigured = msgspec.msgpack.Decoder(tuple[int, StreamConfig])

CURRENT_WITHIN_S = 2.0
DONE, REFUSED = b"\0", b"\1"  # the first byte of a leader's answer


@dataclass(slots=True)
class LeaderApi:
    """One per node."""

    node: NodeId
    domain: bytes
    strict: bool
    replicas: ReplicaTable
    rpc: Rpc
    info: AssetInfo
    quotas: AccountQuotas
    advisories: Advisories
    snapshots: Snapshots
    budget: RequestBudget
    turns: Turns

    def start(self) -> None:
        self.rpc.register("api", self._serve_request)
        self.rpc.register("infos", self._serve_infos)
        self.rpc.register("reconfigured", self._serve_reconfigured)
        self.rpc.register("check limits", self._serve_check_limits)
        self.rpc.register("load", self._serve_load)

    def find(self, account: str, subject: bytes) -> tuple[ApiRequest, Replica]:
        """The request and the led stream it is for. CallRefused: the caller should ask again."""
        request = parse_api_subject(subject, domain=self.domain)
        assert request is not None, "only understood requests are forwarded"
        replica = self.replicas.of_stream(account, request.stream)
        if replica is None or replica.leading is None:
            raise CallRefused(f"not the leader of {request.stream}")
        return request, replica

    async def _serve_request(self, _peer: NodeId, body: bytes) -> bytes:
        account, subject, _headers, payload = decode_api_call(body)
        request, replica = self.find(account, subject)
        try:
            return DONE + await self._answer(replica, request, payload)
        except JetStreamError as refused:
            return REFUSED + encode_error(request.kind, refused)
        except BlockDamaged as damage:
            return REFUSED + encode_error(request.kind, direct.refusal(damage, replica.assignment))

    async def _answer(self, replica: Replica, request: ApiRequest, payload: bytes) -> bytes:
        """Raises the JetStreamError to answer with, or CallRefused when leadership was lost."""
        account = replica.account.name
        steps = request_steps(request.kind, payload, strict=self.strict)
        body = await self.turns.run(steps, account, replica)
        match body:
            case StreamInfoRequest():
                return await self._stream_info(replica, body)
            case PurgeRequest():
                return await self._purge(replica, body)
            case MsgGetRequest():
                await self.wait_current(replica)
                find = direct.find_message(replica.stream.store, body)
                return direct.shown(await self.turns.run(find, account, replica), body)
            case MsgDeleteRequest():
                return await self._delete_message(replica, body)
            case SnapshotRequest():
                return self.snapshots.begin(replica, body)
            case StepdownRequest():
                return self._stepdown(replica, request.kind, body)
            case PagedRequest():
                return await self._consumers(replica, request.kind, body.offset)
            case _:
                return await self._answer_consumer(replica, request, body)

    async def _answer_consumer(
        self, replica: Replica, request: ApiRequest, body: RequestBody
    ) -> bytes:
        kind = request.kind
        match body:
            case ConsumerCreateRequest():
                return await self._create_consumer(replica, request, body)
            case PauseRequest():
                return await self._pause(replica, request, body)
            case ResetRequest():
                return await self._reset(replica, request, body)
        consumer = self._consumer(replica, request)
        if isinstance(body, UnpinRequest):
            if body.group not in consumer.config.priority_groups:
                raise JetStreamError(ErrCode.CONSUMER_INVALID_PRIORITY_GROUP)
            assert replica.leading is not None
            replica.leading.unpin(consumer.name)
            return encode_response(kind)
        if kind is ApiKind.CONSUMER_INFO:
            return await self._consumer_info(replica, consumer)
        assert kind is ApiKind.CONSUMER_DELETE, f"{kind} has no handler"
        await self._propose(replica, DeleteConsumer(replica.stamp(), request.consumer))
        return encode_response(kind, Success(success=True))

    async def _consumer_info(self, replica: Replica, consumer: Consumer) -> bytes:
        """The current numbers, once they are committed, so that no later leader shows a lower ack
        floor."""
        await self.wait_current(replica)
        await self._count(replica, consumer)
        shown = self.info.consumer(replica, consumer, shown=True)
        acked = consumer.config.ack_policy is not AckPolicy.NONE
        if acked and shown.ack_floor.stream_seq > consumer.state.floor_stream_seq:
            await self._settle(replica)
            if shown.ack_floor.stream_seq > consumer.state.floor_stream_seq:
                # The acks were refused, as on a full disk: show the committed numbers.
                pending = consumer.num_pending()
                shown = self.info.consumer(replica, consumer, shown=True, fresh_pending=pending)
        return encode_response(ApiKind.CONSUMER_INFO, shown)

    async def _settle(self, replica: Replica) -> None:
        """Wait until the acks received so far are applied."""
        if replica.leading is not None:
            replica.leading.propose_changes()
        if not replica.has_unapplied:
            return
        try:
            await self._propose(replica, Acks(replica.stamp(), []))  # applied after those
        except CallRefused as refused:
            if not isinstance(refused.__cause__, GroupStopped):
                raise
            # Refused, as on a full disk: show what is applied.

    async def wait_current(self, replica: Replica) -> None:
        """Wait until the local state includes everything that was committed before the call.
        Usually returns immediately, but not after this process was paused or lost its peers for a
        moment: another node may lead by then. Raises CallRefused if it does."""
        if replica.reads_are_current:
            return
        try:
            async with asyncio.timeout(CURRENT_WITHIN_S):
                await replica.read_barrier()
        except (RaftError, TimeoutError) as error:
            raise CallRefused(f"cannot tell whether {replica.name} is led here") from error

    # -- streams --------------------------------------------------------------------------------

    async def _stream_info(self, replica: Replica, body: StreamInfoRequest) -> bytes:
        if replica.stream.config.retention is not Retention.LIMITS:
            await self._settle(replica)  # acks may remove messages, which a client expects to see
        if not (size := details_bytes(replica, body)):
            return self._encoded_info(replica)
        account = replica.account.name
        async with self.budget.holding(account, size):
            found = await self.turns.run(info_details(replica, body), account, replica)
            return self._encoded_info(replica, *found)

    def _encoded_info(
        self,
        replica: Replica,
        deleted: tuple[int, ...] = (),
        counts: dict[str, int] | None = None,
        paged: Paged | None = None,
    ) -> bytes:
        info = self.info.stream(
            replica, shown=True, deleted=deleted, subjects=counts, with_alternates=True
        )
        return encode_response(ApiKind.STREAM_INFO, paged or Paged(), info)

    def get_message(self, replica: Replica, payload: bytes) -> bytes | None:
        """The answer to MSG.GET of a stream whose reads are current; None if it needs a long
        search. Raises the JetStreamError to answer with."""
        body = decode_request(ApiKind.STREAM_MSG_GET, payload, strict=self.strict)
        assert isinstance(body, MsgGetRequest)
        done, message = some_steps(direct.find_message(replica.stream.store, body))
        return direct.shown(message, body) if done else None

    async def _purge(self, replica: Replica, body: PurgeRequest) -> bytes:
        pattern = body.filter.encode()
        if pattern in (b"", b">"):
            command = Purge(replica.stamp(), pattern, body.seq, body.keep)
            purged = await self._propose(replica, command)
            assert isinstance(purged, int)
        else:
            purged = await self._purge_parts(replica, pattern, body)
        return encode_response(ApiKind.STREAM_PURGE, Purged(success=True, purged=purged))

    async def _purge_parts(self, replica: Replica, pattern: bytes, body: PurgeRequest) -> int:
        """The leader searches for what to purge, in steps; replicas apply commands that name a few
        subjects, or ranges of sequences."""
        store, account = replica.stream.store, replica.account.name
        await self.wait_current(replica)
        scope = await self.turns.run(purge_scope(store.index, pattern), account, replica)
        config = replica.stream.config
        if scope.messages <= body.keep and not (config.sealed or config.deny_purge):
            return 0
        bound = min(body.seq or store.last_seq + 1, store.last_seq + 1)
        command = Purge(
            replica.stamp(), pattern, bound, body.keep, start=0, subjects=scope.subjects
        )
        if not scope.subjects and not body.keep:
            command = Purge(
                replica.stamp(), pattern, bound, start=store.first_seq, left=scope.messages
            )
        purged = 0
        while True:
            part = await self._propose(replica, command)
            assert isinstance(part, PurgePart)
            purged += part.count
            if not part.next_seq:
                return purged
            command = Purge(
                replica.stamp(), pattern, part.bound, start=part.next_seq, left=part.left
            )

    async def _delete_message(self, replica: Replica, body: MsgDeleteRequest) -> bytes:
        await self._propose(replica, DeleteMessage(replica.stamp(), body.seq, body.no_erase))
        return encode_response(ApiKind.STREAM_MSG_DELETE, Success(success=True))

    def _stepdown(self, replica: Replica, kind: ApiKind, body: StepdownRequest) -> bytes:
        if not self.info.members.clustered:
            raise JetStreamError(ErrCode.CLUSTER_REQUIRED)
        others = replica.other_voters()
        preferred = body.placement.preferred if body.placement is not None else ""
        if preferred:
            wanted = self.info.members.named(preferred)
            leads = wanted == self.node
            others = [peer for peer in others if peer == wanted]
            if not others:
                problem = "is already leader" if leads else "not known"
                raise JetStreamError.of(
                    ErrCode.CLUSTER_NO_PEERS, err=f'preferred server "{preferred}" {problem}'
                )
        connected = [peer for peer in others if self.info.links.connected(peer)]
        if connected:
            try:
                replica.transfer(connected[0])
            except RaftError as error:
                raise CallRefused(str(error)) from error
        return encode_response(kind, Success(success=True))

    async def _serve_reconfigured(self, _peer: NodeId, body: bytes) -> bytes:
        """The meta group has a new configuration: propose it to the stream's own log."""
        group, config = _reconfigured.decode(body)
        replica = self.replicas.led(group)
        if replica is None:
            raise CallRefused("not the leader")
        if replica.stream.config != config:
            await self._propose(replica, UpdateConfig(replica.stamp(), config))
        return b""

    async def _serve_check_limits(self, _peer: NodeId, body: bytes) -> bytes:
        """Called before consumer limits are lowered: the error, if consumers of the stream exceed
        the new limits; empty if none does."""
        group, config = _reconfigured.decode(body)
        replica = self.replicas.led(group)
        if replica is None:
            raise CallRefused("not the leader")
        consumers = {c.name: c.config for c in replica.consumers()}
        try:
            check_consumer_limits(replica.stream.config, config, consumers)
        except JetStreamError as refused:
            return refused.description.encode()
        return b""

    async def _serve_load(self, _peer: NodeId, body: bytes) -> bytes:
        """Part of a restore: messages with their old sequences, or state (restore.py)."""
        group, block, state = _load.decode(body)
        replica = self.replicas.led(group)
        if replica is None:
            raise CallRefused("not the leader")
        if state:
            command = _state.decode(state)
            await self._propose(replica, msgspec.structs.replace(command, now_ns=replica.stamp()))
            return b""
        try:
            await replica.propose_raw(mirror_prefix(time_ns=replica.stamp()) + block)
        except (RaftError, LostLeadership) as error:
            raise CallRefused(str(error) or "leadership lost") from error
        return b""

    # -- consumers ------------------------------------------------------------------------------

    def _consumer(self, replica: Replica, request: ApiRequest) -> Consumer:
        consumer = replica.stream.consumers.get(request.consumer)
        if consumer is None:
            raise JetStreamError(ErrCode.CONSUMER_NOT_FOUND)
        return consumer

    async def _create_consumer(
        self, replica: Replica, request: ApiRequest, body: ConsumerCreateRequest
    ) -> bytes:
        stream = replica.stream
        config = named_consumer(body, request)
        check_repeated_create(body.action, config, exists=config.name in stream.consumers)
        suffix = consumer_name(secrets.token_bytes(NUID_RANDOM_BYTES))
        config = sourcing_consumer(config, stream=stream.config, suffix=suffix)
        view = self.quotas.view(replica.account.name)
        steps = consumer_config_steps(
            config, stream=stream.config, view=view, pedantic=body.pedantic
        )
        asked = config.inactive_threshold
        config = await self.turns.run(steps, replica.account.name, replica)
        name = config.name or config.durable_name or suffix
        config = without_default_threshold(stream.consumer_configs.get(name), config, asked=asked)
        decide_create(  # checked again at apply, where the account's limit is not known
            name,
            config,
            body.action,
            stream=stream.config,
            consumers=stream.consumer_configs,
            account_max_consumers=view.limits_of(stream.config).max_consumers,
        )
        self._check_bound_change(replica, name, config)
        known = stream.consumers.get(name)
        seen = "" if known is None else known.config.deliver_subject
        await self._propose(
            replica, CreateConsumer(replica.stamp(), name, config, str(body.action), seen)
        )
        consumer = stream.consumers.get(name)
        if consumer is None:
            raise JetStreamError(ErrCode.CONSUMER_NOT_FOUND)
        if known is None:
            pending = await self._count(replica, consumer)
            if pending is None:
                pending = await self.turns.run(consumer.counting(), replica.account.name, replica)
            shown = self.info.consumer(replica, consumer, shown=True, fresh_pending=pending)
        else:
            await self._count(replica, consumer)
            shown = self.info.consumer(replica, consumer, shown=True)
        return encode_response(ApiKind.CONSUMER_CREATE, shown)

    async def _count(self, replica: Replica, *consumers: Consumer) -> int | None:
        """Count num_pending for the infos of these consumers, in steps. Returns the number of the
        last one before its first delivery; None if this node does not serve it."""
        pending = None
        for consumer in consumers:
            if replica.leading is not None:
                steps = replica.leading.counting(consumer.name)
                pending = await self.turns.run(steps, replica.account.name, replica)
        return pending

    def _check_bound_change(self, replica: Replica, name: str, config: ConsumerConfig) -> None:
        """Checked here and not at apply: only the leader knows whether a subscriber is bound."""
        known = replica.stream.consumers.get(name)
        if known is None or known.config.deliver_subject == config.deliver_subject:
            return
        assert replica.leading is not None
        bound = replica.leading.push_bound(name)
        if known.config.is_push and config.is_push:
            check_consumer_update(known.config, config, is_bound=bound)

    async def _consumers(self, replica: Replica, kind: ApiKind, offset: int) -> bytes:
        visible = sorted(
            (c for c in replica.consumers() if not is_internal(c.config)),
            key=lambda consumer: consumer.name,
        )
        if kind is ApiKind.CONSUMER_NAMES:
            return encode_consumer_names([c.name for c in visible], offset)
        part, paged = page(visible, offset, limit=LIST_LIMIT)
        await self._count(replica, *part)
        account = replica.account.name
        infos = await self.turns.run(self.info.consumers(replica, part), account, replica)
        return await self.turns.run(list_steps(kind, paged, ConsumerList(infos)), account, replica)

    async def _pause(self, replica: Replica, request: ApiRequest, body: PauseRequest) -> bytes:
        consumer = self._consumer(replica, request)
        now, until = replica.stamp(), body.pause_until
        kept = replica.rules > 0
        await self._propose(replica, PauseConsumer(now, request.consumer, until, kept))
        self.advisories.of_pause(replica.account, replica.name, consumer)
        left = max(until - now, 0)
        paused = Paused(paused=left > 0, pause_until=until, pause_remaining=left)
        return encode_response(ApiKind.CONSUMER_PAUSE, paused)

    async def _reset(self, replica: Replica, request: ApiRequest, body: ResetRequest) -> bytes:
        consumer = self._consumer(replica, request)
        result = await self._propose(
            replica, ResetConsumer(replica.stamp(), request.consumer, body.seq)
        )
        await self._count(replica, consumer)
        info = self.info.consumer(replica, consumer, shown=True)
        reset_seq = result if isinstance(result, int) else 0
        return encode_response(ApiKind.CONSUMER_RESET, info, Reset(reset_seq))

    # -- for lists and account info, asked by other nodes ---------------------------------------

    async def _serve_infos(self, _peer: NodeId, body: bytes) -> bytes:
        groups, shown = _groups.decode(body)
        led = [replica for replica in map(self.replicas.led, groups) if replica is not None]
        steps = self.info.streams(led, shown=shown)
        if len(led) < INFOS_PER_STEP:
            return _encode(finish(steps))
        return _encode(await self.turns.run(steps, led[0].account.name, led[0]))

    async def _propose(self, replica: Replica, command: AnyCommand) -> object:
        try:
            result = await replica.propose(command)
        except (RaftError, LostLeadership) as error:
            raise CallRefused(str(error) or "leadership lost") from error
        if isinstance(result, JetStreamError):
            raise result
        return result
