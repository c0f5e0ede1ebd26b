"""Requests to servers: each one that is meant answers for itself.

Owns: the subjects under $SYS.REQ.SERVER, and what one server can be ordered to do.
May not touch: the documents; the monitor has the same ones.
Spec: core contract 9.2."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.monitor.system import requests
from broker.monitor.system.responder import enveloped, failure
from broker.monitor.system.statsz import statsz
from broker.server.client.close_reason import Reason
from broker.server.services import Document, Query

if TYPE_CHECKING:
    from broker.monitor.documents.documents import Documents
    from broker.monitor.system.responder import Responder
    from broker.server.client.connection import Connection

PING = "$SYS.REQ.SERVER.PING"
Order = Callable[[dict[str, Any]], None]  # raises Refused


class RequestRefused(Exception):
    """An order that was not carried out; str() says why (500)."""


class Services:
    """What this server answers of itself."""

    def __init__(self, desk: Responder, documents: Documents) -> None:
        self._desk = desk
        self._server = desk.server
        self._documents = documents

    def start(self) -> None:
        desk, ours = self._desk, f"$SYS.REQ.SERVER.{self._server.id}"
        desk.listen(PING, self._statsz)
        for where in (PING, ours):
            desk.listen(f"{where}.STATSZ", self._statsz)
            desk.listen(f"{where}.IDZ", self._idz)
            desk.serve(f"{where}.HEALTHZ", self._healthz)
            for name, make in self._documents.by_name.items():
                desk.serve(f"{where}.{name.upper()}", self._jsz if name == "jsz" else make)
        orders = {"KICK": self._kick, "LDM": self._send_away, "RELOAD": self._reload}
        for name, order in orders.items():
            desk.listen(f"{ours}.{name}", partial(self._ordered, order))

    # -- documents ------------------------------------------------------------------------------

    def _statsz(self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes) -> None:
        """Without a reply the answer goes where the regular ones go."""
        document = enveloped(self._server, self._numbers, payload)
        if document is None:
            return
        if "data" in document:
            document["statsz"] = document.pop("data")
        self._desk.send(reply or f"$SYS.SERVER.{self._server.id}.STATSZ".encode(), document)

    def _numbers(self, _: Query) -> Document:
        return statsz(self._server, cpu=self._documents.cpu.percent())

    def _idz(self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes) -> None:
        """Who is there, whatever else the body says."""
        server = self._server
        try:
            meant = requests.read(payload)[0].mean(server)
        except requests.BadRequest:
            meant = True
        if reply and meant:
            self._desk.send(reply, {"name": server.name, "host": server.host, "id": server.id})

    def _healthz(self, query: Query) -> Document:
        code, document = self._documents.healthz(query)
        return {**document, "status_code": code}

    def _jsz(self, query: Query) -> Document | None:
        """With leader_only, of the server that leads the meta group."""
        document = self._documents.by_name["jsz"](query)
        leader = document.get("meta_cluster", {}).get("leader", self._server.name)
        if query.get("leader-only") == "true" and leader != self._server.name:
            return None
        return document

    # -- orders ---------------------------------------------------------------------------------

    def _ordered(
        self, order: Order, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes
    ) -> None:
        """Carried out in the next turn: it may close whoever is being served in this one."""
        asyncio.get_running_loop().call_soon(self._carry_out, order, reply, payload)

    def _carry_out(self, order: Order, reply: bytes, payload: bytes) -> None:
        error = None
        try:
            order(requests.read(payload)[1])
        except requests.BadRequest as bad:
            error = failure(400, bad)
        except RequestRefused as refused:
            error = failure(500, refused)
        if reply:
            document: Document = {"server": self._server.about.stamp()}
            self._desk.send(reply, document | ({} if error is None else {"error": error}))

    def _kick(self, asked: dict[str, Any]) -> None:
        self._connection(asked, "no such client or leafnode id").close(Reason.KICKED)

    def _send_away(self, asked: dict[str, Any]) -> None:
        connection = self._connection(asked, "no such client id")
        connection.queue(self._server.info_line(connection, ldm=True))

    def _connection(self, asked: dict[str, Any], unknown: str) -> Connection:
        cid = asked.get("cid")
        found = self._server.connections.get(cid) if isinstance(cid, int) else None
        if found is None:
            raise RequestRefused(unknown)
        return found

    def _reload(self, _: dict[str, Any]) -> None:
        try:
            self._server.reload()
        except ValueError as error:
            raise RequestRefused(str(error)) from error
