"""Plans of bulk reads (scans): which replicas hold a stream, up to which committed sequence.

Owns: the service on `$JS.API.STREAM.SCAN.PLAN.<stream>`.
May not touch: the blocks; any replica serves those itself (broker/scan).
The leader answers while its reads are current, so that a plan includes everything that was acked
before the request, and a scan by it can be repeated.
Spec: broker/scan/protocol.py."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.cluster.api.leader_calls import LeaderCalls
from broker.cluster.peers.mesh import Mesh
from broker.cluster.peers.rpc import CallFailed, CallRefused
from broker.cluster.polling import eventually
from broker.cluster.publish.pub_acks import ReplyRouter
from broker.cluster.replica.replica import Replica
from broker.cluster.replica.replica_table import ReplicaTable
from broker.cluster.stream_requests import StreamLookup, StreamRequest, StreamRequestSink
from broker.jetstream.api.stream_access import may_scan
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.strict_json import to_wire
from broker.scan.byte_cuts import edges
from broker.scan.protocol import (
    PLAN_SUBJECT,
    WAIT_MS_MAX,
    PlanReplica,
    PlanRequest,
    ScanPlan,
    ScanRefused,
    decode_plan_request,
    encode_plan,
)
from broker.scan.readers import ScanReaders, StreamingReader
from broker.server.routing.fair_queue import Turns
from broker.store.messages import MessageStore
from broker.subjects import Steps, Subscription, has_wildcard
from broker.subjects.steps import STEP_ITEMS
from raft import GroupId, NodeId, RaftError
from raft.host.group import GroupStatus

if TYPE_CHECKING:
    from broker.accounts import Account

PLAN_WITHIN_S: Final = 5.0
WAITING_MAX: Final = 64  # requests that wait for a message; others are answered immediately
UNDER_WAY_MAX: Final = 256  # concurrent requests per account and node; more are answered with 503
WAIT_STEP_S: Final = 0.025

_encode = msgspec.json.encode
_asked = msgspec.msgpack.Decoder(tuple[str, ...])


@dataclass(slots=True)
class PlanService:
    mesh: Mesh
    router: ReplyRouter
    account: Callable[[str], Account]
    lookup: StreamLookup
    replicas: ReplicaTable
    calls: LeaderCalls
    wait_current: Callable[[Any], Awaitable[None]]  # of a replica; raises CallRefused
    status: Callable[[GroupId], GroupStatus]
    member_name: Callable[[NodeId], str]
    spawn: Callable[[Awaitable[None], str], object]
    turns: Turns
    scan_readers: ScanReaders = field(default_factory=ScanReaders)
    waiting: int = 0
    under_way: Counter[str] = field(default_factory=Counter)  # by account

    def start(self) -> None:
        self.calls.rpc.register("plan", self._serve_plan)

    def subscriptions(self, account: Account) -> list[Subscription]:
        return StreamRequestSink(PLAN_SUBJECT, self.take).subscriptions(account)

    def take(self, asked: StreamRequest) -> None:
        if not asked.reply:
            return
        if self.under_way[asked.account] >= UNDER_WAY_MAX:
            self._reply(asked, _unavailable())
            return
        self.under_way[asked.account] += 1
        self.spawn(self._answer(asked), "scan plan")

    async def _answer(self, asked: StreamRequest) -> None:
        try:
            body = await self._planned(asked)
        finally:
            self.under_way[asked.account] -= 1
            if not self.under_way[asked.account]:
                del self.under_way[asked.account]
        self._reply(asked, body)

    def _reply(self, asked: StreamRequest, body: bytes) -> None:
        self.router.publish(self.account(asked.account), asked.reply, b"", b"", body)

    async def _planned(self, asked: StreamRequest) -> bytes:
        account, stream, request = asked.account, asked.stream, asked.body
        try:
            if not may_scan(asked.rules, stream):
                raise JetStreamError.of(
                    ErrCode.STREAM_INVALID_CONFIG, err=f"no permission to read stream '{stream}'"
                )
            _checked(request)
            assignment = await self.lookup.find(account, stream)
            # An earlier version only accepts the old form: account and stream.
            words = (account, stream, request.decode()) if request else (account, stream)
            question = msgspec.msgpack.encode(words)
            return await self.calls.call(assignment.group, "plan", question, within_s=PLAN_WITHIN_S)
        except JetStreamError as refused:
            return _encode({"error": to_wire(refused.body())})
        except (CallFailed, RaftError, TimeoutError):
            return _unavailable()

    async def _serve_plan(self, _peer: NodeId, body: bytes) -> bytes:
        account, stream, *more = _asked.decode(body)
        request = decode_plan_request(more[0].encode() if more else b"")
        replica = self._led(account, stream)
        await self.wait_current(replica)
        if request.wait_ms and self.waiting < WAITING_MAX:
            replica = await self._wait_for_more(replica, account, request)
        store = replica.stream.store
        seqs, cuts = await self.turns.run(_positions(store, request), account)
        matching = await self.turns.run(_matching(store, request.subjects), account)
        if request.reader:
            self.scan_readers.seen(
                StreamingReader(
                    account, stream, request.reader, request.next, store.last_seq, time.monotonic()
                )
            )
        matches = {peer.node: peer.match for peer in self.status(replica.group).core.peers}
        applied = replica.stream.applied
        replicas = [
            PlanReplica(
                name=self.member_name(NodeId(peer)),
                address=self._client_address(NodeId(peer)),
                leader=peer == self.mesh.node,
                # A follower with the leader's whole log has applied it, or soon will have.
                applied_seq=store.last_seq
                if peer == self.mesh.node or matches.get(NodeId(peer), 0) >= applied
                else 0,
            )
            for peer in replica.assignment.peers
            if self.mesh.connected(NodeId(peer))
        ]
        plan = ScanPlan(
            stream=stream,
            id=replica.assignment.incarnation,
            first_seq=store.first_seq,
            last_seq=store.last_seq,
            messages=store.messages,
            bytes=store.bytes,
            seqs=seqs,
            edges=cuts,
            matching=matching,
            replicas=tuple(replicas),
            retention=replica.stream.config.retention.value,
        )
        return encode_plan(plan)

    def _led(self, account: str, stream: str) -> Replica:
        replica = self.replicas.of_stream(account, stream)
        if replica is None or replica.leading is None:
            raise CallRefused(f"not the leader of {stream}")
        return replica

    async def _wait_for_more(self, replica: Replica, account: str, request: PlanRequest) -> Replica:
        """Wait until the stream has a message at `next`: an idle query costs one request per
        wait."""
        stream = replica.stream.config.name

        def arrived() -> bool:
            return self._led(account, stream).stream.store.last_seq >= request.next

        if arrived():
            return replica
        self.waiting += 1
        try:
            wait_s = min(request.wait_ms, WAIT_MS_MAX) / 1000
            await eventually(arrived, timeout_s=wait_s, every_s=WAIT_STEP_S)
        finally:
            self.waiting -= 1
        replica = self._led(account, stream)
        await self.wait_current(replica)
        return replica

    def _client_address(self, node: NodeId) -> str:
        """host:port where clients reach the node, from its hello; "" if unknown."""
        if node == self.mesh.node:
            return str(self.mesh.hello.get("client", ""))
        for peer in self.mesh.peers():
            if peer.node == node:
                return str(peer.hello.get("client", ""))
        return ""


def _checked(request: bytes) -> None:
    try:
        decode_plan_request(request)
    except ScanRefused as refused:
        raise JetStreamError.of(ErrCode.STREAM_INVALID_CONFIG, err=refused.message) from refused


def _unavailable() -> bytes:
    return _encode({"error": to_wire(JetStreamError(ErrCode.CLUSTER_NOT_AVAIL).body())})


def _matching(store: MessageStore, subjects: tuple[str, ...]) -> Steps[int]:
    """Number of matching messages, from the index, for subjects without wildcards; see ScanPlan."""
    names = {subject.encode() for subject in subjects}
    if not names or any(map(has_wildcard, names)):
        return -1
    count = 0
    for at, name in enumerate(names):
        entry = store.index.get(name)
        count += entry.count if entry is not None else 0
        if at % STEP_ITEMS == STEP_ITEMS - 1:
            yield
    return count


def _positions(
    store: MessageStore, request: PlanRequest
) -> Steps[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The sequences for the requested times, each of which may need to read a block, and those that
    divide the range into pieces."""
    seqs: list[int] = []
    for moment in request.times:
        seqs.append(store.first_at_time(moment) or store.last_seq + 1)
        yield
    if not request.piece_bytes:
        return tuple(seqs), ()
    cuts = yield from edges(
        store.segments,
        first=max(request.first, 1),
        behind=request.behind,
        piece_bytes=request.piece_bytes,
    )
    return tuple(seqs), cuts
