"""Subscriptions, and the sinks that receive matching messages.

Owns: Subscription, and the Protocols of delivery: Sink, PublishingConnection, its rules, Tenant.
May not touch: the tree that finds subscriptions, sockets, storage.
Spec: NATS client protocol, SUB. A sink accepts a whole run of messages in one call."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.wire import PubRun


class SinkKind(Enum):
    CLIENT = "client"  # a client connection of this node
    ROUTE = "route"  # another node with interest
    LEAF = "leaf"  # a leaf node of ours: a server that takes part in one account
    HUB = "hub"  # the server whose leaf node we are
    STREAM = "stream"  # a stream that stores what matches
    SERVICE = "service"  # a service of this server
    SHARED = "cluster service"  # one that all nodes offer together: the JetStream API


# Sinks that stand for all subscribers behind a link: a message crosses it once.
LINKS = frozenset([SinkKind.ROUTE, SinkKind.LEAF, SinkKind.HUB])
LEAF_LINKS = frozenset([SinkKind.LEAF, SinkKind.HUB])
# Cluster-wide sinks, which every node offers to its clients. Only one node announces them to a hub:
# otherwise a message from there would be stored, or answered, once per node.
CLUSTER_WIDE = frozenset([SinkKind.STREAM, SinkKind.SHARED])
# Subscribers that only this node can reach: other nodes are told of them.
OWN = frozenset([SinkKind.CLIENT, SinkKind.LEAF])
# Subscribers outside of this node that no other node announces to us.
NOTICED = OWN | {SinkKind.HUB}


class Tenant(Protocol):
    """The account of a subscription, as this layer sees it."""

    @property
    def name(self) -> str: ...


class PublishRules(Protocol):
    """What a user may publish to. Permissions that count messages (allow_responses) are not
    considered, so asking uses nothing up."""

    def allows(self, subject: bytes) -> bool:
        """Whether every subject is allowed that the pattern or literal subject matches."""

    def allows_some(self, pattern: bytes) -> bool:
        """Whether at least one subject is allowed that the pattern matches."""

    def denies(self, subject: bytes) -> bool:
        """Whether a deny rule covers it (not: whether an allow rule is missing)."""


class PublishingConnection(Protocol):
    """The connection a publish came from, as a sink sees it."""

    cid: int
    echo: bool

    @property
    def rules(self) -> PublishRules | None:
        """None: its user may publish to everything."""

    def pause_reading(self) -> None:
        """Stop reading until resume_reading() has been called the same number of times."""

    def resume_reading(self) -> None: ...


class Sink(Protocol):
    """Receives messages. False means not accepted: the router tries another queue member."""

    @property
    def kind(self) -> SinkKind: ...

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        """Queue one message."""

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
    ) -> bool:
        """Queue the messages start..stop of the run. Services get one subject at a time: the
        return value must hold for all of the messages."""


@dataclass(slots=True, eq=False)
class Subscription:
    """One SUB, one peer's interest, one stream subject or one service subject."""

    sink: Sink
    account: Tenant
    subject: bytes
    queue: bytes = b""
    sid: bytes = b""
    max_msgs: int = 0  # 0 = no limit; reached when delivered == max_msgs
    delivered: int = 0
    weight: int = 1  # number of queue members behind a subscription of a link
    closed: bool = False
