"""The JetStream API as any node answers it.

Owns: the service on `$JS.API.>` of every account: which node does what is asked, and the answer's
way back to the client.
May not touch: stream state; what belongs to a stream is asked of its leader (leader_api.py).
A request is handled at the node its client is connected to and never travels as a message, so
every call works on every node.
Spec: JetStream sheet 1.1-1.6, 2.2."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from broker.cluster.api.bulk_get import answer_gets
from broker.cluster.api.leader_api import LeaderApi
from broker.cluster.api.stream_api import StreamApi
from broker.cluster.peers.rpc import CallFailed, CallRefused
from broker.jetstream.api.info import ApiStats
from broker.jetstream.api.requests import RestoreRequest, StreamsRequest, decode_request
from broker.jetstream.api.responses import encode_error, encode_response
from broker.jetstream.api.subjects import (
    SYSTEM_KINDS,
    ApiKind,
    ApiRequest,
    bucket_subject,
    parse_api_subject,
)
from broker.jetstream.config.api_levels import REQUIRED_LEVEL_HEADER, check_required_level
from broker.jetstream.config.stream_config import StreamConfigRequest
from broker.jetstream.consumer.ack_subjects import has_ack_form
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.store.block.block import BlockDamaged
from broker.subjects import PublishingConnection, SinkKind, Subscription
from broker.wire import PubRun
from broker.wire import headers as wire_headers

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.cluster.meta.assignments import Assignment
from broker.cluster.node import JetStreamNode
from raft import NodeId

API_SUBJECTS = b"$JS.API.>"
ACK_SUBJECTS = b"$JS.ACK.>"
DIRECT_GETS = b"$JS.API.DIRECT.GET."
READS = (DIRECT_GETS, b"$JS.API.STREAM.MSG.GET.")  # one may take milliseconds
NEXT_SUBJECTS = b".API.CONSUMER.MSG.NEXT."
FLOW_SUBJECTS = b"$JS.FC.>"
REQUESTS_MAX = 10_000  # being answered at once; more are dropped, as the reference server does
DIRECT_WITHIN_S = 2.0
ANSWER_WITHIN_S = 10.0

AckGroup = tuple[bytes, bytes, list[int], list[int]]  # stream, consumer, their sequences

_encode = msgspec.msgpack.Encoder().encode
_answers = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])

_STEPDOWNS = (ApiKind.STREAM_LEADER_STEPDOWN, ApiKind.CONSUMER_LEADER_STEPDOWN)
# Requests that belong to one stream and are answered by its leader.
LEADER_KINDS = frozenset(
    {
        ApiKind.STREAM_INFO, ApiKind.STREAM_PURGE, ApiKind.STREAM_MSG_GET,
        ApiKind.STREAM_MSG_DELETE, ApiKind.STREAM_LEADER_STEPDOWN, ApiKind.STREAM_SNAPSHOT,
        ApiKind.CONSUMER_CREATE,
        ApiKind.CONSUMER_NAMES, ApiKind.CONSUMER_LIST, ApiKind.CONSUMER_INFO,
        ApiKind.CONSUMER_DELETE, ApiKind.CONSUMER_PAUSE, ApiKind.CONSUMER_RESET,
        ApiKind.CONSUMER_LEADER_STEPDOWN, ApiKind.CONSUMER_UNPIN,
    }
)  # fmt: skip


@dataclass(slots=True)
class ApiCall:
    """One request as it came from a client of this node."""

    account: Account
    request: ApiRequest
    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes
    origin: PublishingConnection | None = None

    def encoded(self) -> bytes:
        """For another node: it reads the subject itself."""
        return _encode((self.account.name, self.subject, self.headers, self.payload))


@dataclass(slots=True)
class ApiService:
    """One per node. A SERVICE sink in every account that has JetStream."""

    node: JetStreamNode
    leader_api: LeaderApi
    streams: StreamApi
    kind: SinkKind = SinkKind.SERVICE
    total: int = 0
    errors: int = 0
    _running: int = 0
    _subscriptions: list[Subscription] = field(default_factory=list)
    # What the router hands over in whole runs (broker/server/routing/bulk_service.py).
    timed_prefixes: tuple[bytes, ...] = READS
    family_prefix: bytes = DIRECT_GETS
    compact_prefix: bytes = ACK_SUBJECTS[:-1]

    def start(self) -> None:
        self.node.server.router.serve_in_bulk(self)
        self.node.server.tracing.show_as_system(
            API_SUBJECTS[:-1], without=(DIRECT_GETS, b"$JS.API.CONSUMER.MSG.NEXT.")
        )
        rpc = self.node.mesh.rpc
        rpc.register("api", self._serve_leader)
        rpc.register("direct", self._serve_direct)
        rpc.register("infos", self.leader_api.serve_infos)

    def serve(self, account: Account) -> None:
        subjects = [API_SUBJECTS, ACK_SUBJECTS, FLOW_SUBJECTS]
        domain = self.node.options.domain.encode()
        if domain:
            subjects.append(b"$JS." + domain + b".API.>")
        for subject in subjects:
            sub = Subscription(sink=self, account=account, subject=subject)
            account.subs.insert(sub)
            self._subscriptions.append(sub)

    # -- the sink -------------------------------------------------------------------------------

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        origin: PublishingConnection | None,
    ) -> bool:
        taken = False
        for row in range(start, stop):
            taken = self._take(sub, *run.message(row), origin=origin) or taken
        return taken

    def deliver_timed(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        origin: PublishingConnection | None,
        *,
        deadline: float,
    ) -> tuple[int, list[int]]:
        account = self.node.server.account(sub.account.name)

        def otherwise(row: int) -> bool:
            return self._take(sub, *run.message(row), origin=origin)

        return answer_gets(
            self.node, account, run, start, stop, deadline=deadline, otherwise=otherwise
        )

    def compact_spans(self, run: PubRun) -> list[tuple[int, int, list[AckGroup]]]:
        return run.ack_spans()

    def deliver_compact(self, sub: Subscription, compact: list[AckGroup]) -> None:
        for stream, consumer, stream_seqs, consumer_seqs in compact:
            name = stream.decode(errors="replace")
            assignment = self.node.meta.get(sub.account.name, name)
            if assignment is not None:
                group = assignment.group
                self.node.errands.add_acks((group, consumer, stream_seqs, consumer_seqs))

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        return self._take(sub, subject, reply, headers, payload, origin=None)

    def _take(
        self,
        sub: Subscription,
        subject: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        *,
        origin: PublishingConnection | None,
    ) -> bool:
        account = self.node.server.account(sub.account.name)
        if sub.subject is ACK_SUBJECTS or sub.subject is FLOW_SUBJECTS:
            return self._errand(account, subject, reply, headers, payload)
        domain = self.node.options.domain.encode()
        bucket = bucket_subject(subject, domain=domain)
        if bucket is not None:
            return self.node.server.router.publish(account, bucket, reply, headers, payload) > 0
        request = parse_api_subject(subject, domain=domain)
        if request is None and NEXT_SUBJECTS in subject:
            return False  # nobody listens to pulls that name no consumer
        if request is None or request.kind in SYSTEM_KINDS:
            return True  # swallowed: the client times out, as with the reference server
        call = ApiCall(account, request, subject, reply, headers, payload, origin)
        if request.kind is ApiKind.CONSUMER_MSG_NEXT:
            return self._pull(call)
        if request.kind is ApiKind.DIRECT_GET:
            return self._direct(call)
        if request.kind is ApiKind.STREAM_MSG_GET and self._get_here(call):
            return True
        self._spawn(self._answer(call))
        return True

    def _spawn(self, work: Awaitable[None]) -> None:
        if self._running >= REQUESTS_MAX:
            asyncio.ensure_future(work).cancel()
            return
        self._running += 1
        self.node.spawn(self._counted(work), "api request")

    async def _counted(self, work: Awaitable[None]) -> None:
        try:
            await work
        finally:
            self._running -= 1

    # -- errands for a leader -------------------------------------------------------------------

    def _errand(
        self, account: Account, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        if subject.startswith(ACK_SUBJECTS[:-1]) and not has_ack_form(subject):
            return False
        tokens = subject.split(b".", 5)
        at = 2 if len(tokens) < 6 or subject.count(b".") < 10 else 4
        name = tokens[at] if len(tokens) > at else b""
        assignment = self.node.meta.get(account.name, name.decode(errors="replace"))
        if assignment is None:
            return False
        self.node.errands.add((assignment.group, subject, reply, headers, payload))
        return True

    def _pull(self, call: ApiCall) -> bool:
        assignment = self.node.meta.get(call.account.name, call.request.stream)
        if assignment is None:
            return False
        replica = self.node.replicas.get(assignment.group)
        if replica is not None and not replica.could_serve(call.request.consumer):
            return False
        if call.reply:
            errand = (assignment.group, call.subject, call.reply, call.headers, call.payload)
            self.node.errands.add(errand)
        return True

    # -- direct gets ----------------------------------------------------------------------------

    def _direct(self, call: ApiCall) -> bool:
        assignment = self.node.meta.get(call.account.name, call.request.stream)
        if assignment is None or not assignment.config.allow_direct:
            return False
        if not call.reply:
            return True
        replica = self.node.replicas.get(assignment.group)
        ours = replica is not None and replica.leading is not None and replica.reads_are_current
        if replica is not None and (ours or self._silent_alone(assignment)):
            found = self.leader_api.direct_get(replica, call.request, call.headers, call.payload)
            self._send(call, found)
        else:
            self._spawn(self._direct_by_leader(call, assignment.group))
        return True

    def _silent_alone(self, assignment: Assignment) -> bool:
        """Our disk takes no writes, so nobody leads the stream, but all that was ever
        acknowledged is here and nowhere else."""
        return assignment.holders == {self.node.node} and self.node.host.trouble() is not None

    async def _direct_by_leader(self, call: ApiCall, group: int) -> None:
        """Perhaps we are it, and have to make sure first."""
        deadline = time.monotonic() + DIRECT_WITHIN_S
        while (left := deadline - time.monotonic()) > 0:
            try:
                leader = await self.node.wait_leader(group, timeout_s=left)
                answer = await self.node.mesh.rpc.call(leader, "direct", call.encoded())
            except CallFailed:
                await asyncio.sleep(0.02)  # it leads no more: ask the next one
            except (JetStreamError, TimeoutError):
                return  # no answer is an honest answer: the client asks again
            else:
                self._send(call, _answers.decode(answer))
                return

    async def _serve_direct(self, _peer: NodeId, body: bytes) -> bytes:
        account, subject, headers, payload = _request.decode(body)
        request, replica = self.leader_api.find(account, subject)
        await self.leader_api.current(replica)
        return _encode(self.leader_api.direct_get(replica, request, headers, payload))

    def _send(self, call: ApiCall, messages: Sequence[tuple[bytes, bytes]]) -> None:
        for headers, payload in messages:
            self.node.server.router.publish(call.account, call.reply, b"", headers, payload)

    # -- requests with one JSON answer ----------------------------------------------------------

    async def _answer(self, call: ApiCall) -> None:
        kind = call.request.kind
        failed = False
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                check_required_level(_required_level(call.headers))
                if kind in _DECIDED_BY_META:
                    await self.node.meta_calls.current()
                if kind in LEADER_KINDS:
                    failed, body = await self._ask_leader(call)
                else:
                    body = await self._here(call)
        except JetStreamError as refused:
            failed, body = True, encode_error(kind, refused)
        except (TimeoutError, CallFailed):
            nobody = JetStreamError.of(ErrCode.CLUSTER_NOT_AVAIL, definite=False)
            failed, body = True, encode_error(kind, nobody)
        self._tell(call, body, failed=failed)

    def _get_here(self, call: ApiCall) -> bool:
        """A get that the leader of the stream can answer at once, which is here. Its client waits
        for its turn with many of them; tasks would all be done in one round of the loop."""
        assignment = self.node.meta.get(call.account.name, call.request.stream)
        replica = self.node.replicas.get(assignment.group) if assignment is not None else None
        if replica is None or replica.leading is None or not replica.reads_are_current:
            return False
        kind = call.request.kind
        try:
            check_required_level(_required_level(call.headers))
            body = self.leader_api.get_message(replica, call.payload)
        except JetStreamError as refused:
            self._tell(call, encode_error(kind, refused), failed=True)
        except BlockDamaged:
            return False  # a task meets it again and is logged; this connection stays
        else:
            self._tell(call, body, failed=False)
        return True

    def _tell(self, call: ApiCall, body: bytes, *, failed: bool) -> None:
        kind = call.request.kind
        if call.reply:
            self.node.server.router.publish(call.account, call.reply, b"", b"", body)
        if kind is not ApiKind.STREAM_MSG_GET or failed:  # a read that succeeds is no API use
            self.total += 1
            self.errors += failed
            self.node.advising.audit(call.account, call.origin, call.subject, call.payload, body)

    async def _here(self, call: ApiCall) -> bytes:
        account, request = call.account, call.request
        kind = request.kind
        body = decode_request(kind, call.payload, strict=self.node.options.strict)
        if kind in _NOT_YET:
            raise JetStreamError(ErrCode.CLUSTER_UN_SUPPORT_FEATURE)
        if not self.node.formed.is_set():
            raise JetStreamError(ErrCode.CLUSTER_NOT_AVAIL)
        match kind:
            case ApiKind.INFO:
                api = ApiStats(total=self.total, errors=self.errors)
                return encode_response(kind, await self.node.tenancy.info(account.name, api))
            case ApiKind.STREAM_CREATE:
                assert isinstance(body, StreamConfigRequest)
                return await self.streams.create(account, request, body)
            case ApiKind.STREAM_UPDATE:
                assert isinstance(body, StreamConfigRequest)
                return await self.streams.update(account, request, body)
            case ApiKind.STREAM_RESTORE:
                assert isinstance(body, RestoreRequest)
                client = self.node.advising.client(call.origin, account)
                return self.streams.restore(account, request, body, client)
            case ApiKind.STREAM_DELETE:
                return await self.streams.delete(account, request)
            case ApiKind.STREAM_NAMES:
                assert isinstance(body, StreamsRequest)
                return self.streams.names(account, body)
            case ApiKind.STREAM_LIST:
                assert isinstance(body, StreamsRequest)
                return await self.streams.list(account, body)
        raise JetStreamError(ErrCode.CLUSTER_UN_SUPPORT_FEATURE)

    async def _ask_leader(self, call: ApiCall) -> tuple[bool, bytes]:
        """The answer of the stream's leader, and whether it is a refusal. It is asked again when
        leadership moves meanwhile."""
        kind = call.request.kind
        assignment = self.node.meta.get(call.account.name, call.request.stream)
        if assignment is None:
            if kind in _STEPDOWNS and len(self.node.members) < 2:
                raise JetStreamError(ErrCode.CLUSTER_REQUIRED)
            # Bodies that cannot be read are told before a missing stream.
            decode_request(kind, call.payload, strict=self.node.options.strict)
            raise JetStreamError(ErrCode.STREAM_NOT_FOUND)
        body = call.encoded()
        deadline = time.monotonic() + 5.0
        while True:
            leader = await self.node.wait_leader(
                assignment.group, timeout_s=max(deadline - time.monotonic(), 0.0)
            )
            try:
                answer = await self.node.mesh.rpc.call(leader, "api", body)
                return answer[:1] == _REFUSED, answer[1:]
            except CallFailed as failed:
                again = isinstance(failed, CallRefused) or kind in _REPEATABLE
                if not again or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.02)

    async def _serve_leader(self, _peer: NodeId, body: bytes) -> bytes:
        account, subject, headers, payload = _request.decode(body)
        request, replica = self.leader_api.find(account, subject)
        try:
            return _DONE + await self.leader_api.answer(replica, request, headers, payload)
        except JetStreamError as refused:
            return _REFUSED + encode_error(request.kind, refused)


# What exists decides their answer: a delete that another node has answered must be known here.
_DECIDED_BY_META = frozenset({ApiKind.STREAM_CREATE, ApiKind.STREAM_RESTORE})


def _required_level(headers: bytes) -> bytes | None:
    return wire_headers.get(headers, REQUIRED_LEVEL_HEADER) if headers else None


_DONE, _REFUSED = b"\0", b"\1"  # before a leader's answer
_request = msgspec.msgpack.Decoder(tuple[str, bytes, bytes, bytes])
_NOT_YET = frozenset(
    {
        ApiKind.STREAM_PEER_REMOVE,
        ApiKind.STREAM_PEER_EVACUATE, ApiKind.STREAM_CANCEL_MOVE,
    }
)  # fmt: skip
# Asking twice does no harm: reads, and changes that name their outcome.
_REPEATABLE = frozenset(
    LEADER_KINDS
    - {
        ApiKind.STREAM_LEADER_STEPDOWN, ApiKind.CONSUMER_LEADER_STEPDOWN,
        ApiKind.CONSUMER_CREATE, ApiKind.STREAM_MSG_DELETE, ApiKind.STREAM_SNAPSHOT,
    }
)  # fmt: skip
