"""$SYS.DEBUG.SUBSCRIBERS: how many clients of the whole cluster subscribe to a subject.

Owns: the service in the system account, and the questions to the other servers that are open.
May not touch: subscriptions, beyond counting them (account_requests.py).
The account is that of the requestor: another account reaches the service by an import.
Spec: nats-server, $SYS.DEBUG.SUBSCRIBERS: a subject and, if wanted, a queue; answered by digits."""

from __future__ import annotations

import asyncio
import base64
import secrets
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.monitor.observed import Observed
from broker.monitor.system.responder import Responder
from broker.server.routing.imports import REQUEST_INFO
from broker.server.routing.service_sink import ServiceSink
from broker.subjects import PublishingConnection, SinkKind, Subscription
from broker.wire import headers as wire_headers

SUBJECT: Final = b"$SYS.DEBUG.SUBSCRIBERS"
COUNT: Final = b"$SYS.REQ.ACCOUNT.NSUBS"
ANSWER_WITHIN_S: Final = 0.5
OPEN_MAX: Final = 1024  # beyond it a request is dropped


@dataclass(slots=True)
class _Sum:
    reply: bytes
    awaited: int = 0  # servers
    total: int = 0


class _About(msgspec.Struct):
    acc: str = ""


class Subscribers(ServiceSink):
    """A SERVICE sink: the server that a client is connected to asks all of them, and adds up."""

    kind = SinkKind.SERVICE

    def __init__(self, responder: Responder) -> None:
        self._responder = responder
        self._observed: Observed = responder.observed
        self._inbox = f"$SYS._INBOX.{secrets.token_hex(8)}."
        self._sums: dict[bytes, _Sum] = {}

    def start(self) -> None:
        self._responder.listen(f"{self._inbox}*", self._counted)
        account = self._observed.system_account
        account.subs.insert(Subscription(self, account, SUBJECT))

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
        self._asked(reply, headers, payload)
        return True

    def _asked(self, reply: bytes, headers: bytes, payload: bytes) -> None:
        if not reply or len(self._sums) >= OPEN_MAX:
            return
        words = payload.strip().split(b" ")
        queue = words[1] if len(words) > 1 else b""
        if len(words) > 1 and not queue:  # two blanks: a queue of no name
            self._answer(reply, 0)
            return
        question = {
            "acc": self._account(headers),
            "subject": words[0].decode(errors="replace"),
            "queue": base64.b64encode(queue).decode(),
        }
        token = secrets.token_hex(8).encode()
        found = self._sums[token] = _Sum(reply)
        observed = self._observed
        found.awaited += observed.server.router.publish(  # we have answered already
            observed.system_account,
            COUNT,
            self._inbox.encode() + token,
            b"",
            msgspec.json.encode(question),
        )
        if found.awaited:
            asyncio.get_running_loop().call_later(ANSWER_WITHIN_S, self._finish, token)
        else:
            self._finish(token)

    def _account(self, headers: bytes) -> str:
        about = wire_headers.get(headers, REQUEST_INFO) if headers else None
        if about is not None:
            try:
                return msgspec.json.decode(about, type=_About).acc
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return ""
        return self._observed.server.options.system_account

    def _counted(self, subject: bytes, _reply: bytes, _headers: bytes, payload: bytes) -> None:
        token = subject[len(self._inbox) :]
        found = self._sums.get(token)
        if found is None or not payload.isdigit():
            return
        found.total += int(payload)
        found.awaited -= 1
        if not found.awaited:
            self._finish(token)

    def _finish(self, token: bytes) -> None:
        found = self._sums.pop(token, None)
        if found is not None:
            self._answer(found.reply, found.total)

    def _answer(self, reply: bytes, count: int) -> None:
        observed = self._observed
        observed.server.router.publish(
            observed.system_account, reply, b"", b"", str(count).encode()
        )
