"""Requests about accounts: the system account may ask about any account, others about themselves.

Owns: the subjects under $SYS.REQ.ACCOUNT, and those that every account has for itself.
May not touch: accounts other than the one asked about.
Spec: NATS system account, $SYS.REQ.ACCOUNT."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

import msgspec

from broker.accounts import Account
from broker.monitor.documents.accountz import (
    account_info,
    account_numbers,
    accstatz,
    has_jetstream,
)
from broker.monitor.documents.documents import Documents
from broker.monitor.documents.query import BadQuery
from broker.monitor.observed import Observed
from broker.monitor.system.responder import Responder
from broker.server.routing.internal_subscription import InternalSubscription
from broker.server.services import Document, Query
from broker.subjects import SinkKind, Steps, Subscription, has_wildcard, is_subset

EVERY = "PING"  # in place of an account's name: all of them
OWN_CONNZ = ("$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.ACCOUNT.PING.CONNZ")
OWN_STATZ = "$SYS.REQ.ACCOUNT.PING.STATZ"
AccountMake = Callable[[str, Query], Steps[Document] | Steps[Document | None]]


class _Question(msgspec.Struct):
    acc: str = ""
    subject: str = ""
    queue: str = ""  # in base64


class AccountServices:
    """The answers of this server about its accounts."""

    def __init__(self, responder: Responder, documents: Documents) -> None:
        self._responder = responder
        self._observed = responder.observed
        self._documents = documents

    def start(self) -> None:
        makes: dict[str, AccountMake] = {
            "CONNZ": self._connz,
            "SUBSZ": lambda name, query: self._of("subsz", name, {"subs": "true", **query}),
            "LEAFZ": lambda name, query: self._of("leafz", name, query),
            "JSZ": self._jsz,
            "INFO": lambda name, _: self._info(name),
            "STATZ": self._statz,
        }
        for service, make in makes.items():
            self._listen(service, make)
        self._responder.listen("$SYS.REQ.ACCOUNT.*.CONNS", self._conns)
        self._responder.listen("$SYS.REQ.ACCOUNT.NSUBS", self._subscribers)

    def serve(self, account: Account) -> None:
        """Services of an ordinary account: its own connections and its own numbers."""
        name = account.name
        for subject in OWN_CONNZ:
            self._responder.serve(subject, lambda query: self._connz(name, query), account)
        self._responder.serve(OWN_STATZ, lambda query: self._statz(name, query), account)

    def _listen(self, service: str, make: AccountMake) -> None:
        def taken(subject: bytes, *request: bytes) -> None:
            name = _account_in(subject)
            self._responder.answer(lambda query: make(name, query), *request)

        self._responder.listen(f"$SYS.REQ.ACCOUNT.*.{service}", taken)

    # -- documents ------------------------------------------------------------------------------

    def _of(self, document: str, name: str, query: Query) -> Steps[Document]:
        return self._documents.by_name[document]({**query, "acc": name})

    def _connz(self, name: str, query: Query) -> Steps[Document]:
        return self._of("connz", "" if name == EVERY else name, query)

    def _info(self, name: str) -> Steps[Document]:
        return account_info(self._observed, name)
        yield

    def _jsz(self, name: str, query: Query) -> Steps[Document]:
        if name not in self._observed.server.accounts:
            raise BadQuery(f'account "{name}" not found')
        if not has_jetstream(self._observed, name):
            raise BadQuery(f'account "{name}" not jetstream enabled')
        document = yield from self._of("jsz", name, query)
        details = document.get("account_details", [])
        empty: Document = {"name": name, "id": name, "memory": 0, "storage": 0}
        return details[0] if details else empty

    def _statz(self, name: str, query: Query) -> Steps[Document | None]:
        """Accounts without connections are omitted; None if the named account is one of them."""
        unused = query.get("include_unused") == "true"
        if name == EVERY:
            return (yield from accstatz(self._observed, unused=unused))
        account = self._observed.server.accounts.get(name)
        if account is None or not (unused or account.connections):
            return None
        return (yield from accstatz(self._observed, [name], unused=True))

    def _conns(self, subject: bytes, reply: bytes, _headers: bytes, _payload: bytes) -> None:
        account = self._observed.server.accounts.get(_account_in(subject))
        if reply and account is not None and account.connections:
            self._responder.send(reply, connections_event(self._observed, account))

    def _subscribers(self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes) -> None:
        """How many of this server's clients subscribe to a subject, as bare digits."""
        try:
            question = msgspec.json.decode(payload, type=_Question)
            queue = base64.b64decode(question.queue)
        except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError):
            return
        account = self._observed.server.accounts.get(question.acc)
        if account is not None and reply:
            count = b"%d" % subscriber_count(account, question.subject.encode(), queue)
            self._observed.server.router.publish(
                self._observed.system_account, reply, b"", b"", count
            )


def subscriber_count(account: Account, subject: bytes, queue: bytes = b"") -> int:
    """Of clients; a subject with wildcards counts the subscriptions within it."""
    if has_wildcard(subject):
        return sum(
            _is_client(sub) and (not queue or sub.queue == queue)
            for sub in account.subs
            if is_subset(sub.subject, subject)
        )
    found = account.subs.match(subject)
    pools = [] if queue else [found.plain]
    pools += [pool for pool in found.local_queues() if not queue or pool[0].queue == queue]
    return sum(_is_client(sub) for pool in pools for sub in pool)


def _is_client(sub: Subscription) -> bool:
    return sub.sink.kind is SinkKind.CLIENT and not isinstance(sub.sink, InternalSubscription)


def connections_event(observed: Observed, account: Account) -> Document:
    return observed.event("account_connections") | account_numbers(
        account, leafs=observed.server.leafs.count(account.name)
    )


def _account_in(subject: bytes) -> str:
    return subject.split(b".")[3].decode(errors="replace")
