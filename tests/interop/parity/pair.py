"""Both servers, and a conversation that sends each step of a scene to both at once.

Owns: the connections of a scene and what was heard on them. May not touch: what is accepted.
A request without an answer (`replies` 0, or a pull that waits) ends when neither server answered
in QUIET_S; all others have PATIENT_S, so that a slow machine makes no difference."""

from __future__ import annotations

import asyncio
import itertools
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from broker.local import LocalNode
from tests.interop.parity.compare import masked, masked_document, parsed
from tests.interop.parity.exchange import (
    Ack,
    Get,
    Heard,
    Listen,
    Publish,
    Request,
    Step,
    Unlisten,
)
from tests.support.clients import open_client

QUIET_S = 0.2
PATIENT_S = 20.0
ANSWERS = frozenset({"elapsed", "active", "pause_remaining", "Nats-Stream-Identity"})
EVENTS = frozenset({"cid", "port", "rtt", "start", "stop", "id", "client_id", "response"})


class SetupFailed(AssertionError):
    """A server refused what the rest of the scene is about."""


def _shown(message: Any) -> dict[str, Any]:
    found = {"subject": message.subject, "headers": dict(message.headers or {})}
    if message.reply:
        found["reply"] = message.reply
    return {**found, "body": parsed(message.data)}


@dataclass(slots=True)
class Side:
    """One server, from the view of one client."""

    node: LocalNode
    client: Any
    answers: dict[str, list[Any]] = field(default_factory=dict)
    heard: list[Any] = field(default_factory=list)
    deliveries: list[Any] = field(default_factory=list)
    listens: list[Any] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    async def connected(cls, node: LocalNode, user: str) -> Side:
        url = node.url.replace("nats://", f"nats://{user}:pw@")
        client = await open_client(url, name="parity", inbox_prefix="_INBOX.parity")
        self = cls(node, client)
        await client.subscribe("_INBOX.parity.*", cb=self._on_answer)
        return self

    async def _on_answer(self, message: Any) -> None:
        self.answers.setdefault(message.subject, []).append(message)
        self.deliveries.append(message)
        self.news.set()

    async def _on_heard(self, message: Any) -> None:
        self.heard.append(message)
        self.deliveries.append(message)
        self.news.set()

    async def listen(self, step: Listen) -> None:
        heard = await self.client.subscribe(step.subject, queue=step.queue, cb=self._on_heard)
        self.listens.append(heard)
        await self.client.flush(PATIENT_S)

    async def unlisten(self) -> None:
        for one in self.listens:
            await one.unsubscribe()
        self.listens.clear()
        self.heard.clear()
        await self.client.flush(PATIENT_S)

    async def document(self, path: str) -> Any:
        url = f"http://127.0.0.1:{self.node.http_port}{path}"

        def fetch() -> tuple[int, str, bytes]:
            try:
                with urllib.request.urlopen(url, timeout=PATIENT_S) as got:
                    return got.status, got.headers.get("Content-Type", ""), got.read()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.headers.get("Content-Type", ""), error.read()

        status, kind, body = await asyncio.to_thread(fetch)
        document = masked_document(parsed(body))
        return {"status": status, "type": kind.split(";")[0], "body": document}


class Conversation:
    """Runs the steps of one scene on both servers; each exchange yields two answers."""

    def __init__(self, ours: Side, theirs: Side) -> None:
        self._sides = (ours, theirs)
        self._numbers = itertools.count()

    @classmethod
    async def begun(cls, nodes: tuple[LocalNode, LocalNode], user: str) -> Conversation:
        ours = await Side.connected(nodes[0], user)
        try:
            return cls(ours, await Side.connected(nodes[1], user))
        except BaseException:
            await ours.client.close()
            raise

    async def close(self) -> None:
        for side in self._sides:
            await side.client.close()

    async def take(self, step: Step) -> tuple[Any, Any] | None:
        """Both answers, ours first; None for a step that has no answer."""
        match step:
            case Request():
                return await self._request(step)
            case Heard():
                return await self._heard(step)
            case Ack():
                return await self._ack(step)
            case Get():
                ours, theirs = [await side.document(step.path) for side in self._sides]
                return ours, theirs
            case Publish():
                for side in self._sides:
                    headers = step.headers or None
                    await side.client.publish(step.subject, step.body, headers=headers)
                    await side.client.flush(PATIENT_S)
            case Listen():
                for side in self._sides:
                    await side.listen(step)
            case Unlisten():
                for side in self._sides:
                    await side.unlisten()
        return None

    async def _request(self, step: Request) -> tuple[Any, Any]:
        inbox = f"_INBOX.parity.{next(self._numbers)}"
        for side in self._sides:
            side.answers[inbox] = []
            await side.client.publish(
                step.subject, step.body, reply=inbox, headers=step.headers or None
            )
        quiet_s = QUIET_S if step.replies == 0 or ".MSG.NEXT." in step.subject else PATIENT_S
        found = await self._settled(lambda side: side.answers[inbox], step.replies or 1, quiet_s)
        of_system = step.subject.startswith("$SYS.")
        shown = self._compared(found, volatile=None if of_system else ANSWERS)
        if step.must:
            _check(step, *shown)
        return shown

    async def _heard(self, step: Heard) -> tuple[Any, Any]:
        found = await self._settled(lambda side: side.heard, step.count, PATIENT_S)
        shown = self._compared(found, ordered=step.ordered, volatile=EVENTS)
        for side in self._sides:
            del side.heard[: step.count]
        return shown

    async def _ack(self, step: Ack) -> tuple[Any, Any]:
        inbox = f"_INBOX.parity.{next(self._numbers)}"
        for side in self._sides:
            side.answers[inbox] = []
            delivered = [one for one in side.deliveries if one.reply.startswith("$JS.ACK.")]
            if len(delivered) < step.which:
                raise SetupFailed(
                    f"{side.node.directory}: nothing was delivered that {step} answers"
                )
            await side.client.publish(delivered[-step.which].reply, step.body, reply=inbox)
        found = await self._settled(lambda side: side.answers[inbox], 1, QUIET_S)
        return self._compared(found, volatile=ANSWERS)

    async def _settled(
        self, got: Callable[[Side], list[Any]], count: int, quiet_s: float
    ) -> tuple[list[Any], list[Any]]:
        """What each side got: `count` messages, or as many as both got when all was quiet."""
        ours, theirs = self._sides

        async def until(done: Callable[[], bool]) -> None:
            while not done():
                for side in self._sides:
                    side.news.clear()
                waits = [asyncio.ensure_future(side.news.wait()) for side in self._sides]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for one in waits:
                        one.cancel()

        await _within(quiet_s, until(lambda: any(len(got(s)) >= count for s in self._sides)))
        await _within(PATIENT_S, until(lambda: len(got(ours)) == len(got(theirs))))
        return list(got(ours)), list(got(theirs))

    @staticmethod
    def _compared(
        found: tuple[list[Any], list[Any]],
        *,
        volatile: frozenset[str] | None,
        ordered: bool = True,
    ) -> tuple[Any, Any]:
        """`volatile` None: answers of the system account."""
        shown = []
        for messages in found:
            texts = map(_shown, messages)
            if volatile is None:
                each = [masked_document(one) for one in texts]
            else:
                each = [masked(one, volatile) for one in texts]
            if not ordered:
                each.sort(key=lambda one: (str(one["subject"]), str(one["body"])))
            shown.append(each[0] if len(each) == 1 else {"messages": each})
        return shown[0], shown[1]


async def _within(seconds: float, work: Any) -> None:
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return


def _check(step: Request, ours: Any, theirs: Any) -> None:
    for name, answer in (("our server", ours), ("nats-server", theirs)):
        body = answer.get("body")
        if body is None or (isinstance(body, dict) and "error" in body):
            raise SetupFailed(f"{name}: {step}: {answer}")
