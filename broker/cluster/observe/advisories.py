"""JetStream advisories and metrics: events published to subscribers on any node.

Owns: ids and times of events, the client they are about, the check that there are subscribers.
May not touch: what events contain (broker/jetstream/api/advisories.py).
An event without subscribers costs a cached lookup and is never encoded. Bounds: AT_ONCE advisories
of deliveries are sent immediately; up to WAITING_MAX per account wait for its turns.
Spec: NATS JetStream advisories ($JS.EVENT.ADVISORY.>)."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from broker.cluster.observe.asset_info import AssetInfo
from broker.jetstream.api import advisories
from broker.jetstream.api.advisories import Event
from broker.jetstream.config.consumer_update import is_internal
from broker.jetstream.config.names import NUID_RANDOM_BYTES, nuid
from broker.jetstream.times import rfc3339
from broker.subjects import PublishingConnection
from raft import NodeId

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.cluster.replica.replica import Replica
    from broker.jetstream.consumer.consumer import Consumer
    from broker.jetstream.delivery.effects import Advisory
    from broker.server.routing.router import Router

Client = dict[str, object]
AT_ONCE: Final = 32  # advisories of one pump of an engine that are sent immediately
WAITING_MAX: Final = 10_000  # advisories of an account that wait; further ones are dropped


class _User(Protocol):
    @property
    def user(self) -> str: ...


class _Library(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def lang(self) -> str: ...
    @property
    def version(self) -> str: ...


class AdvisedConnection(Protocol):
    """A client connection, as far as events describe it."""

    @property
    def cid(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def started(self) -> float: ...
    @property
    def identity(self) -> _User: ...
    @property
    def connect(self) -> _Library: ...
    @property
    def rtt_s(self) -> float: ...


def _at_once(act: Callable[[], None], _account: str) -> None:
    act()


@dataclass(slots=True)
class Advisories:
    """One per node."""

    router: Router
    info: AssetInfo
    connection: Callable[[int], AdvisedConnection | None]  # by cid
    now_ns: Callable[[], int]
    later: Callable[[Callable[[], None], str], None] = _at_once  # in a turn of that account
    dropped: int = 0  # beyond WAITING_MAX
    _waiting: dict[str, deque[tuple[Account, Event]]] = field(default_factory=dict)  # by account

    def send(self, account: Account, event: Event) -> bool:
        """False when it has no subscribers."""
        if not self.router.has_interest(account, event.subject):
            return False
        body = advisories.encode_event(
            event,
            event_id=nuid(secrets.token_bytes(NUID_RANDOM_BYTES)),
            now_ns=self.now_ns(),
            domain=self.info.domain,
        )
        self.router.publish(account, event.subject, b"", b"", body)
        return True

    def audit(
        self,
        account: Account,
        publisher: PublishingConnection | None,
        subject: bytes,
        request: bytes,
        response: bytes,
    ) -> None:
        """The audit advisory: a client has used the API."""
        if self.router.has_interest(account, advisories.AUDIT_SUBJECT):
            event = advisories.api_audit(
                server=self.info.server_name,
                client=self.client(publisher, account),
                subject=subject,
                request=request,
                response=response,
            )
            self.send(account, event)

    def of_delivery(
        self, account: Account, stream: str, consumer: Consumer, facts: list[Advisory]
    ) -> None:
        """The advisories of one pump of an engine. A purge may terminate very many messages:
        interest is checked once per kind; the first advisories are sent now, the others in turns of
        the account."""
        wanted: dict[str, bool] = {}
        sent = 0 if account.name not in self._waiting else AT_ONCE
        for fact in facts:
            if fact.kind == "resumed":
                self.of_pause(account, stream, consumer)
            elif wanted.get(fact.kind, True):
                event = advisories.of_delivery(
                    fact, account=account.name, stream=stream, consumer=consumer.name
                )
                if sent < AT_ONCE:
                    wanted[fact.kind] = self.send(account, event)
                    sent += wanted[fact.kind]
                else:
                    self._send_later(account, event)

    def _send_later(self, account: Account, event: Event) -> None:
        waiting = self._waiting.get(account.name)
        if waiting is None:
            self._waiting[account.name] = deque([(account, event)])
            self.later(partial(self._send_some, account.name), account.name)
        elif len(waiting) < WAITING_MAX:
            waiting.append((account, event))
        else:
            self.dropped += 1

    def _send_some(self, account: str) -> None:
        waiting = self._waiting[account]
        for _ in range(min(AT_ONCE, len(waiting))):
            self.send(*waiting.popleft())
        if waiting:
            self.later(partial(self._send_some, account), account)
        else:
            del self._waiting[account]

    def of_pause(self, account: Account, stream: str, consumer: Consumer) -> None:
        event = advisories.consumer_pause(
            stream,
            consumer.name,
            paused=bool(consumer.paused_until_ns(self.now_ns())),
            until_ns=consumer.config.pause_until or 0,
        )
        self.send(account, event)

    def of_consumer(self, account: Account, stream: str, consumer: str, action: str) -> None:
        self.send(account, advisories.consumer_action(stream, consumer, action))

    def of_batch(self, account: Account, stream: str, batch: bytes, reason: str) -> None:
        event = advisories.batch_abandoned(stream, batch.decode(errors="replace"), reason)
        self.send(account, event)

    def of_stream(self, account: Account, stream: str, action: str) -> None:
        self.send(account, advisories.stream_action(stream, action))

    def of_leadership(self, replica: Replica, leads: bool) -> None:  # noqa: FBT001
        """This node became leader or stopped leading. A group of one has no elections and no
        quorum."""
        peers = replica.assignment.peers
        if len(peers) < 2:
            return
        names = ["", *(n for n, c in replica.stream.consumers.items() if not is_internal(c.config))]
        facts = {"account": replica.account.name, "stream": replica.name}
        others = self.info.cluster(replica).replicas
        reachable = sum(self.info.links.connected(NodeId(peer)) for peer in peers)
        for consumer in names:
            if leads:
                event = advisories.leader_elected(
                    **facts, consumer=consumer, leader=self.info.server_name, replicas=others
                )
            elif 2 * reachable <= len(peers):
                event = advisories.quorum_lost(**facts, consumer=consumer, replicas=others)
            else:
                return
            self.send(replica.account, event)

    def client(self, publisher: PublishingConnection | None, account: Account) -> Client:
        """What events say about the client that caused them."""
        # A sink sees only a narrow interface of the connection; the server has the object itself.
        found = self.connection(publisher.cid) if publisher is not None else None
        if found is None:
            return {"acc": account.name}
        client: Client = {
            "start": rfc3339(int(found.started * 1e9)),
            "host": found.host,
            "id": found.cid,
            "acc": account.name,
            "user": found.identity.user,
            "name": found.connect.name,
            "lang": found.connect.lang,
            "ver": found.connect.version,
            "rtt": int(found.rtt_s * 1e9),
            "server": self.info.server_name,
            "cluster": self.info.links.cluster if self.info.members.clustered else "",
            "kind": "Client",
            "client_type": "nats",
        }
        return {key: value for key, value in client.items() if value}
