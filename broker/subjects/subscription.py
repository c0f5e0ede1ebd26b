"""Who wants a subject, and where what matches it goes.

Owns: Subscription, and the seams (Sink, Origin, Tenant) through which a message leaves.
May not touch: the table that finds subscriptions, sockets, storage.
Spec: core contract 1.10; every sink takes a whole run of messages at once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.wire import PubRun


class SinkKind(Enum):
    CLIENT = "client"  # a connection of this node
    ROUTE = "route"  # another node that has interest
    STREAM = "stream"  # a stream that stores what matches
    SERVICE = "service"  # something this server answers itself


class Tenant(Protocol):
    """The account a subscription belongs to, as far as this layer needs to know."""

    @property
    def name(self) -> str: ...


class PublishingConnection(Protocol):
    """The connection a publish came from, as a sink sees it."""

    cid: int
    echo: bool

    def pause_reading(self) -> None:
        """Read no more from it until resume_reading() was called as often."""

    def resume_reading(self) -> None: ...


class Sink(Protocol):
    """Takes messages. True means taken: a False makes the router look for another taker."""

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
        origin: PublishingConnection | None,
    ) -> bool:
        """Queue the messages start..stop of the run. Services get one subject at a time: the
        answer must hold for all of the messages."""


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
    weight: int = 1  # members a ROUTE queue subscription stands for
    closed: bool = False
