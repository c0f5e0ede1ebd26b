"""Who wants which subjects on other nodes, and the messages that follow from it.

Owns: the interest this node has told its peers, the route subscriptions that stand for theirs,
and the frames that carry routed messages. One message crosses to a peer once, however many of
its subscriptions match.
May not touch: Raft, streams. A stream captures a message at the node its publisher is connected
to, so routed messages reach client subscriptions only.
Spec: core sheet 8.1 (interest per account, subject, queue; one hop; order per link)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from broker.subjects import Origin, SinkKind, Subscription
from broker.wire import ClientParser, Op, PubRun, encode_pub

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.server.router import Router
from raft import NodeId

CHANNEL_INTEREST = 16
CHANNEL_ROUTED = 17
CHANNEL_DELIVER = 18

_pack = encode_frame = msgspec.msgpack.Encoder().encode


class InterestFrame(msgspec.Struct, array_like=True):
    """Changes since the last frame; `reset` precedes everything a fresh link learns."""

    reset: bool
    changes: list[tuple[str, bytes, bytes, int]]  # account, subject, queue, members (0 = gone)


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
    """A segment on its way to a peer, with everybody there who should get it."""

    account: str
    run: PubRun
    start: int
    stop: int
    plain: bool
    queues: list[bytes]


class PeerSink:
    """The stand-in for all subscriptions of one peer. Collects a turn's messages per link."""

    kind = SinkKind.ROUTE

    def __init__(self, peer: NodeId, send: Send, before_send: Callable[[], None]) -> None:
        self.peer = peer
        self.subscriptions: dict[tuple[str, bytes, bytes], Subscription] = {}
        self._send = send
        self._before_send = before_send
        self._queued: list[_Queued] = []
        self.messages_out = 0
        self.bytes_out = 0

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        run = PubRun.of([(subject, reply, headers, payload)])
        return self.deliver_run(sub, run, 0, 1, None)

    def deliver_run(
        self, sub: Subscription, run: PubRun, start: int, stop: int, origin: Origin | None
    ) -> bool:
        last = self._queued[-1] if self._queued else None
        if last is None or last.run is not run or last.start != start or last.stop != stop:
            if last is None:
                asyncio.get_running_loop().call_soon(self.flush)
            last = _Queued(sub.account.name, run, start, stop, plain=False, queues=[])
            self._queued.append(last)
            self.messages_out += stop - start
            self.bytes_out += run.size(start, stop)
        if sub.queue:
            last.queues.append(sub.queue)
        else:
            last.plain = True
        return True

    def flush(self) -> None:
        if not self._queued:
            return
        queued, self._queued = self._queued, []
        self._before_send()
        index = 0
        while index < len(queued):
            first = queued[index]
            parts = [encode_pub(first.run, first.start, first.stop)]
            index += 1
            while index < len(queued) and _same_target(queued[index], first):
                parts.append(encode_pub(queued[index].run, queued[index].start, queued[index].stop))
                index += 1
            frame = RoutedFrame(first.account, first.plain, first.queues, b"".join(parts))
            self._send(self.peer, CHANNEL_ROUTED, _pack(frame))


def _same_target(one: _Queued, other: _Queued) -> bool:
    return (
        one.account == other.account and one.plain == other.plain and one.queues == other.queues
    )


@dataclass(slots=True)
class Interest:
    """Both sides of interest: what we told, what we were told."""

    router: Router
    send: Send
    account: Callable[[str], Account]
    on_change: list[Callable[[str, bytes], None]] = field(default_factory=list)
    sinks: dict[NodeId, PeerSink] = field(default_factory=dict)
    _members: dict[tuple[str, bytes, bytes], int] = field(default_factory=dict)
    _changed: dict[tuple[str, bytes, bytes], None] = field(default_factory=dict)

    def start(self) -> None:
        self.router.on_interest(self._local_change)

    # -- ours, told to peers ------------------------------------------------------------------

    def _local_change(self, account: Account, sub: Subscription, added: bool) -> None:  # noqa: FBT001
        self._changed_here(account.name, sub.subject)
        key = (account.name, sub.subject, sub.queue)
        members = self._members.get(key, 0) + (1 if added else -1)
        if members > 0:
            self._members[key] = members
        else:
            self._members.pop(key, None)
        if sub.queue or members <= 1:
            if not self._changed and self.sinks:
                asyncio.get_running_loop().call_soon(self.flush)
            self._changed[key] = None

    def flush(self) -> None:
        """Tell peers what changed. Runs before anything that depends on it leaves."""
        if not self._changed:
            return
        changes = [(*key, self._members.get(key, 0)) for key in self._changed]
        self._changed.clear()
        frame = _pack(InterestFrame(reset=False, changes=changes))
        for peer in self.sinks:
            self.send(peer, CHANNEL_INTEREST, frame)

    def peer_joined(self, peer: NodeId) -> None:
        if peer not in self.sinks:
            self.sinks[peer] = PeerSink(peer, self.send, self.flush)
        everything = [(*key, members) for key, members in self._members.items()]
        self.send(peer, CHANNEL_INTEREST, _pack(InterestFrame(reset=True, changes=everything)))

    def peer_left(self, peer: NodeId) -> None:
        sink = self.sinks.pop(peer, None)
        if sink is not None:
            self._forget(sink)

    # -- theirs ---------------------------------------------------------------------------------

    def received_interest(self, peer: NodeId, frame: bytes) -> None:
        message = _interest.decode(frame)
        sink = self.sinks.get(peer)
        if sink is None:
            sink = self.sinks[peer] = PeerSink(peer, self.send, self.flush)
        if message.reset:
            self._forget(sink)
        for account_name, subject, queue, members in message.changes:
            key = (account_name, subject, queue)
            known = sink.subscriptions.get(key)
            tree = self.account(account_name).subs
            if members and known is None:
                sub = Subscription(
                    sink=sink,
                    account=self.account(account_name),
                    subject=subject,
                    queue=queue,
                    weight=members,
                )
                sink.subscriptions[key] = sub
                tree.insert(sub)
            elif members and known is not None and known.weight != members:
                known.weight = members
                tree.changed(known)
            elif not members and known is not None:
                tree.remove(known)
                del sink.subscriptions[key]
            self._changed_here(account_name, subject)

    def received_routed(self, _peer: NodeId, frame: bytes) -> None:
        message = _routed.decode(frame)
        account = self.account(message.account)
        parser = ClientParser(max_control_line=1 << 20, max_payload=1 << 30)
        for event in parser.receive(message.protocol):
            if event[0] != Op.PUB:
                raise ValueError("routed frame holds something else than publishes")
            if message.plain:
                self.router.deliver_local_run(account, event[1])
            for queue in message.queues:
                self.router.deliver_local_run(account, event[1], queue=queue)

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

    def _forget(self, sink: PeerSink) -> None:
        gone, sink.subscriptions = sink.subscriptions, {}
        for (account_name, subject, _), sub in gone.items():
            self.account(account_name).subs.remove(sub)
            self._changed_here(account_name, subject)

    def _changed_here(self, account_name: str, subject: bytes) -> None:
        for callback in self.on_change:
            callback(account_name, subject)
