"""Who wants which subjects on other nodes, and the messages that follow from it.

Owns: the interest this node has told its peers, the route subscriptions that stand for theirs,
and the frames that carry routed messages. One message crosses to a peer once, however many of
its subscriptions match.
May not touch: Raft, streams. A stream captures a message at the node its publisher is connected
to, so routed messages reach client subscriptions only.
Each node dials its own links, so either direction may break alone. Interest of a peer counts
while we have links to it, and whoever gets links asks for all of it.
Spec: core contract 8.1 (interest per account, subject, queue; one hop; order per link)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from broker.cluster.peers.channels import CHANNEL_INTEREST, CHANNEL_ROUTED
from broker.server.tracing import tracing
from broker.subjects import PublishingConnection, SinkKind, Subscription
from broker.wire import ClientParser, Op, PubRun, encode_pub

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.server.routing.router import Router
    from broker.server.tracing.tracing import Tracing
from raft import NodeId

ROUTED_BYTES_MAX = 1 << 20  # a routed frame is sent once it holds this much
RETELL_AFTER_S = 0.05  # a peer whose queue was full hears what it missed

Key = tuple[str, bytes, bytes]  # account, subject, queue

_pack = encode_frame = msgspec.msgpack.Encoder().encode


class InterestFrame(msgspec.Struct, array_like=True):
    """Changes since the last frame. `reset`: this is everything, what it does not list is gone.
    `ask`: tell me everything of yours."""

    reset: bool
    changes: list[tuple[str, bytes, bytes, int]]  # account, subject, queue, members (0 = gone)
    ask: bool = False


class RoutedFrame(msgspec.Struct, array_like=True):
    account: str
    plain: bool
    queues: list[bytes]
    protocol: bytes  # PUB and HPUB lines, as a client would have sent them


class DeliverFrame(msgspec.Struct, array_like=True):
    """Messages for the subscriptions on `to`, shown under another subject (JetStream)."""

    account: str
    to: bytes
    plain: bool
    queues: list[bytes]
    messages: list[tuple[bytes, bytes, bytes, bytes]]


_interest = msgspec.msgpack.Decoder(InterestFrame)
_routed = msgspec.msgpack.Decoder(RoutedFrame)
_deliver = msgspec.msgpack.Decoder(DeliverFrame)

Send = Callable[[NodeId, int, bytes], bool]


@dataclass(slots=True)
class _Queued:
    """Rows of a run on their way to a peer, with everybody there who should get them."""

    account: str
    run: PubRun
    start: int
    stop: int
    targets: list[bytes]  # queue groups; b"" stands for the plain subscriptions


class PeerSink:
    """The stand-in for all subscriptions of one peer. Collects a turn's messages per link."""

    kind = SinkKind.ROUTE

    def __init__(self, peer: NodeId, send: Send, before_send: Callable[[], None]) -> None:
        self.peer = peer
        self.subscriptions: dict[Key, Subscription] = {}
        self._send = send
        self._before_send = before_send
        self._queued: list[_Queued] = []
        self._single: tuple[object, ...] | None = None  # what deliver() queued last
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_out = 0
        self.bytes_out = 0

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        # One publish reaches several subscriptions as the same objects: they share a run, so
        # that it crosses once. Equal publishes that come to share one lose nothing by it.
        single = (sub.account, subject, reply, headers, payload)
        known = self._single
        if known is not None and all(a is b for a, b in zip(known, single, strict=True)):
            run = self._queued[-1].run
        else:
            run = PubRun.of([(subject, reply, headers, payload)])
        self.deliver_run(sub, run, 0, 1, None)
        self._single = single
        return True

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        origin: PublishingConnection | None,
    ) -> bool:
        self._single = None
        last = self._queued[-1] if self._queued else None
        if last is None:
            asyncio.get_running_loop().call_soon(self.flush)
        elif (
            last.run is run
            and last.start == start
            and last.stop == stop
            and sub.queue not in last.targets
        ):
            last.targets.append(sub.queue)
            return True
        self._queued.append(_Queued(sub.account.name, run, start, stop, [sub.queue]))
        return True

    def flush(self) -> None:
        if not self._queued:
            return
        queued, self._queued = self._queued, []
        self._single = None
        self._before_send()
        parts: list[bytes] = []
        size = 0
        first: _Queued | None = None
        for piece in _pieces(queued):
            if first is not None and (size >= ROUTED_BYTES_MAX or not _same_target(piece, first)):
                self._send_frame(first, parts)
                first, parts, size = None, [], 0
            first = first or piece
            part = encode_pub(piece.run, piece.start, piece.stop)
            parts.append(part)
            size += len(part)
            self.messages_out += piece.stop - piece.start
            self.bytes_out += piece.run.size(piece.start, piece.stop)
        if first is not None:
            self._send_frame(first, parts)

    def _send_frame(self, first: _Queued, parts: list[bytes]) -> None:
        """What finds no room in the link is dropped: at most once is what was promised."""
        queues = [queue for queue in first.targets if queue]
        frame = RoutedFrame(first.account, b"" in first.targets, queues, b"".join(parts))
        self._send(self.peer, CHANNEL_ROUTED, _pack(frame))


def _pieces(queued: list[_Queued]) -> Iterator[_Queued]:
    """The same rows for the same takers, every row of a run in one piece only."""
    at = 0
    while at < len(queued):
        end = at + 1
        while end < len(queued) and queued[end].run is queued[at].run:
            end += 1
        yield from queued[at:end] if end == at + 1 else _cut(queued[at:end])
        at = end


def _cut(queued: list[_Queued]) -> Iterator[_Queued]:
    """A queue group takes slices of what the plain subscriptions take whole: cut at every edge,
    so that a row shared by several takers crosses with all of them named."""
    account, run = queued[0].account, queued[0].run
    edges = sorted({edge for item in queued for edge in (item.start, item.stop)})
    begins: dict[int, list[_Queued]] = {}
    for item in queued:
        begins.setdefault(item.start, []).append(item)
    active: list[_Queued] = []
    for start, stop in pairwise(edges):
        active = [item for item in active if item.stop > start] + begins.get(start, [])
        targets = [queue for item in active for queue in item.targets]
        # A group named twice for a row means the row was published to it twice.
        while targets:
            once = list(dict.fromkeys(targets))
            yield _Queued(account, run, start, stop, once)
            for queue in once:
                targets.remove(queue)


def _same_target(one: _Queued, other: _Queued) -> bool:
    return one.account == other.account and one.targets == other.targets


@dataclass(slots=True)
class _Behind:
    """What a peer has not heard because its queue was full."""

    everything: bool
    keys: dict[Key, None]


@dataclass(slots=True)
class Interest:
    """Both sides of interest: what we told, what we were told."""

    router: Router
    send: Send
    account: Callable[[str], Account]
    tracing: Tracing
    on_change: list[Callable[[str, bytes], None]] = field(default_factory=list)
    sinks: dict[NodeId, PeerSink] = field(default_factory=dict)  # of the peers we have links to
    _members: dict[Key, int] = field(default_factory=dict)
    _changed: dict[Key, None] = field(default_factory=dict)  # and not told; empty without peers
    _behind: dict[NodeId, _Behind] = field(default_factory=dict)
    _retell_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.router.on_interest(self._local_change)

    # -- ours, told to peers --------------------------------------------------------------------

    def _local_change(self, account: Account, sub: Subscription, added: bool) -> None:  # noqa: FBT001
        self._changed_here(account.name, sub.subject)
        key = (account.name, sub.subject, sub.queue)
        members = self._members.get(key, 0) + (1 if added else -1)
        if members > 0:
            self._members[key] = members
        else:
            self._members.pop(key, None)
        # Peers count the members of a queue group; of plain subscriptions they know whether.
        if self.sinks and (sub.queue or members == (1 if added else 0)):
            if not self._changed:
                asyncio.get_running_loop().call_soon(self.flush)
            self._changed[key] = None

    def flush(self) -> None:
        """Tell peers what changed. Runs before anything that depends on it leaves."""
        if self._changed:
            changed, self._changed = self._changed, {}
            frame = self._frame(changed)
            for peer in self.sinks:
                behind = self._behind.get(peer)
                if behind is not None:
                    behind.keys.update(changed)
                elif not self.send(peer, CHANNEL_INTEREST, frame):
                    self._behind[peer] = _Behind(everything=False, keys=dict(changed))
        if self._behind:
            self._retell()

    def peer_joined(self, peer: NodeId) -> None:
        """We have links to the peer: it hears everything, and is asked for everything."""
        if peer not in self.sinks:
            self.sinks[peer] = PeerSink(peer, self.send, self.flush)
        self._tell_everything(peer, ask=True)

    def peer_left(self, peer: NodeId) -> None:
        self._behind.pop(peer, None)
        sink = self.sinks.pop(peer, None)
        if sink is not None:
            for key in list(sink.subscriptions):
                self._withdraw(sink, key)
        if not self.sinks:
            self._changed.clear()
        if not self._behind and self._retell_timer is not None:
            self._retell_timer.cancel()
            self._retell_timer = None

    def _frame(self, keys: Iterable[Key], *, reset: bool = False, ask: bool = False) -> bytes:
        changes = [(*key, self._members.get(key, 0)) for key in keys]
        return _pack(InterestFrame(reset=reset, changes=changes, ask=ask))

    def _tell_everything(self, peer: NodeId, *, ask: bool) -> None:
        frame = self._frame(self._members, reset=True, ask=ask)
        if self.send(peer, CHANNEL_INTEREST, frame):
            self._behind.pop(peer, None)
        else:
            self._behind[peer] = _Behind(everything=True, keys={})
            self._retell_later()

    def _retell(self) -> None:
        """Without this a peer that was slow once would miss our subscriptions for good."""
        for peer, behind in list(self._behind.items()):
            if behind.everything:
                frame = self._frame(self._members, reset=True, ask=True)
            else:
                frame = self._frame(behind.keys)
            if self.send(peer, CHANNEL_INTEREST, frame):
                del self._behind[peer]
        if self._behind:
            self._retell_later()

    def _retell_later(self) -> None:
        if self._retell_timer is None:
            loop = asyncio.get_running_loop()
            self._retell_timer = loop.call_later(RETELL_AFTER_S, self._retell_due)

    def _retell_due(self) -> None:
        self._retell_timer = None
        self.flush()

    def exact_here(self, account: Account, subject: bytes) -> bool:
        """Whether a client of this node subscribes to just this subject, not to a pattern."""
        return any(sub.subject == subject for sub in account.subs.match(subject).plain)

    def exact_at_peer(self, account: Account, subject: bytes, *, queue: bytes = b"") -> bool:
        """The same for the clients of other nodes. A match shows one subscription per peer, and
        that may be the pattern."""
        key = (account.name, subject, queue)
        return any(key in sink.subscriptions for sink in self.sinks.values())

    # -- theirs ---------------------------------------------------------------------------------

    def received_interest(self, peer: NodeId, frame: bytes) -> None:
        message = _interest.decode(frame)
        sink = self.sinks.get(peer)
        if sink is None:
            return  # no links to it: we could send it nothing, and ask again once we have
        if message.reset:
            # Only what is gone is withdrawn: what stays must not seem to have been away.
            listed = {(account, subject, queue) for account, subject, queue, _ in message.changes}
            for key in [key for key in sink.subscriptions if key not in listed]:
                self._withdraw(sink, key)
        for account_name, subject, queue, members in message.changes:
            self._take(sink, (account_name, subject, queue), members)
        if message.ask:
            self._tell_everything(peer, ask=False)

    def _take(self, sink: PeerSink, key: Key, members: int) -> None:
        account_name, subject, queue = key
        known = sink.subscriptions.get(key)
        if not members:
            self._withdraw(sink, key)
        elif known is None:
            account = self.account(account_name)
            sub = Subscription(sink, account, subject, queue, weight=members)
            sink.subscriptions[key] = sub
            account.subs.insert(sub)
            self._changed_here(account_name, subject)
        elif known.weight != members:
            known.weight = members
            self.account(account_name).subs.changed(known)

    def _withdraw(self, sink: PeerSink, key: Key) -> None:
        sub = sink.subscriptions.pop(key, None)
        if sub is not None:
            self.account(key[0]).subs.remove(sub)
            self._changed_here(key[0], key[1])

    def received_routed(self, peer: NodeId, frame: bytes) -> None:
        message = _routed.decode(frame)
        account = self.account(message.account)
        sink = self.sinks.get(peer)
        parser = ClientParser(max_control_line=1 << 20, max_payload=1 << 30)
        for event in parser.receive(message.protocol):
            if event[0] != Op.PUB:
                raise ValueError("routed frame holds something else than publishes")
            if sink is not None:
                sink.messages_in += len(event[1])
                sink.bytes_in += event[1].total_bytes
            traced = tracing.rows(event[1], account) if event[1].has_headers else None
            pieces = tracing.pieces(event[1], traced) if traced else [(event[1], False)]
            for run, alone in pieces:
                if not alone or not self.tracing.routed(
                    peer, account, run, plain=message.plain, queues=message.queues
                ):
                    self._deliver_routed(account, run, message)

    def _deliver_routed(self, account: Account, run: PubRun, message: RoutedFrame) -> None:
        if message.plain:
            self.router.deliver_local_run(account, run)
        for queue in message.queues:
            self.router.deliver_local_run(account, run, queue=queue)

    def received_deliver(self, _peer: NodeId, frame: bytes) -> None:
        message = _deliver.decode(frame)
        match = self.account(message.account).subs.match(message.to)
        targets = [s for s in match.plain if message.plain and s.sink.kind is SinkKind.CLIENT]
        for members in match.queues:
            local = [s for s in members if s.sink.kind is SinkKind.CLIENT]
            if local and local[0].queue in message.queues:
                targets.append(random.choice(local))
        for sub in targets:
            for subject, reply, headers, payload in message.messages:
                sub.sink.deliver(sub, subject, reply, headers, payload)

    def _changed_here(self, account_name: str, subject: bytes) -> None:
        for callback in self.on_change:
            callback(account_name, subject)
