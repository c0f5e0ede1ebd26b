"""Requests to the servers of a cluster: each one that is meant answers for itself.

Owns: the subjects in the system account, and the envelope of an answer.
May not touch: the documents; the monitor has the same ones.
A subject is subscribed to as a client would: peers hear of it, so that a request reaches every
server, and one for a server that is not there has no responders.
Spec: core contract 9.1 and 9.2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from broker.http.query import BadQuery
from broker.server.inbox import Inbox
from broker.server.runtime import Document, Query
from broker.system import requests
from broker.system.statsz import statsz

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.http.documents import Documents
    from broker.server.server import Server

Make = Callable[[Query], Document]

PING = "$SYS.REQ.SERVER.PING"


class Services:
    """What this server answers. Open from `start` on; the server's end is their end."""

    def __init__(self, server: Server, documents: Documents) -> None:
        self._server = server
        self._documents = documents
        self._inboxes: list[Inbox] = []

    def start(self) -> None:
        server = self._server
        self._subscribe(PING, self._statsz)
        for where in (PING, f"$SYS.REQ.SERVER.{server.id}"):
            self._subscribe(f"{where}.STATSZ", self._statsz)
            self._subscribe(f"{where}.IDZ", self._idz)
            self._answer(f"{where}.HEALTHZ", self._healthz)
            for name, make in self._documents.by_name.items():
                self._answer(f"{where}.{name.upper()}", make)

    def _answer(self, subject: str, make: Make) -> None:
        self._subscribe(subject, partial(self._asked, make))

    def _subscribe(self, subject: str, taken: Callable[[bytes, bytes, bytes, bytes], None]) -> None:
        account = self._system_account
        self._inboxes.append(Inbox(self._server.router, account, subject.encode(), taken))

    @property
    def _system_account(self) -> Account:
        return self._server.account(self._server.options.system_account)

    # -- answers --------------------------------------------------------------------------------

    def _asked(
        self, make: Make, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes
    ) -> None:
        if not reply:
            return
        document = answer(self._server, make, payload)
        if document is not None:
            self._send(reply, document)

    def _statsz(self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes) -> None:
        """Without a reply the answer goes where the regular ones go."""
        document = answer(self._server, self._numbers, payload)
        if document is None:
            return
        if "data" in document:
            document["statsz"] = document.pop("data")
        self._send(reply or f"$SYS.SERVER.{self._server.id}.STATSZ".encode(), document)

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
            self._send(reply, {"name": server.name, "host": server.host, "id": server.id})

    def _healthz(self, query: Query) -> Document:
        code, document = self._documents.healthz(query)
        return {**document, "status_code": code}

    def _send(self, to: bytes, document: Document) -> None:
        body = msgspec.json.encode(document)
        self._server.router.publish(self._system_account, to, b"", b"", body)


def answer(server: Server, make: Make, payload: bytes) -> Document | None:
    """The envelope, or None where another server is meant."""
    try:
        filters, asked = requests.read(payload)
        if not filters.mean(server):
            return None
        query = requests.query(asked)
    except requests.BadRequest as error:
        return {"server": server.about.stamp(), "error": _error(400, error)}
    try:
        data = make(query)
    except BadQuery as error:
        return {"server": server.about.stamp(), "data": None, "error": _error(500, error)}
    return {"server": server.about.stamp(), "data": data}


def _error(code: int, error: Exception) -> Document:
    return {"code": code, "description": str(error)}
