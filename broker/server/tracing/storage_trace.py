"""Traced messages that a stream takes: what became of them, told when the stream has answered.

Owns: the answers that are waited for.
May not touch: the stream, which answers as it would answer anybody.
A stream answers to the reply subject of a publish. Ours stands there instead, and what comes is
passed on. Of a message that is traced only, no stream is asked: what its leader would check (a
duplicate, an expected sequence) is not told then.
Spec: core contract 1.13; where that is silent, nats-server 2.15."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from broker.accounts import Account
from broker.server.tracing.message_trace import Trace, disabled_in_place
from broker.subjects import PublishingConnection, Sink, SinkKind, Subscription
from broker.wire import PubRun
from broker.wire import headers as wire_headers

if TYPE_CHECKING:
    from broker.server.server import Server

WAIT_S = 30.0  # for a stream; then the trace is sent as it is
WAITING_MAX = 4096  # beyond it nobody waits
WRONG_LAST_SEQUENCE = 10071


class StreamSink(Sink, Protocol):
    """The way into a stream."""

    stream: bytes

    def answers(self, reply: bytes) -> bool:
        """Whether it says of every single message what became of it."""

    def stored_as(self, subject: bytes) -> tuple[bytes, bool]:
        """The subject it is kept under, and whether nobody wants it, as far as is known here."""


class _Refusal(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    error: _Refusal | None = None
    duplicate: bool = False


@dataclass(slots=True, eq=False)
class _Waiting:
    trace: Trace
    event: dict[str, Any]
    account: Account
    reply: bytes  # of the publisher
    headers: bytes
    told: dict[str, Any]  # of the event, once it is stored
    timer: asyncio.TimerHandle


class Storing:
    """A SERVICE sink for the answers, in every account that needs it."""

    kind = SinkKind.SERVICE

    def __init__(self, server: Server) -> None:
        self._server = server
        self._prefix = b"_R_.%b." % secrets.token_hex(8).encode()
        self._listening: set[str] = set()
        self._waiting: dict[bytes, _Waiting] = {}
        self._number = 0

    def store(
        self,
        trace: Trace,
        sink: StreamSink,
        sub: Subscription,
        run: PubRun,
        origin: PublishingConnection | None,
    ) -> bool:
        subject, reply, headers, payload = run.message(0)
        kept_as, unwanted = sink.stored_as(subject)
        kept: dict[str, Any] = {"subject": kept_as.decode(errors="replace")}
        if unwanted:
            kept["nointerest"] = True
        event = trace.add("js", stream=sink.stream.decode(errors="replace"))
        if trace.only:
            event.update(kept)
            return True
        if _waits_for_commit(headers):
            trace.waits += 1  # for good: of a batch the reference server tells the last message
            answer_to = reply
        elif not sink.answers(reply) or len(self._waiting) >= WAITING_MAX:
            event.update(kept)
            answer_to = reply
        else:
            account = self._server.account(sub.account.name)
            self._listen(account)
            self._number += 1
            answer_to = b"%b%d" % (self._prefix, self._number)
            timer = asyncio.get_running_loop().call_later(WAIT_S, self._overdue, answer_to)
            waiting = _Waiting(trace, event, account, reply, headers, kept, timer)
            self._waiting[answer_to] = waiting
            trace.waits += 1
        stored = PubRun.of([(subject, answer_to, disabled_in_place(headers), payload)])
        taken = sink.deliver_run(sub, stored, 0, 1, origin)
        if not taken and answer_to is not reply:
            self._overdue(answer_to)
        return taken

    def _listen(self, account: Account) -> None:
        if account.name not in self._listening:
            self._listening.add(account.name)
            account.subs.insert(Subscription(self, account, self._prefix + b"*"))

    def _overdue(self, answer_to: bytes) -> None:
        waiting = self._waiting.pop(answer_to, None)
        if waiting is not None:
            waiting.timer.cancel()
            waiting.event["error"] = "no answer from the stream"
            waiting.trace.done()

    # -- answers ----------------------------------------------------------------------------

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        waiting = self._waiting.pop(subject, None)
        if waiting is None:
            return False
        waiting.timer.cancel()
        error = _error(waiting.headers, headers, payload)
        waiting.event.update({"error": error} if error else waiting.told)
        if waiting.reply:
            self._server.router.publish(waiting.account, waiting.reply, reply, headers, payload)
        waiting.trace.done()
        return True

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        origin: PublishingConnection | None,
    ) -> bool:
        """Nobody else may answer in the place of a stream."""
        return False


def _waits_for_commit(headers: bytes) -> bool:
    """Whether it is a part of an atomic batch and does not end it."""
    return b"\r\nNats-Batch-Id:" in headers and b"\r\nNats-Batch-Commit:" not in headers


def _error(asked: bytes, headers: bytes, payload: bytes) -> str:
    """In the words of the reference server, which are not always those of the answer."""
    code, _ = wire_headers.status(headers)
    if code:
        return "stream not found"
    answer = msgspec.json.decode(payload, type=_Answer)
    if answer.duplicate:
        return "msgid is duplicate"
    if answer.error is None:
        return ""
    said = answer.error.description
    if answer.error.err_code == WRONG_LAST_SEQUENCE:
        last = said.rpartition(" ")[2]
        for name, text in (
            (b"Nats-Expected-Last-Sequence", "last sequence mismatch"),
            (b"Nats-Expected-Last-Subject-Sequence", "last sequence by subject mismatch"),
        ):
            expected = wire_headers.get(asked, name)
            if expected is not None:
                return f"{text}: {expected.decode(errors='replace')} vs {last}"
    return said
