"""Subscriptions, and the sinks that receive matching messages.

Owns: Subscription, and the Protocols of delivery: Sink, PublishingConnection, its rules, Tenant.
May not touch: the tree that finds subscriptions, sockets, storage.
Spec: NATS client protocol, SUB. A sink accepts a whole run of messages at once."""

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
# What the cluster has as a whole, and every node offers to its clients. A hub hears of it from one
# node only: its messages would be stored, or answered, as often as there are nodes.
CLUSTER_WIDE = frozenset([SinkKind.STREAM, SinkKind.SHARED])
# Subscribers that only this node can reach: other nodes are told of them.
OWN = frozenset([SinkKind.CLIENT, SinkKind.LEAF])
# Subscribers outside of this node that no other node tells us of.
NOTICED = OWN | {SinkKind.HUB}


class Tenant(Protocol):
    """The account of a subscription, as this layer sees it."""

    @property
    def name(self) -> str: ...


class PublishRules(Protocol):
    """What a user may publish to. Permissions that count messages (allow_responses) are left out:
    these questions use nothing up."""

    def allows(self, subject: bytes) -> bool:
        """Every subject that the pattern or literal subject matches."""

    def allows_some(self, pattern: bytes) -> bool:
        """At least one subject that the pattern matches."""

    def denies(self, subject: bytes) -> bool:
        """A deny rule covers it, as opposed to: no allow rule does."""


class PublishingConnection(Protocol):
    """The connection a publish came from, as a sink sees it."""

    cid: int
    echo: bool

    @property
    def rules(self) -> PublishRules | None:
        """None: its user may publish to everything."""

    def pause_reading(self) -> None:
        """Stop reading until resume_reading() has been called as often."""

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
