"""Routes messages to their subscribers, with one cached lookup per segment of equal subjects.

Owns: fan-out, the choice of a queue group member, echo, no responders, and the callbacks for
changes of interest.
May not touch: sockets, permissions, storage; those belong to the sinks.
Spec: NATS client protocol, PUB, SUB with a queue group, no responders."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from random import randrange
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from broker.accounts import Account
from broker.server.routing.bulk_service import BulkService
from broker.server.routing.fair_queue import TURN_S
from broker.server.routing.fan_out import FanOut, deal, deliver_limited
from broker.subjects import (
    LINKS,
    NOTICED,
    OWN,
    Match,
    PublishingConnection,
    Sink,
    SinkKind,
    Subscription,
)

if TYPE_CHECKING:
    from broker.wire import PubRun

LOOK_EVERY = 256  # deliveries between two readings of the clock
SERVICE_ROWS = 16  # requests between two readings of the clock: one takes 20 us and more
PIECE_MAX = 4096  # rows times recipients delivered in one piece
InterestCallback: TypeAlias = Callable[[Account, Subscription, bool], None]


class Publisher(PublishingConnection, Sink, Protocol):
    """A client connection, as the router needs it."""

    account: Account
    no_responders: bool
    guarded: bool  # its publishes must pass check_publish

    @property
    def closed(self) -> bool: ...

    @property
    def groups(self) -> frozenset[bytes] | None:
        """The queue groups that its messages are for; None: all. A server that forwards messages
        has already chosen a member of each other group."""

    def skips(self, sink: Sink) -> bool:
        """Whether its messages are not delivered to `sink`, for example because it is itself."""

    def check_publish(self, subject: bytes, start: int, stop: int) -> int:
        """The row up to which a segment may be published; a permission limited to a number of
        messages can end in the middle. Called once per piece of a segment. Sends the client an -ERR
        for each message that is refused."""


class ForwardingSink(Sink, Protocol):
    """The sink of a link: to another node, a leaf node or a hub."""

    def deliver_as(
        self, sub: Subscription, to: bytes, message: tuple[bytes, bytes, bytes, bytes]
    ) -> bool:
        """Deliver to the subscriptions on `to`, which see the message's own subject."""


class InspectingSink(Sink, Protocol):
    """A CLIENT sink. If `watchful`, it must be given every message by itself."""

    watchful: bool


class Router:
    """One per server. The accounts own the tables; the router delivers to what they match."""

    def __init__(self) -> None:
        self._interest: list[InterestCallback] = []
        self._bulk: BulkService | None = None
        self._timed: tuple[bytes, ...] = ()
        self._family = b""
        self._family_start: bytes | None = None  # first byte: tested before the whole prefix
        # Publishers whose turn ended between two recipients of a message.
        self._unfinished: dict[Publisher, FanOut] = {}

    def serve_in_bulk(self, service: BulkService) -> None:
        """Register the service that takes whole runs. It also subscribes like any other sink."""
        self._bulk = service
        self._timed = service.timed_prefixes
        self._family = service.family_prefix
        self._family_start = self._family[:1]

    # -- interest ---------------------------------------------------------------------------

    def on_interest(self, callback: InterestCallback) -> None:
        """Call `callback` for every subscription of a client, leaf node or hub that is added (True)
        or removed (False)."""
        self._interest.append(callback)

    def subscribe(self, account: Account, sub: Subscription) -> None:
        account.subs.insert(sub)
        if sub.sink.kind in NOTICED:
            for callback in self._interest:
                callback(account, sub, True)  # noqa: FBT003 - the contract of the callback

    def unsubscribe(self, account: Account, sub: Subscription) -> None:
        if not account.subs.remove(sub):
            return
        sub.closed = True
        if sub.sink.kind in NOTICED:
            for callback in self._interest:
                callback(account, sub, False)  # noqa: FBT003

    def has_interest(self, account: Account, subject: bytes, *, queue: bytes = b"") -> bool:
        """Whether this subject has a subscriber; with `queue`, a member of that group."""
        found = account.subs.match(subject)
        if not queue:
            return bool(found)
        return any(pool[0].queue == queue for pool in found.queues)

    def bulk(self, account: Account, deliver_to: bytes) -> Subscription | None:
        """The subscription, if exactly one matches and it is a plain CLIENT of this node; or None.

        Reply subjects with a common prefix (`prefix.` + token) share one cached result."""
        found = None
        if not deliver_to.endswith(b"."):
            found = account.subs.match_prefix(deliver_to[: deliver_to.rfind(b".") + 1])
        if found is None:
            found = account.subs.match(deliver_to)
        return _plain_client(found)

    def bulk_family(self, account: Account, prefix: bytes) -> Subscription | None:
        """Like `bulk`, for all of `prefix` + one token; None when the token matters."""
        found = account.subs.match_prefix(prefix)
        return None if found is None else _plain_client(found)

    # -- publishing -------------------------------------------------------------------------

    def publish_run(self, publisher: Publisher, run: PubRun, first: int = 0) -> int:
        """Deliver every message from row `first` on to all its subscribers, in order.

        Returns the row it stopped at. Less than the whole run means that the turn of this client is
        over: the caller continues later, before anything else this client has sent."""
        if not first and len(run) == 1 and self.publish_one(publisher, run):
            return 1
        return self.publish_rest(publisher, run, first)

    def publish_rest(self, publisher: Publisher, run: PubRun, first: int) -> int:
        """Like `publish_run`, for a run that `publish_one` did not take."""
        deadline = time.perf_counter() + TURN_S
        if self._unfinished and publisher in self._unfinished:
            first = self._finish(publisher, run, first, deadline)
            if publisher in self._unfinished or first == len(run):
                return first
        bulk = self._bulk
        spans = bulk.compact_spans(run) if bulk is not None else None
        recipient = (
            self._compact_subscription(publisher, bulk) if spans and bulk is not None else None
        )
        if recipient is None or spans is None or bulk is None:
            return self._publish_rows(publisher, run, first, len(run), deadline)
        row = first
        for start, stop, compact in spans:
            if stop <= row:
                continue  # in an earlier turn
            if start > row:
                row = self._publish_rows(publisher, run, row, start, deadline)
                if row < start:
                    return row
            bulk.deliver_compact(recipient, compact)
            row = stop
        if row < len(run):
            row = self._publish_rows(publisher, run, row, len(run), deadline)
        return row

    def publish_one(self, publisher: Publisher, run: PubRun) -> bool:
        """Fast path for the most common run: one message for one recipient, or one request (such
        as a get) to the bulk service. False: the run does not qualify, and nothing was done."""
        if publisher.guarded:
            return False
        subject = run.names(0)[0]
        if subject[:1] == self._family_start and subject.startswith(self._family):
            return self._asked_one(publisher, run, subject)
        found = publisher.account.subs.match(subject)
        sub = found.single
        if sub is None or not found.quick or sub.max_msgs:
            return False
        sink = sub.sink
        if sink is self._bulk or publisher.skips(sink):
            return False
        if not sink.deliver_run(sub, run, 0, 1, publisher):
            self._not_taken(publisher, run, 0, 1)
        return True

    def _asked_one(self, publisher: Publisher, run: PubRun, subject: bytes) -> bool:
        bulk = self._bulk
        if bulk is None:
            return False
        sub = self._match_family(publisher, subject).single
        if sub is None or sub.sink is not bulk or sub.max_msgs:
            return False
        if not bulk.deliver_timed_one(sub, run, publisher):
            self._not_taken(publisher, run, 0, 1)
        return True

    def _publish_rows(
        self, publisher: Publisher, run: PubRun, first: int, last: int, deadline: float
    ) -> int:
        match = publisher.account.subs.match
        family = self._family_match(publisher)
        family_start = self._family_start
        recipient: Subscription | None = None  # sole recipient of the rows since `begun`
        begun = first
        reached = last
        work = 0
        for subject, start, stop in run.segments(first, last):
            in_family = subject[:1] == family_start
            found = self._match_family(publisher, subject) if in_family else match(subject)
            joinable = found.quick or found is family
            late = work > LOOK_EVERY
            if recipient is not None and (
                not (joinable and found.single is recipient)  # otherwise the rows are joined
                or (late and _is_service(recipient.sink))
            ):
                done = self._to_one(publisher, recipient, run, begun, start, deadline=deadline)
                if done < start:
                    return done
                recipient = None
            if late:
                if time.perf_counter() > deadline:
                    reached = start
                    break
                work = 0
            work += 2 if joinable else found.weight + 1
            if recipient is not None:
                continue
            sub = found.single
            if joinable and sub is not None and not sub.max_msgs and not publisher.guarded:
                recipient, begun = sub, start
                continue
            work += LOOK_EVERY if subject.startswith(self._timed) else 0
            done = self._in_pieces(publisher, run, found, start, stop=stop, deadline=deadline)
            if done < stop:
                return done
        if recipient is not None:
            return self._to_one(publisher, recipient, run, begun, reached, deadline=deadline)
        return reached

    def _in_pieces(
        self, publisher: Publisher, run: PubRun, found: Match, start: int, *, stop: int,
        deadline: float,
    ) -> int:  # fmt: skip
        """Deliver one segment. With many rows and recipients, the turn may end between pieces."""
        sub = found.single
        share = max(1, PIECE_MAX // (found.weight or 1))
        if sub is None and run.segments(start, start + 1)[0][0].startswith(self._timed):
            share = 1  # slow requests with subscribers besides the service
        for row in range(start, stop, share):
            if row > start and time.perf_counter() > deadline:
                return row
            end = min(row + share, stop)
            if publisher.guarded:
                end = publisher.check_publish(run.names(row)[0], row, end)
                if end == row:
                    continue
            if sub is not None and not sub.max_msgs:
                reached = self._to_one(publisher, sub, run, row, end, deadline=deadline)
                if reached < end:
                    return reached
                continue
            fan_out = FanOut(found, run, row, end)
            if not self._deliver(publisher, fan_out, deadline):
                return row
        return stop

    def _deliver(self, publisher: Publisher, fan_out: FanOut, deadline: float) -> bool:
        """False: the publisher's turn is over; its next turn begins with the rest."""
        if not fan_out.go_on(publisher, deadline):
            self._unfinished = {one: it for one, it in self._unfinished.items() if not one.closed}
            self._unfinished[publisher] = fan_out
            return False
        if fan_out.covered < fan_out.stop:
            self._not_taken(publisher, fan_out.run, fan_out.covered, fan_out.stop)
        return True

    def _finish(self, publisher: Publisher, run: PubRun, first: int, deadline: float) -> int:
        """Finish a fan-out of an earlier turn. Returns the row to continue from: `first`, if the
        turn ended again in the middle of it."""
        fan_out = self._unfinished.pop(publisher, None)
        if fan_out is None or fan_out.run is not run or fan_out.start != first:
            return first
        return fan_out.stop if self._deliver(publisher, fan_out, deadline) else first

    def _to_one(
        self, publisher: Publisher, sub: Subscription, run: PubRun, start: int, stop: int, *,
        deadline: float,
    ) -> int:  # fmt: skip
        """Deliver to a single recipient. Returns the row it stopped at: less than `stop` if
        requests used up the turn."""
        bulk = self._bulk
        if bulk is not None and sub.sink is bulk and run.names(start)[0].startswith(self._timed):
            reached, missing = bulk.deliver_timed(
                sub, run, start, stop, publisher, deadline=deadline
            )
            for row in missing:
                self._not_taken(publisher, run, row, row + 1)
            return reached
        silent = publisher.skips(sub.sink)
        share = SERVICE_ROWS if _is_service(sub.sink) else stop - start
        for row in range(start, stop, share):
            if row > start and time.perf_counter() > deadline:
                return row
            end = min(row + share, stop)
            if silent or not sub.sink.deliver_run(sub, run, row, end, publisher):
                self._not_taken(publisher, run, row, end)
        return stop

    def _not_taken(self, publisher: Publisher, run: PubRun, start: int, stop: int) -> None:
        if publisher.no_responders and run.any_reply(start, stop):
            self._tell_no_responders_rows(publisher, run, start, stop)

    # -- services that take whole runs --------------------------------------------------------

    def _match_family(self, publisher: Publisher, subject: bytes) -> Match:
        """Like match, but with one result for all subjects of the family, if they share it."""
        subs = publisher.account.subs
        found = None
        if subject.startswith(self._family) and b".." not in subject and subject[-1:] != b".":
            found = subs.match_family(self._family)
        return subs.match(subject) if found is None else found

    def _family_match(self, publisher: Publisher) -> Match | None:
        """The match of the whole family, if the bulk service is its only subscriber."""
        if self._bulk is None:
            return None
        found = publisher.account.subs.match_family(self._family)
        sub = found.single if found is not None else None
        return found if sub is not None and sub.sink is self._bulk else None

    def _compact_subscription(self, publisher: Publisher, bulk: BulkService) -> Subscription | None:
        """The bulk service's subscription to compact messages, if it is the only subscriber."""
        if publisher.guarded:
            return None
        found = publisher.account.subs.match_family(bulk.compact_prefix)
        sub = found.single if found is not None else None
        return sub if sub is not None and sub.sink is bulk else None

    def publish(
        self,
        account: Account,
        subject: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        *,
        deliver_to: bytes | None = None,
        publisher: Publisher | None = None,
    ) -> int:
        """Deliver one message to the subscriptions that match `deliver_to`; they see `subject`.
        Returns the number of recipients."""
        found = account.subs.match(subject if deliver_to is None else deliver_to)
        skips = _skip_nothing if publisher is None else publisher.skips
        give = _deliver if deliver_to is None else partial(_deliver_to, deliver_to)
        delivered = 0
        for sub in found.plain:
            sink = sub.sink
            if not skips(sink) and give(sub, subject, reply, headers, payload):
                delivered += 1
        groups = None if publisher is None else publisher.groups
        for pool in found.queues:
            if groups is not None and pool[0].queue not in groups:
                continue
            turn = randrange(len(pool))
            spare = (found.spare or {}).get(pool[0].queue, ())
            for sub in (*pool[turn:], *pool[:turn], *spare):
                sink = sub.sink
                if not skips(sink) and give(sub, subject, reply, headers, payload):
                    delivered += 1
                    break
        if not delivered and reply and publisher is not None and publisher.no_responders:
            self.tell_no_responders(publisher, subject, reply)
        return delivered

    def deliver_local_run(
        self,
        account: Account,
        run: PubRun,
        *,
        queue: bytes = b"",
        publisher: PublishingConnection | None = None,
        skips: Callable[[Sink], bool] | None = None,
    ) -> int:
        """Messages from a peer: to the clients and leaf nodes of this node only, never to another
        node.

        Without `queue`, to the plain subscriptions; with it, each message to exactly one member
        of that group, because the sending node has chosen this node for the group."""
        skips = skips or _skip_nothing
        delivered = 0
        for subject, start, stop in run.segments():
            found = account.subs.match(subject)
            if not queue:
                for sub in found.plain:
                    if sub.sink.kind in OWN and not skips(sub.sink):
                        delivered += deliver_limited(sub, run, start, stop, publisher) - start
                continue
            for pool in found.local_queues():
                if pool[0].queue == queue:
                    taken = deal(pool, run, start, stop, publisher, skips=skips)
                    delivered += taken - start
        return delivered

    def _tell_no_responders_rows(
        self, publisher: Publisher, run: PubRun, start: int, stop: int
    ) -> None:
        for row in range(start, stop):
            subject, reply, _, _ = run.message(row)
            if reply:
                self.tell_no_responders(publisher, subject, reply)

    def tell_no_responders(self, publisher: Publisher, subject: bytes, reply: bytes) -> None:
        """503 to the publisher alone, if it is subscribed to the reply subject."""
        for sub in publisher.account.subs.match(reply).plain:
            if sub.sink is publisher:
                status = b"NATS/1.0 503\r\nNats-Subject: " + subject + b"\r\n\r\n"
                sub.sink.deliver(sub, reply, b"", status, b"")
                return


def _deliver(
    sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
) -> bool:
    return sub.sink.deliver(sub, subject, reply, headers, payload)


def _deliver_to(  # noqa: PLR0917 - as _deliver
    to: bytes, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
) -> bool:
    if sub.sink.kind in LINKS:
        message = (subject, reply, headers, payload)
        return cast(ForwardingSink, sub.sink).deliver_as(sub, to, message)
    return sub.sink.deliver(sub, subject, reply, headers, payload)


def _is_service(sink: Sink) -> bool:
    kind = sink.kind
    return kind is SinkKind.SERVICE or kind is SinkKind.SHARED


def _skip_nothing(sink: Sink) -> bool:
    return False


def _plain_client(found: Match) -> Subscription | None:
    sub = found.single
    if sub is None or sub.max_msgs or sub.sink.kind is not SinkKind.CLIENT:
        return None
    # A watchful client must be given each message by itself, by deliver().
    return None if cast(InspectingSink, sub.sink).watchful else sub
