"""The JetStream API at the node a client is connected to.

Owns: the service on `$JS.API.>`, `$JS.ACK.>` and `$JS.FC.>` of every account: which node answers
a request, and sending the answer to the client.
May not touch: stream state; the leader of a stream answers for it (leader_api.py).
A request is handled at the node its client is connected to, and is not routed as a message, so that
every call works on every node.
Spec: NATS JetStream API."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from broker.cluster.api.direct_get import BATCH_BYTES_MAX
from broker.cluster.api.leader_api import REFUSED
from broker.cluster.api.leader_calls import ApiCall, LeaderCalls
from broker.cluster.api.message_gets import DIRECT_GET, MessageGets, StartWork
from broker.cluster.api.stream_api import StreamApi
from broker.cluster.consumer_requests.forwarding import RequestForwarder
from broker.cluster.consumer_requests.request_order import RequestOrder
from broker.cluster.limits.request_budget import RequestBudget
from broker.cluster.meta.assignments import AssignmentTable
from broker.cluster.meta.meta_requests import MetaRequests
from broker.cluster.observe.advisories import Advisories
from broker.cluster.peers.rpc import CallFailed
from broker.cluster.publish.pub_acks import ReplyRouter
from broker.cluster.replica.replica_table import ReplicaTable
from broker.jetstream.api.info import ApiStats
from broker.jetstream.api.requests import REQUIRED_API_LEVEL, RequestBody, SnapshotRequest
from broker.jetstream.api.responses import encode_error
from broker.jetstream.api.stream_access import check_delivery, evades_deny
from broker.jetstream.api.stream_identity import checked_identity
from broker.jetstream.api.subjects import (
    SYSTEM_KINDS,
    ApiKind,
    bucket_subject,
    parse_api_subject,
)
from broker.jetstream.config.api_levels import (
    REQUIRED_LEVEL_HEADER,
    check_required_level,
    level_is_met,
)
from broker.jetstream.config.consumer_config import ConsumerCreateRequest
from broker.jetstream.consumer.ack_subjects import has_ack_form
from broker.jetstream.delivery.pull_queue import LEADERSHIP_CHANGE, status
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.server.routing.service_sink import ServiceSink
from broker.store.block.codec import BlockDamaged
from broker.subjects import PublishingConnection, SinkKind, Subscription
from broker.wire import PubRun
from broker.wire import headers as wire_headers

if TYPE_CHECKING:
    from broker.accounts import Account

API_SUBJECTS = b"$JS.API.>"
ACK_SUBJECTS = b"$JS.ACK.>"

READS = (DIRECT_GET, b"$JS.API.STREAM.MSG.GET.")  # a single one may take milliseconds
NEXT_SUBJECTS = b".API.CONSUMER.MSG.NEXT."
FLOW_SUBJECTS = b"$JS.FC.>"
REQUEST_BYTES = 2048  # estimated memory of a request, besides its body
HELD_PER_BYTE = 8  # estimated memory per byte of a body, for decoded values and the answer
MESSAGE_BYTES = 256 << 10  # estimated size of the answer to a get of one message: few are larger
# Concurrent requests; more are dropped, as in nats-server. Accounts share them: an account without
# pending requests is served however many others wait.
REQUESTS_MAX = 8_000
REQUESTS_MIN = 64  # concurrent requests that every account may have
ANSWER_WITHIN_S = 10.0
LEADER_WITHIN_S = 5.0

AckGroup = tuple[bytes, bytes, list[int], list[int]]  # stream, consumer, their sequences

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
WITHOUT_JSON = frozenset({ApiKind.CONSUMER_MSG_NEXT, ApiKind.DIRECT_GET})  # have no JSON answer
# Requests that may be repeated: reads, and idempotent changes.
_REPEATABLE = frozenset(
    LEADER_KINDS
    - {
        ApiKind.STREAM_LEADER_STEPDOWN, ApiKind.CONSUMER_LEADER_STEPDOWN,
        ApiKind.CONSUMER_CREATE, ApiKind.STREAM_MSG_DELETE, ApiKind.STREAM_SNAPSHOT,
    }
)  # fmt: skip
_DELIVERING = (ApiKind.CONSUMER_CREATE, ApiKind.STREAM_SNAPSHOT)
# The answer depends on which streams exist, so a delete that another node has already answered
# must be applied here first.
_NEEDS_CURRENT_TABLE = frozenset({ApiKind.STREAM_CREATE, ApiKind.STREAM_RESTORE})


@dataclass(slots=True)
class ApiService(ServiceSink):
    """One per node. A SHARED sink in every account that has JetStream."""

    domain: bytes
    strict: bool
    router: ReplyRouter
    account: Callable[[str], Account]
    assignments: AssignmentTable
    replicas: ReplicaTable
    clustered: Callable[[], bool]
    requests: RequestForwarder
    meta_requests: MetaRequests
    calls: LeaderCalls
    advisories: Advisories
    streams: StreamApi
    gets: MessageGets
    budget: RequestBudget
    spawn: Callable[[Awaitable[None], str], object]
    kind: SinkKind = SinkKind.SHARED
    # Requests answered, and errors among them: per account, and in total under "".
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    # The router passes these in whole runs (broker/server/routing/bulk_service.py).
    timed_prefixes: tuple[bytes, ...] = READS
    family_prefix: bytes = DIRECT_GET
    compact_prefix: bytes = ACK_SUBJECTS[:-1]
    order: RequestOrder = field(default_factory=RequestOrder)
    dropped: int = 0  # requests beyond the share of their account
    _running: Counter[str] = field(default_factory=Counter)  # by account

    def subscriptions(self, account: Account) -> list[Subscription]:
        subjects = [API_SUBJECTS, ACK_SUBJECTS, FLOW_SUBJECTS]
        if self.domain:
            subjects.append(b"$JS." + self.domain + b".API.>")
        return [Subscription(sink=self, account=account, subject=subject) for subject in subjects]

    def statistics(self, account: str = "") -> ApiStats:
        """The requests of an account, or of all."""
        total, errors = self.counts.get(account, (0, 0))
        return ApiStats(total=total, errors=errors)

    # -- the sink -------------------------------------------------------------------------------

    def deliver_timed(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
        *,
        deadline: float,
    ) -> tuple[int, list[int]]:
        account = self.account(sub.account.name)

        def otherwise(row: int) -> bool:
            return self.receive(sub, *run.message(row), publisher=publisher)

        return self.gets.answer_run(
            account, run, start, stop, deadline=deadline, otherwise=otherwise
        )

    def deliver_timed_one(
        self, sub: Subscription, run: PubRun, publisher: PublishingConnection | None
    ) -> bool:
        message = run.message(0)
        if self.gets.answer_one(self.account(sub.account.name), message):
            return True
        return self.receive(sub, *message, publisher=publisher)

    def compact_spans(self, run: PubRun) -> list[tuple[int, int, list[AckGroup]]]:
        return run.ack_spans()

    def deliver_compact(self, sub: Subscription, compact: list[AckGroup]) -> None:
        for stream, consumer, stream_seqs, consumer_seqs in compact:
            name = stream.decode(errors="replace")
            assignment = self.assignments.get(sub.account.name, name)
            if assignment is not None:
                group = assignment.group
                self.requests.add_acks((group, consumer, stream_seqs, consumer_seqs))

    def receive(
        self,
        sub: Subscription,
        subject: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        *,
        publisher: PublishingConnection | None,
    ) -> bool:
        account = self.account(sub.account.name)
        if sub.subject is ACK_SUBJECTS or sub.subject is FLOW_SUBJECTS:
            return self._forward(account, subject, reply, headers, payload)
        rules = None if publisher is None else publisher.rules
        denied = evades_deny(rules, subject, domain=self.domain)
        if denied is not None:
            return self._refuse_alias(account, subject, reply, denied)
        bucket = bucket_subject(subject, domain=self.domain)
        if bucket is not None:
            return self.router.publish(account, bucket, reply, headers, payload) > 0
        request = parse_api_subject(subject, domain=self.domain)
        if request is None and NEXT_SUBJECTS in subject:
            return False  # a pull that names no consumer has no responders
        if request is None or request.kind in SYSTEM_KINDS:
            return True  # not answered: the client times out, as with nats-server
        call = ApiCall(account, request, subject, reply, headers, payload, publisher)
        if request.kind in WITHOUT_JSON:
            if not self.streams.members.learned.is_set() and reply and self._is_unknown(call):
                self._spawn_get(call, partial(self._when_learned, call))
                return True
            return self._without_json(call)
        if request.kind is ApiKind.STREAM_MSG_GET and self._get_here(call):
            return True
        self._begin(call)
        return True

    def _without_json(self, call: ApiCall) -> bool:
        """Serve a pull request or a direct get. False: there is no responder."""
        if call.request.kind is ApiKind.CONSUMER_MSG_NEXT:
            return self._pull(call)
        return self.gets.direct(call, partial(self._spawn_get, call))

    async def _when_learned(self, call: ApiCall) -> None:
        """The stream table of this node is outdated: wait for the current one before answering "no
        responders"."""
        try:
            async with asyncio.timeout(LEADER_WITHIN_S):
                await self.streams.members.learned.wait()
        except TimeoutError:
            # A get without an answer is retried by the client; a pull might wait forever.
            if call.request.kind is ApiKind.CONSUMER_MSG_NEXT:
                header = status(LEADERSHIP_CHANGE)
                self.router.publish(call.account, call.reply, b"", header, b"")
            return
        if not self._without_json(call):
            header = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % call.subject
            self.router.publish(call.account, call.reply, b"", header, b"")

    def _refuse_alias(self, account: Account, subject: bytes, reply: bytes, denied: bytes) -> bool:
        """An API subject with the domain must not allow what is denied for the plain subject."""
        request = parse_api_subject(subject, domain=self.domain)
        if reply and request is not None:
            shown = denied.decode(errors="backslashreplace")
            text = f'Permissions Violation for Publish to "{shown}"'
            refused = JetStreamError.of(ErrCode.STREAM_INVALID_CONFIG, err=text)
            self.router.publish(account, reply, b"", b"", encode_error(request.kind, refused))
        return True

    def _begin(self, call: ApiCall) -> None:
        size = len(call.payload) + REQUEST_BYTES
        if self._is_full(call.account.name):
            self.dropped += 1
            return
        self.budget.received(call.publisher, size)
        request = call.request
        place: AbstractAsyncContextManager[None] = nullcontext()
        if request.consumer and call.publisher is not None:
            key = (call.publisher.cid, call.account.name, request.stream, request.consumer)
            place = self.order.enter(key, changes=request.kind is not ApiKind.CONSUMER_INFO)
        self._spawn(call.account.name, partial(self._budgeted, call, size, place))

    async def _budgeted(
        self, call: ApiCall, size: int, place: AbstractAsyncContextManager[None]
    ) -> None:
        """Answer within the memory budgets of the connection, the account and the node."""
        account = call.account.name
        try:
            async with place, self.budget.holding(account, size * HELD_PER_BYTE):
                await self._answer(call)
        except TimeoutError:  # in RequestOrder
            unavailable = JetStreamError.of(ErrCode.CLUSTER_NOT_AVAIL, definite=True)
            self._reply(call, encode_error(call.request.kind, unavailable), failed=True)
        finally:
            self.budget.answered(call.publisher, size)

    def _spawn_get(self, call: ApiCall, work: StartWork) -> None:
        """A get that waits for a leader. Its answer counts against the budget like a request."""
        if self._is_full(call.account.name):
            self.dropped += 1
            return
        size = len(call.payload) + REQUEST_BYTES
        self.budget.received(call.publisher, size)
        self._spawn(call.account.name, partial(self._held_get, call, work, size))

    async def _held_get(self, call: ApiCall, work: StartWork, size: int) -> None:
        try:
            async with self.budget.holding(call.account.name, answer_bytes(call.payload)):
                await work()
        finally:
            self.budget.answered(call.publisher, size)

    def _is_full(self, account: str) -> bool:
        """Whether an account has used up its share of the concurrent requests."""
        running = self._running
        share = REQUESTS_MAX // (len(running) + (account not in running))
        return running[account] >= max(share, REQUESTS_MIN)

    def _spawn(self, account: str, work: StartWork) -> None:
        self._running[account] += 1
        self.spawn(self._counted(account, work), "api request")

    async def _counted(self, account: str, work: StartWork) -> None:
        try:
            await work()
        finally:
            self._running[account] -= 1
            if not self._running[account]:
                del self._running[account]

    # -- pulls, acks and flow control, forwarded to the leader ----------------------------------

    def _forward(
        self, account: Account, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        if subject.startswith(ACK_SUBJECTS[:-1]) and not has_ack_form(subject):
            return False
        tokens = subject.split(b".", 5)
        at = 2 if len(tokens) < 6 or subject.count(b".") < 10 else 4
        name = tokens[at] if len(tokens) > at else b""
        assignment = self.assignments.get(account.name, name.decode(errors="replace"))
        if assignment is None:
            return False
        self.requests.add((assignment.group, subject, reply, headers, payload))
        return True

    def _pull(self, call: ApiCall) -> bool:
        assignment = self.assignments.get(call.account.name, call.request.stream)
        if assignment is None:
            return False
        if not level_is_met(_required_level(call.headers)):
            self.router.publish(call.account, call.reply, b"", REQUIRED_API_LEVEL.header, b"")
            return True
        group = assignment.group
        replica = self.replicas.get(group)
        if replica is not None and not replica.could_serve(call.request.consumer):
            return False
        if call.reply:
            self.requests.add((group, call.subject, call.reply, call.headers, call.payload))
        return True

    # -- requests with one JSON answer ----------------------------------------------------------

    async def _answer(self, call: ApiCall) -> None:
        kind = call.request.kind
        failed, headers = False, b""
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                if not self.streams.members.founded.is_set():
                    raise JetStreamError(ErrCode.CLUSTER_NOT_AVAIL)
                check_required_level(_required_level(call.headers))
                if kind in _NEEDS_CURRENT_TABLE:
                    await self.meta_requests.current()
                elif kind is ApiKind.STREAM_DELETE or self._is_unknown(call):
                    await self.meta_requests.barrier()
                if kind in LEADER_KINDS:
                    failed, headers, body = await self._ask_leader(call)
                else:
                    body = await self.streams.answer(call, self.statistics(call.account.name))
        except JetStreamError as refused:
            failed, body = True, encode_error(kind, refused)
        except (TimeoutError, CallFailed):
            unavailable = JetStreamError.of(ErrCode.CLUSTER_NOT_AVAIL, definite=False)
            failed, body = True, encode_error(kind, unavailable)
        self._reply(call, body, failed=failed, headers=b"" if failed else headers)

    def _is_unknown(self, call: ApiCall) -> bool:
        """Whether the table of this node lacks the stream. The table may lag: only after a barrier
        may this node answer that there is no such stream. After a start it may lag far behind, so
        that requests for lists of streams wait as well."""
        name = call.request.stream
        if not name:
            return not self.streams.members.learned.is_set()
        return self.assignments.get(call.account.name, name) is None

    def _get_here(self, call: ApiCall) -> bool:
        """Answer this MSG.GET now, if possible. Returns whether it was."""
        try:
            check_required_level(_required_level(call.headers))
            body = self.gets.get_message(call)
        except JetStreamError as refused:
            self._reply(call, encode_error(call.request.kind, refused), failed=True)
            return True
        except BlockDamaged:
            return False  # the task that retries the read logs the damage
        if body is not None:
            self._reply(call, body, failed=False)
        return body is not None

    def _reply(self, call: ApiCall, body: bytes, *, failed: bool, headers: bytes = b"") -> None:
        if call.reply:
            self.router.publish(call.account, call.reply, b"", headers, body)
        # A successful read is not counted as an API request.
        if call.request.kind is not ApiKind.STREAM_MSG_GET or failed:
            for name in ("", call.account.name):
                total, errors = self.counts.get(name, (0, 0))
                self.counts[name] = (total + 1, errors + failed)
            self.advisories.audit(call.account, call.publisher, call.subject, call.payload, body)

    async def _ask_leader(self, call: ApiCall) -> tuple[bool, bytes, bytes]:
        """The answer of the stream's leader with its headers, and whether it is a refusal."""
        kind = call.request.kind
        assignment = self.assignments.get(call.account.name, call.request.stream)
        if assignment is None:
            if kind in _STEPDOWNS and not self.clustered():
                raise JetStreamError(ErrCode.CLUSTER_REQUIRED)
            # A body that cannot be decoded is reported before a missing stream.
            body = await self.streams.decoded(call)
            if isinstance(body, ConsumerCreateRequest) and body.stream_name != call.request.stream:
                raise JetStreamError(ErrCode.STREAM_MISMATCH)
            raise JetStreamError(ErrCode.STREAM_NOT_FOUND)
        if call.rules is not None and kind in _DELIVERING:
            subject = _deliver_subject(await self.streams.decoded(call))
            check_delivery(call.rules, subject, domain=self.domain)
        headers = checked_identity(kind, call.headers, call.payload, assignment.created_ns)
        answer = await self.calls.call(
            assignment.group,
            "api",
            call.encoded(),
            within_s=LEADER_WITHIN_S,
            repeatable=kind in _REPEATABLE,
        )
        return answer[:1] == REFUSED, headers, answer[1:]


def answer_bytes(payload: bytes) -> int:
    """Estimated size of the answer to a direct get: of one message, or of a batch."""
    several = b"batch" in payload or b"multi_last" in payload
    return BATCH_BYTES_MAX if several else MESSAGE_BYTES


def _deliver_subject(body: RequestBody) -> str:
    if isinstance(body, ConsumerCreateRequest):
        return body.config.deliver_subject
    return body.deliver_subject if isinstance(body, SnapshotRequest) else ""


def _required_level(headers: bytes) -> bytes | None:
    return wire_headers.get(headers, REQUIRED_LEVEL_HEADER) if headers else None
