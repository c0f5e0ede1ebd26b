"""Advisories and metrics on their way to whoever listens, on any node.

Owns: ids and times of events, who they are about (client), the check that somebody wants them.
May not touch: what events say (jetstream/advisories.py).
An event that nobody has subscribed to costs a cached lookup and is never encoded.
Spec: JetStream sheet 6."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.cluster.observe.asset_info import cluster_info
from broker.jetstream.api import advisories
from broker.jetstream.api.advisories import Event
from broker.jetstream.config.consumer_update import is_internal
from broker.jetstream.config.names import NUID_RANDOM_BYTES, nuid
from broker.jetstream.times import rfc3339
from broker.subjects import PublishingConnection
from raft import NodeId

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.cluster.node import JetStreamNode
    from broker.cluster.replica.replica import Replica
    from broker.jetstream.consumer.consumer import Consumer
    from broker.jetstream.delivery.effects import Advisory
    from broker.server.server import Server

Client = dict[str, object]


@dataclass(slots=True)
class Advisories:
    """One per node."""

    node: JetStreamNode

    @property
    def server(self) -> Server:
        return self.node.server

    def send(self, account: Account, event: Event) -> bool:
        """False when nobody listens."""
        if not self.server.router.has_interest(account, event.subject):
            return False
        body = advisories.encode_event(
            event,
            event_id=nuid(secrets.token_bytes(NUID_RANDOM_BYTES)),
            now_ns=self.node.now_ns(),
            domain=self.node.options.domain,
        )
        self.server.router.publish(account, event.subject, b"", b"", body)
        return True

    def audit(
        self,
        account: Account,
        origin: PublishingConnection | None,
        subject: bytes,
        request: bytes,
        response: bytes,
    ) -> None:
        """Somebody's use of the API."""
        if self.server.router.has_interest(account, advisories.AUDIT_SUBJECT):
            event = advisories.api_audit(
                server=self.server.name,
                client=self.client(origin, account),
                subject=subject,
                request=request,
                response=response,
            )
            self.send(account, event)

    def of_delivery(self, replica: Replica, consumer: Consumer, facts: list[Advisory]) -> None:
        """What one pump had to tell. A purge may end a great many messages at once: whether
        anybody listens is asked once per kind."""
        wanted: dict[str, bool] = {}
        for fact in facts:
            if fact.kind == "resumed":
                self.of_pause(replica, consumer)
            elif wanted.get(fact.kind, True):
                event = advisories.of_delivery(
                    fact,
                    account=replica.account.name,
                    stream=replica.name,
                    consumer=consumer.name,
                )
                wanted[fact.kind] = self.send(replica.account, event)

    def of_pause(self, replica: Replica, consumer: Consumer) -> None:
        event = advisories.consumer_pause(
            replica.name,
            consumer.name,
            paused=bool(consumer.paused_until_ns(self.node.now_ns())),
            until_ns=consumer.config.pause_until or 0,
        )
        self.send(replica.account, event)

    def of_consumer(self, replica: Replica, consumer: str, action: str) -> None:
        self.send(replica.account, advisories.consumer_action(replica.name, consumer, action))

    def of_batch(self, replica: Replica, batch: bytes, reason: str) -> None:
        event = advisories.batch_abandoned(replica.name, batch.decode(errors="replace"), reason)
        self.send(replica.account, event)

    def of_stream(self, account: Account, stream: str, action: str) -> None:
        self.send(account, advisories.stream_action(stream, action))

    def of_leadership(self, replica: Replica, leads: bool) -> None:  # noqa: FBT001
        """Registered with the node. A group of one elects nobody and loses no quorum."""
        peers = replica.assignment.peers
        if len(peers) < 2:
            return
        names = ["", *(n for n, c in replica.stream.consumers.items() if not is_internal(c.config))]
        facts = {"account": replica.account.name, "stream": replica.name}
        others = cluster_info(self.node, replica).replicas
        reachable = sum(self.node.mesh.connected(NodeId(peer)) for peer in peers)
        for consumer in names:
            if leads:
                event = advisories.leader_elected(
                    **facts, consumer=consumer, leader=self.server.name, replicas=others
                )
            elif 2 * reachable <= len(peers):
                event = advisories.quorum_lost(**facts, consumer=consumer, replicas=others)
            else:
                return
            self.send(replica.account, event)

    def client(self, origin: PublishingConnection | None, account: Account) -> Client:
        """What events tell of the client that caused them."""
        # A sink is told only the narrow side of a connection; the server has the whole of it.
        found = self.server.connections.get(origin.cid) if origin is not None else None
        if found is None:
            return {"acc": account.name}
        told: Client = {
            "start": rfc3339(int(found.started * 1e9)),
            "host": found.host,
            "id": found.cid,
            "acc": account.name,
            "user": found.identity.user,
            "name": found.connect.name,
            "lang": found.connect.lang,
            "ver": found.connect.version,
            "rtt": int(found.rtt_s * 1e9),
            "server": self.server.name,
            "cluster": self.node.mesh.cluster if len(self.node.members) > 1 else "",
            "kind": "Client",
            "client_type": "nats",
        }
        return {key: value for key, value in told.items() if value}
