"""JetStream requests of the system account: removing and draining servers, the meta leader,
moving the streams of an account.

Owns: these requests at the node an operator is connected to, and the call to the meta leader.
May not touch: the tables they change (broker.cluster.meta).
Spec: NATS JetStream API, META.*, SERVER.* and ACCOUNT.*; `nats server cluster peer-remove` and
`step-down`. SERVER.STATUS, SERVER.RETURN and SERVER.REBALANCE are ours (docs/cluster.md). Other
requests of the system account get the answer of an account without JetStream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.cluster.api.no_jetstream import NoJetStream
from broker.cluster.api.server_admin import ServerAdmin
from broker.cluster.api.stream_api import StreamApi
from broker.cluster.api.stream_moves import StreamMoves
from broker.cluster.meta.assignments import RemoveStream
from broker.cluster.peers.rpc import CallFailed
from broker.jetstream.api.requests import (
    ServerPeerRequest,
    StepdownRequest,
    StreamMoveRequest,
    decode_request,
)
from broker.jetstream.api.responses import (
    Initiated,
    Success,
    Transfers,
    encode_error,
    encode_response,
)
from broker.jetstream.api.subjects import SYSTEM_KINDS, ApiKind, ApiRequest, parse_api_subject
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.server.routing.service_sink import ServiceSink
from broker.subjects import PublishingConnection, SinkKind, Subscription

if TYPE_CHECKING:
    from broker.accounts import Account

SUBJECTS = b"$JS.API.>"


@dataclass(slots=True)
class SystemApi(ServiceSink):
    """A SHARED sink in the system account."""

    account: Account
    otherwise: NoJetStream
    strict: bool
    admin: ServerAdmin
    moves: StreamMoves
    streams: StreamApi
    account_of: Callable[[str], Account]
    balance: Callable[[], Awaitable[int]]  # spread the leaders
    spawn: Callable[[Awaitable[None], str], object]
    kind: SinkKind = SinkKind.SHARED

    def subscriptions(self, account: Account) -> list[Subscription]:
        return [Subscription(self, account, SUBJECTS)]

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
        request = parse_api_subject(subject, domain=self.otherwise.domain)
        if request is None or request.kind not in SYSTEM_KINDS:
            return self.otherwise.deliver(sub, subject, reply, headers, payload)
        self.spawn(self._answer(request, reply, payload), "system request")
        return True

    async def _answer(self, request: ApiRequest, reply: bytes, payload: bytes) -> None:
        try:
            if not self.streams.members.founded.is_set():
                raise JetStreamError(ErrCode.CLUSTER_NOT_AVAIL)
            body = await self._do(request, payload)
        except JetStreamError as refused:
            body = encode_error(request.kind, refused)
        except (TimeoutError, CallFailed):
            body = encode_error(
                request.kind, JetStreamError.of(ErrCode.CLUSTER_NOT_AVAIL, definite=False)
            )
        if reply:
            self.otherwise.router.publish(self.account, reply, b"", b"", body)

    async def _do(self, request: ApiRequest, payload: bytes) -> bytes:
        kind = request.kind
        body = decode_request(kind, payload, strict=self.strict)
        match kind, body:
            case ApiKind.META_LEADER_STEPDOWN, StepdownRequest():
                await self.admin.step_down(body.placement)
            case ApiKind.SERVER_REMOVE, ServerPeerRequest():
                await self.admin.remove(body)
            case ApiKind.SERVER_EVACUATE, ServerPeerRequest():
                await self.admin.drain(body)
            case ApiKind.SERVER_RETURN, ServerPeerRequest():
                await self.admin.undo_drain(body)
            case ApiKind.SERVER_STATUS, _:
                return encode_response(kind, self.admin.status())
            case ApiKind.SERVER_REBALANCE, _:
                return encode_response(kind, Transfers(await self.balance()))
            case ApiKind.ACCOUNT_PURGE, _:
                self.spawn(self._purge(request.account), f"purge account {request.account}")
                return encode_response(kind, Initiated(initiated=True))
            case ApiKind.ACCOUNT_STREAM_MOVE, StreamMoveRequest():
                moved = await self.moves.move(request.account, request.stream, body)
                info = await self.streams.info(self.account_of(request.account), moved)
                return encode_response(kind, info)
            case ApiKind.ACCOUNT_STREAM_CANCEL_MOVE, _:
                back = await self.moves.cancel(request.account, request.stream)
                info = await self.streams.info(self.account_of(request.account), back)
                return encode_response(kind, info)
            case _:
                raise JetStreamError(ErrCode.CLUSTER_UN_SUPPORT_FEATURE)
        return encode_response(kind, Success(success=True))

    async def _purge(self, account: str) -> None:
        """Delete every stream of the account. Those created meanwhile stay."""
        began_ns = self.streams.meta_requests.now_ns()
        for one in self.streams.assignments.of_account(account):
            if one.created_ns <= began_ns:
                await self.streams.meta_requests.change(
                    RemoveStream(account, one.name, one.created_ns)
                )
                self.streams.advisories.of_stream(self.account_of(account), one.name, "delete")
