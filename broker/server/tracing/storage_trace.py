"""Traced messages that a stream stores: the outcome is known when the stream has answered.

Owns: the pending answers of streams.
May not touch: the stream, which answers as it would answer any publisher.
A stream answers to the reply subject of a publish. For a traced message that is a subject of this
module, which forwards the answer to the publisher. A message with Nats-Trace-Only is not sent to
the stream, so the checks of its leader (duplicates, expected sequences) are not reported.
Spec: NATS ADR-41, message tracing; details as in nats-server 2.15."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from broker.accounts import Account
from broker.server.tracing.message_trace import Trace, disabled_in_place
from broker.subjects import PublishingConnection, Sink, SinkKind, Subscription
from broker.wire import PubRun
from broker.wire import headers as wire_headers

WAIT_S = 30.0  # for the stream's answer; then the trace is sent without it
WAITING_MAX = 4096  # beyond it, traces do not wait for the stream's answer
WRONG_LAST_SEQUENCE = 10071


class PublishOne(Protocol):
    """Router.publish."""

    def __call__(
        self, account: Account, subject: bytes, reply: bytes, headers: bytes, payload: bytes, /
    ) -> int: ...


class StreamSink(Sink, Protocol):
    """The sink of a stream."""

    stream: bytes

    def answers(self, reply: bytes) -> bool:
        """Whether it answers every single message."""

    def stored_as(self, subject: bytes) -> tuple[bytes, bool]:
        """The subject it is stored under, and whether no consumer of this node is interested."""


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
    stored: dict[str, Any]  # fields to add to the event once the message is stored
    timer: asyncio.TimerHandle


class Storing:
    """A SERVICE sink for the answers, in every account that needs it."""

    kind = SinkKind.SERVICE

    def __init__(self, account: Callable[[str], Account], publish: PublishOne) -> None:
        self._account = account
        self._publish = publish
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
        publisher: PublishingConnection | None,
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
            trace.waits += 1  # never sent: nats-server traces only the last message of a batch
            answer_to = reply
        elif not sink.answers(reply) or len(self._waiting) >= WAITING_MAX:
            event.update(kept)
            answer_to = reply
        else:
            account = self._account(sub.account.name)
            self._listen(account)
            self._number += 1
            answer_to = b"%b%d" % (self._prefix, self._number)
            timer = asyncio.get_running_loop().call_later(WAIT_S, self._overdue, answer_to)
            waiting = _Waiting(trace, event, account, reply, headers, kept, timer)
            self._waiting[answer_to] = waiting
            trace.waits += 1
        stored = PubRun.of([(subject, answer_to, disabled_in_place(headers), payload)])
        taken = sink.deliver_run(sub, stored, 0, 1, publisher)
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
        waiting.event.update({"error": error} if error else waiting.stored)
        if waiting.reply:
            self._publish(waiting.account, waiting.reply, reply, headers, payload)
        waiting.trace.done()
        return True

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
    ) -> bool:
        """Clients may not answer in place of a stream."""
        return False


def _waits_for_commit(headers: bytes) -> bool:
    """Whether the message is part of an atomic batch, but not the one that commits it."""
    return b"\r\nNats-Batch-Id:" in headers and b"\r\nNats-Batch-Commit:" not in headers


def _error(asked: bytes, headers: bytes, payload: bytes) -> str:
    """The error in nats-server's words, which may differ from the text of the answer."""
    code, _ = wire_headers.status(headers)
    if code:
        return "stream not found"
    answer = msgspec.json.decode(payload, type=_Answer)
    if answer.duplicate:
        return "msgid is duplicate"
    if answer.error is None:
        return ""
    description = answer.error.description
    if answer.error.err_code == WRONG_LAST_SEQUENCE:
        last = description.rpartition(" ")[2]
        for name, text in (
            (b"Nats-Expected-Last-Sequence", "last sequence mismatch"),
            (b"Nats-Expected-Last-Subject-Sequence", "last sequence by subject mismatch"),
        ):
            expected = wire_headers.get(asked, name)
            if expected is not None:
                return f"{text}: {expected.decode(errors='replace')} vs {last}"
    return description
