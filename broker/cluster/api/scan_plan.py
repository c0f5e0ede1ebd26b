"""Plans of bulk reads (scans): which replicas hold a stream, up to which committed sequence.

Owns: the service on `$JS.API.STREAM.SCAN.PLAN.<stream>`.
May not touch: the blocks; any replica serves those itself (broker/scan).
The leader answers while its reads are current, so a plan can be repeated and names everything that
was acked before it was asked for.
Spec: broker/scan/protocol.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from broker.cluster.api.leader_calls import LeaderCalls
from broker.cluster.meta.assignments import Assignment, AssignmentTable
from broker.cluster.meta.members import ClusterMembers
from broker.cluster.peers.mesh import Mesh
from broker.cluster.peers.rpc import CallFailed, CallRefused
from broker.cluster.publish.pub_acks import ReplyRouter
from broker.cluster.replica.replica import Replica
from broker.cluster.replica.replica_table import ReplicaTable
from broker.jetstream.api.stream_access import may_scan
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.strict_json import to_wire
from broker.scan.protocol import PLAN_SUBJECT, PlanReplica, ScanPlan, encode_plan
from broker.subjects import PublishingConnection, PublishRules, SinkKind, Subscription
from broker.wire import PubRun
from raft import GroupId, NodeId, RaftError
from raft.host.group import GroupStatus

if TYPE_CHECKING:
    from broker.accounts import Account

PLAN_WITHIN_S: Final = 5.0

_encode = msgspec.json.encode
_asked = msgspec.msgpack.Decoder(tuple[str, str])


@dataclass(slots=True)
class PlanService:
    mesh: Mesh
    router: ReplyRouter
    account: Callable[[str], Account]
    assignments: AssignmentTable
    members: ClusterMembers
    barrier: Callable[[], Awaitable[None]]  # until the table here is current
    replicas: ReplicaTable
    calls: LeaderCalls
    wait_current: Callable[[Replica], Awaitable[None]]  # raises CallRefused
    status: Callable[[GroupId], GroupStatus]
    member_name: Callable[[NodeId], str]
    spawn: Callable[[Awaitable[None], str], object]
    kind: SinkKind = SinkKind.SERVICE

    def start(self) -> None:
        self.calls.rpc.register("plan", self._serve_plan)

    def subscriptions(self, account: Account) -> list[Subscription]:
        subject = PLAN_SUBJECT.encode() + b"*"
        return [Subscription(sink=self, account=account, subject=subject)]

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
    ) -> bool:
        rules = None if publisher is None else publisher.rules
        for row in range(start, stop):
            subject, reply, _, _ = run.message(row)
            self._take(sub, subject, reply, rules)
        return True

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        self._take(sub, subject, reply, None)
        return True

    def _take(
        self, sub: Subscription, subject: bytes, reply: bytes, rules: PublishRules | None
    ) -> None:
        if reply:
            stream = subject.rsplit(b".", 1)[1].decode(errors="replace")
            self.spawn(self._answer(sub.account.name, stream, reply, rules), "scan plan")

    async def _answer(
        self, account: str, stream: str, reply: bytes, rules: PublishRules | None
    ) -> None:
        try:
            if not may_scan(rules, stream):
                raise JetStreamError.of(
                    ErrCode.STREAM_INVALID_CONFIG, err=f"no permission to read stream '{stream}'"
                )
            assignment = await self._assignment(account, stream)
            question = msgspec.msgpack.encode((account, stream))
            body = await self.calls.call(assignment.group, "plan", question, within_s=PLAN_WITHIN_S)
        except JetStreamError as refused:
            body = _encode({"error": to_wire(refused.body())})
        except (CallFailed, RaftError, TimeoutError):
            body = _encode({"error": to_wire(JetStreamError(ErrCode.CLUSTER_NOT_AVAIL).body())})
        self.router.publish(self.account(account), reply, b"", b"", body)

    async def _assignment(self, account: str, stream: str) -> Assignment:
        """The table of this node may lag, or be empty after a loss of its data: only after a
        barrier may it say that there is no such stream."""
        if not self.members.founded.is_set():
            raise JetStreamError(ErrCode.CLUSTER_NOT_AVAIL)
        assignment = self.assignments.get(account, stream)
        if assignment is None:
            await self.barrier()
            assignment = self.assignments.get(account, stream)
        if assignment is None:
            raise JetStreamError(ErrCode.STREAM_NOT_FOUND)
        return assignment

    async def _serve_plan(self, _peer: NodeId, body: bytes) -> bytes:
        account, stream = _asked.decode(body)
        replica = self.replicas.of_stream(account, stream)
        if replica is None or replica.leading is None:
            raise CallRefused(f"not the leader of {stream}")
        await self.wait_current(replica)
        store = replica.stream.store
        matches = {peer.node: peer.match for peer in self.status(replica.group).core.peers}
        applied = replica.stream.applied
        replicas = [
            PlanReplica(
                name=self.member_name(NodeId(peer)),
                address=self._client_address(NodeId(peer)),
                leader=peer == self.mesh.node,
                # A follower that has the leader's whole log has, or soon will have, applied it.
                applied_seq=store.last_seq
                if peer == self.mesh.node or matches.get(NodeId(peer), 0) >= applied
                else 0,
            )
            for peer in replica.assignment.peers
            if self.mesh.connected(NodeId(peer))
        ]
        plan = ScanPlan(
            stream=stream,
            id=str(replica.group),
            first_seq=store.first_seq,
            last_seq=store.last_seq,
            messages=store.messages,
            bytes=store.bytes,
            replicas=tuple(replicas),
        )
        return encode_plan(plan)

    def _client_address(self, node: NodeId) -> str:
        """host:port where clients reach the node, as it tells its peers; "" when unknown."""
        if node == self.mesh.node:
            return str(self.mesh.hello.get("client", ""))
        for peer in self.mesh.peers():
            if peer.node == node:
                return str(peer.hello.get("client", ""))
        return ""
