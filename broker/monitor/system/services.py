"""Requests to servers: each addressed server answers for itself.

Owns: the subjects under $SYS.REQ.SERVER, and the commands to one server (kick, lame duck, reload).
May not touch: the documents; HTTP serves the same ones.
Spec: NATS system account, $SYS.REQ.SERVER."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from broker.monitor.documents.documents import Documents, at_once
from broker.monitor.documents.interpreter import variables
from broker.monitor.system import requests
from broker.monitor.system.profiles import Profiles
from broker.monitor.system.responder import WAITING_MAX, Responder, enveloped, failure
from broker.monitor.system.statsz import statsz
from broker.server.client.close_reason import Reason
from broker.server.client.connections import OpenConnection
from broker.server.services import Document, Query
from broker.subjects import Steps

PING = "$SYS.REQ.SERVER.PING"
Command = Callable[[dict[str, Any]], None]  # raises RequestRefused


class RequestRefused(Exception):
    """A command that was not carried out; str() is the reason (500)."""


class Services:
    """The answers of this server about itself."""

    def __init__(
        self, responder: Responder, documents: Documents, reload: Callable[[], None]
    ) -> None:
        """`reload` raises ValueError with the reason."""
        self._responder = responder
        self._observed = responder.observed
        self._documents = documents
        self._reload_settings = reload
        self._reload_replies: list[bytes] = []  # who waits for the next reload

    def start(self) -> None:
        responder, ours = self._responder, f"$SYS.REQ.SERVER.{self._observed.id}"
        profiles = Profiles(responder)
        responder.listen(PING, self._statsz)
        for where in (PING, ours):
            responder.listen(f"{where}.STATSZ", self._statsz)
            responder.listen(f"{where}.IDZ", self._idz)
            responder.listen(f"{where}.PROFILEZ", profiles.asked)
            responder.serve(f"{where}.HEALTHZ", self._healthz)
            responder.serve(f"{where}.EXPVARZ", lambda _: at_once(variables()))
            for name, make in self._documents.by_name.items():
                responder.serve(f"{where}.{name.upper()}", self._jsz if name == "jsz" else make)
        for name, command in (("KICK", self._kick), ("LDM", self._tell_lame_duck)):
            responder.listen(f"{ours}.{name}", partial(self._commanded, command))
        responder.listen(f"{ours}.RELOAD", self._asked_to_reload)

    # -- documents ------------------------------------------------------------------------------

    def _statsz(self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes) -> None:
        """Without a reply the answer is published like a regular STATSZ event. It is never
        compressed."""
        to = reply or f"$SYS.SERVER.{self._observed.id}.STATSZ".encode()
        self._responder.tell(to, self._enveloped_statsz(payload))

    def _enveloped_statsz(self, payload: bytes) -> Steps[Document | None]:
        document = yield from enveloped(self._observed, self._numbers, payload)
        if document is not None and "data" in document:
            document["statsz"] = document.pop("data")
        return document

    def _numbers(self, _: Query) -> Steps[Document]:
        return statsz(self._observed, cpu=self._documents.cpu.percent())

    def _idz(self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes) -> None:
        """Name, host and id; a body that cannot be read addresses every server."""
        ours = self._observed
        try:
            addressed = requests.read(payload)[0].match(ours)
        except requests.BadRequest:
            addressed = True
        if reply and addressed:
            self._responder.send(reply, {"name": ours.name, "host": ours.host, "id": ours.id})

    def _healthz(self, query: Query) -> Steps[Document]:
        code, document = yield from self._documents.healthz(query)
        return {**document, "status_code": code}

    def _jsz(self, query: Query) -> Steps[Document | None]:
        """With leader_only, only the leader of the meta group answers."""
        document = yield from self._documents.by_name["jsz"](query)
        leader = document.get("meta_cluster", {}).get("leader", self._observed.name)
        if query.get("leader-only") == "true" and leader != self._observed.name:
            return None
        return document

    # -- commands -------------------------------------------------------------------------------

    def _commanded(
        self, command: Command, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes
    ) -> None:
        """Run the command in the next turn of the loop: it may close the client that sent it."""
        asyncio.get_running_loop().call_soon(self._carry_out, command, reply, payload)

    def _carry_out(self, command: Command, reply: bytes, payload: bytes) -> None:
        error = None
        try:
            command(requests.read(payload)[1])
        except requests.BadRequest as bad:
            error = failure(400, bad)
        except RequestRefused as refused:
            error = failure(500, refused)
        self._answer(reply, error)

    def _answer(self, reply: bytes, error: Document | None) -> None:
        if reply:
            document: Document = {"server": self._observed.stamp()}
            self._responder.send(reply, document | ({} if error is None else {"error": error}))

    def _kick(self, asked: dict[str, Any]) -> None:
        self._connection(asked, "no such client or leafnode id").close(Reason.KICKED)

    def _tell_lame_duck(self, asked: dict[str, Any]) -> None:
        self._connection(asked, "no such client id").send_info(ldm=True)

    def _connection(self, asked: dict[str, Any], unknown: str) -> OpenConnection:
        cid = asked.get("cid")
        found = self._observed.server.connections.get(cid) if isinstance(cid, int) else None
        if found is None:
            raise RequestRefused(unknown)
        return found

    def _asked_to_reload(
        self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes
    ) -> None:
        """A reload takes milliseconds: it waits for a turn, and all requests that came before it
        share it. Beyond WAITING_MAX they are dropped."""
        try:
            requests.read(payload)
        except requests.BadRequest as bad:
            self._answer(reply, failure(400, bad))
            return
        if len(self._reload_replies) >= WAITING_MAX:
            return
        self._reload_replies.append(reply)
        if len(self._reload_replies) == 1:
            account = self._observed.system_account.name
            self._observed.server.turns.wait(self._reload, account)

    def _reload(self) -> None:
        replies, self._reload_replies = self._reload_replies, []
        error = None
        try:
            self._reload_settings()
        except ValueError as refused:
            error = failure(500, refused)
        for reply in replies:
            self._answer(reply, error)
