"""Interest between nodes: announces our clients' subscriptions to peers, and records theirs.

Owns: the interest that this node has announced, and the route subscriptions that represent the
interest of its peers.
May not touch: Raft, streams. A stream captures a message on the node of its publisher, so a routed
message is delivered to client subscriptions only.
Each node dials its own links, so either direction may break alone. The interest of a peer is valid
while we have links to it; when links come up, both sides send everything.
Spec: NATS clustering: interest by account, subject and queue group; messages travel one hop, in
order per link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from broker.cluster.peers.channels import CHANNEL_INTEREST
from broker.cluster.peers.peer_sink import (
    DeliverFrame,
    PeerSink,
    RoutedFrame,
    Send,
    SubscriptionKey,
    encode_frame,
)
from broker.cluster.peers.queue_shares import queue_shares
from broker.cluster.peers.route_rules import RouteRules, allowed_rows
from broker.server.leaf.leaf_sink import LeafSink
from broker.server.tracing import tracing
from broker.subjects import OWN, Sink, SinkKind, Subscription
from broker.wire import ClientParser, Op, PubRun
from raft import NodeId

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.server.routing.router import Router
    from broker.server.tracing.tracing import Tracing

ANNOUNCE_RETRY_S = 0.05  # before interest is announced again to a peer whose queue was full


class InterestFrame(msgspec.Struct, array_like=True):
    """Changes since the previous frame. `reset`: the list is complete and replaces all earlier
    ones. `ask`: the sender wants the receiver's complete interest."""

    reset: bool
    changes: list[tuple[str, bytes, bytes, int]]  # account, subject, queue, members (0 = gone)
    ask: bool = False


_interest = msgspec.msgpack.Decoder(InterestFrame)
_routed = msgspec.msgpack.Decoder(RoutedFrame)
_deliver = msgspec.msgpack.Decoder(DeliverFrame)


@dataclass(slots=True)
class _Missed:
    """Changes that a peer did not get because the queue of its link was full."""

    everything: bool
    keys: dict[SubscriptionKey, None]


@dataclass(slots=True)
class Interest:
    """Both directions of interest."""

    router: Router
    send: Send
    account: Callable[[str], Account]
    tracing: Tracing
    on_change: list[Callable[[str, bytes], None]] = field(default_factory=list)
    # Called when a peer asks for our interest: until now it may not have known any of it.
    on_asked: list[Callable[[NodeId], None]] = field(default_factory=list)
    sinks: dict[NodeId, PeerSink] = field(default_factory=dict)  # of peers with links
    rules: RouteRules | None = None  # None: everything crosses
    _members: dict[SubscriptionKey, int] = field(default_factory=dict)
    # Changed and not announced yet. Invariant: empty while there are no peers.
    _changed: dict[SubscriptionKey, None] = field(default_factory=dict)
    _missed: dict[NodeId, _Missed] = field(default_factory=dict)
    _retry_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.router.on_interest(self._local_change)

    def restrict(self, rules: RouteRules | None) -> None:
        """What may cross has changed: begin again with all peers."""
        self.rules = rules
        for peer, sink in self.sinks.items():
            sink.rules = rules
            for key in list(sink.subscriptions):
                if rules is not None and not rules.exports(key[1], key[2]):
                    self._withdraw(sink, key)
            self._announce_all(peer, ask=True)

    # -- our interest ---------------------------------------------------------------------------

    def _local_change(self, account: Account, sub: Subscription, added: bool) -> None:  # noqa: FBT001
        self._notify(account.name, sub.subject)
        if sub.sink.kind not in OWN:
            return  # a subscription of our hub: other nodes have their own connections to it
        key = (account.name, sub.subject, sub.queue)
        before = self._members.get(key, 0)
        members = before + (sub.weight if added else -sub.weight)
        if members > 0:
            self._members[key] = members
        else:
            self._members.pop(key, None)
        # Peers need the member count of a queue group; for plain subscriptions, only whether one
        # exists.
        if self.sinks and (sub.queue or not before or members <= 0):
            if not self._changed:
                asyncio.get_running_loop().call_soon(self.flush)
            self._changed[key] = None

    def flush(self) -> None:
        """Announce changes. Called before anything that depends on them is sent."""
        if self._changed:
            changed, self._changed = self._changed, {}
            frame = self._frame(changed)
            for peer in self.sinks:
                missed = self._missed.get(peer)
                if missed is not None:
                    missed.keys.update(changed)
                elif not self.send(peer, CHANNEL_INTEREST, frame):
                    self._missed[peer] = _Missed(everything=False, keys=dict(changed))
        if self._missed:
            self._announce_missed()

    def peer_joined(self, peer: NodeId) -> None:
        """Links to the peer are up: exchange complete interest."""
        if peer not in self.sinks:
            self.sinks[peer] = PeerSink(peer, self.send, self.flush)
            self.sinks[peer].rules = self.rules
        self._announce_all(peer, ask=True)

    def peer_left(self, peer: NodeId) -> None:
        self._missed.pop(peer, None)
        sink = self.sinks.pop(peer, None)
        if sink is not None:
            for key in list(sink.subscriptions):
                self._withdraw(sink, key)
        if not self.sinks:
            self._changed.clear()
        if not self._missed and self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    def _frame(
        self, keys: Iterable[SubscriptionKey], *, reset: bool = False, ask: bool = False
    ) -> bytes:
        rules = self.rules
        changes = [
            (*key, self._members.get(key, 0))
            for key in keys
            if rules is None or rules.imports(key[1])
        ]
        return encode_frame(InterestFrame(reset=reset, changes=changes, ask=ask))

    def _announce_all(self, peer: NodeId, *, ask: bool) -> None:
        frame = self._frame(self._members, reset=True, ask=ask)
        if self.send(peer, CHANNEL_INTEREST, frame):
            self._missed.pop(peer, None)
        else:
            self._missed[peer] = _Missed(everything=True, keys={})
            self._retry_later()

    def _announce_missed(self) -> None:
        """Retry for peers whose queue was full: they would never learn of these subscriptions."""
        for peer, missed in list(self._missed.items()):
            if missed.everything:
                frame = self._frame(self._members, reset=True, ask=True)
            else:
                frame = self._frame(missed.keys)
            if self.send(peer, CHANNEL_INTEREST, frame):
                del self._missed[peer]
        if self._missed:
            self._retry_later()

    def _retry_later(self) -> None:
        if self._retry_timer is None:
            loop = asyncio.get_running_loop()
            self._retry_timer = loop.call_later(ANNOUNCE_RETRY_S, self._retry_due)

    def _retry_due(self) -> None:
        self._retry_timer = None
        self.flush()

    def exact_here(self, account: Account, subject: bytes) -> bool:
        """Whether a client of this node subscribes to exactly this subject, not only to a
        pattern."""
        return any(sub.subject == subject for sub in account.subs.match(subject).plain)

    def exact_at_peer(self, account: Account, subject: bytes, *, queue: bytes = b"") -> bool:
        """The same for clients of other nodes. Matching in the tree would not answer this: the tree
        has one subscription per peer, which may be a pattern."""
        key = (account.name, subject, queue)
        return any(key in sink.subscriptions for sink in self.sinks.values())

    # -- peers ----------------------------------------------------------------------------------

    def received_interest(self, peer: NodeId, frame: bytes) -> None:
        message = _interest.decode(frame)
        sink = self.sinks.get(peer)
        if sink is None:
            return  # nothing can be sent to it; its interest is requested when links come up
        if message.reset:
            # Remove only subscriptions that no longer exist: watchers must not see the others
            # removed and added again.
            listed = {(account, subject, queue) for account, subject, queue, _ in message.changes}
            for key in [key for key in sink.subscriptions if key not in listed]:
                self._withdraw(sink, key)
        for account_name, subject, queue, members in message.changes:
            self._set_members(sink, (account_name, subject, queue), members)
        if message.ask:
            self._announce_all(peer, ask=False)
            for callback in self.on_asked:
                callback(peer)

    def _set_members(self, sink: PeerSink, key: SubscriptionKey, members: int) -> None:
        account_name, subject, queue = key
        known = sink.subscriptions.get(key)
        if self.rules is not None and not self.rules.exports(subject, queue):
            return
        if not members:
            self._withdraw(sink, key)
        elif known is None:
            account = self.account(account_name)
            sub = Subscription(sink, account, subject, queue, weight=members)
            sink.subscriptions[key] = sub
            account.subs.insert(sub)
            self._notify(account_name, subject)
        elif known.weight != members:
            self.account(account_name).subs.reweigh(known, members)

    def _withdraw(self, sink: PeerSink, key: SubscriptionKey) -> None:
        sub = sink.subscriptions.pop(key, None)
        if sub is not None:
            self.account(key[0]).subs.remove(sub)
            self._notify(key[0], key[1])

    def received_routed(self, peer: NodeId, frame: bytes) -> None:
        message = _routed.decode(frame)
        account = self.account(message.account)
        sink = self.sinks.get(peer)
        parser = ClientParser(max_control_line=1 << 20, max_payload=1 << 30)
        for event in parser.receive(message.protocol):
            if event[0] != Op.PUB:
                raise ValueError("routed frame holds an operation that is not a publish")
            if sink is not None:
                sink.messages_in += len(event[1])
                sink.bytes_in += event[1].total_bytes
            for run in self._imported(event[1]):
                self._take_routed(peer, account, run, message)

    def _imported(self, run: PubRun) -> Iterable[PubRun]:
        """Without the messages that may not come in."""
        if self.rules is None:
            return (run,)
        rows = allowed_rows(run, 0, len(run), self.rules.imports)
        return [PubRun.of([run.message(row) for row in range(*piece)]) for piece in rows]

    def _take_routed(
        self, peer: NodeId, account: Account, routed: PubRun, message: RoutedFrame
    ) -> None:
        traced = tracing.rows(routed, account) if routed.has_headers else None
        pieces = tracing.pieces(routed, traced) if traced else [(routed, False)]
        for run, alone in pieces:
            if not alone or not self.tracing.routed(
                peer, account, run, plain=message.plain, queues=message.queues
            ):
                self._deliver_routed(account, run, message)

    def _deliver_routed(self, account: Account, run: PubRun, message: RoutedFrame) -> None:
        origin = message.origin

        def skips(sink: Sink) -> bool:
            return isinstance(sink, LeafSink) and sink.cluster == origin

        if message.plain:
            self.router.deliver_local_run(account, run, skips=skips if origin else None)
        for queue in message.queues:
            self.router.deliver_local_run(
                account, run, queue=queue, skips=skips if origin else None
            )

    def received_deliver(self, _peer: NodeId, frame: bytes) -> None:
        message = _deliver.decode(frame)
        if self.rules is not None and not self.rules.imports(message.to):
            return
        match = self.account(message.account).subs.match(message.to)
        messages = message.messages
        shares = [(s, messages) for s in match.plain if message.plain]
        for members in match.queues:
            local = [s for s in members if s.sink.kind in OWN]
            if local and local[0].queue in message.queues:
                shares += queue_shares(local, messages)
        for sub, share in shares:
            if isinstance(sub.sink, LeafSink):
                if sub.sink.kind in OWN:
                    for one in share:
                        sub.sink.deliver_as(sub, message.to, one)
            elif sub.sink.kind is SinkKind.CLIENT:
                for subject, reply, headers, payload in share:
                    sub.sink.deliver(sub, subject, reply, headers, payload)

    def _notify(self, account_name: str, subject: bytes) -> None:
        for callback in self.on_change:
            callback(account_name, subject)
