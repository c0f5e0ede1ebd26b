"""Sending a stream's messages to subscribers, on this node or on others.

Owns: encoding in bulk for the common case (one local subscriber), one frame per peer otherwise.
May not touch: the choice of messages, which the delivery engine makes.
Spec: NATS JetStream consumers: a delivered message has its own subject and an ack reply, but is
routed by the deliver subject."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from broker.cluster.peers.channels import CHANNEL_DELIVER
from broker.cluster.peers.peer_sink import DeliverFrame, PeerSink, encode_frame
from broker.cluster.peers.queue_shares import queue_shares
from broker.jetstream.delivery.effects import Deliver
from broker.server.leaf.leaf_sink import LeafSink
from broker.server.routing.imports import CROSSINGS_MAX, StreamImport
from broker.store.block.codec import encode_deliveries
from broker.subjects import SinkKind, Subscription
from broker.wire import headers as wire_headers
from raft import NodeId

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.server.client.client_sink import ClientSink
    from broker.server.routing.router import Router

AT_ONCE_BYTES: Final = 8 << 10  # up to this much is written to the socket immediately

SendFrame = Callable[[NodeId, int, bytes], bool]
Message = tuple[bytes, bytes, bytes, bytes]  # subject, reply, headers, payload


class MessageSender:
    """Sends the messages of one stream that this node leads."""

    def __init__(
        self, router: Router, send_frame: SendFrame, account: Account, stream: str
    ) -> None:
        self._router = router
        self._send_frame = send_frame
        self._account = account
        self._ack_prefix = b"$JS.ACK.%b." % stream.encode()

    def deliver(self, effect: Deliver, consumer: str, *, alone: bool = False) -> None:
        """`alone`: nothing else is sent with it, so waiting for more would only add latency."""
        prefix = self._ack_prefix + consumer.encode()
        target = self._router.bulk(self._account, effect.to)
        if target is not None and not effect.headers_only and not effect.pin_id:
            sink = cast("ClientSink", target.sink)
            data = encode_deliveries(
                effect.rows, effect.indices, target.sid, prefix, effect.delivered,
                effect.consumer_seq, effect.pending, sink.headers_ok,
            )  # fmt: skip
            at_once = alone and len(data) <= AT_ONCE_BYTES and not target.max_msgs
            deliver = sink.deliver_answers if at_once else sink.deliver_encoded
            deliver(
                target, data, messages=len(effect.indices), payload_bytes=_payload_bytes(effect)
            )
            return
        self._send(self._account, effect.to, _messages(effect, prefix))

    def status(self, to: bytes, reply: bytes, header: bytes) -> None:
        """Send a status message: without payload, with its deliver subject as subject."""
        self._send(self._account, to, [(to, reply, header, b"")])

    def _send(
        self, account: Account, to: bytes, messages: list[Message], crossings: int = 0
    ) -> None:
        match = account.subs.match(to)
        for sub in match.plain:
            if isinstance(sub.sink, StreamImport):
                local = sub.sink.mapped(to)
                if local is not None and crossings < CROSSINGS_MAX:
                    self._send(sub.sink.target, local, messages, crossings + 1)
            else:
                self._give(account, to, sub, messages)
        for members in match.queues:
            for sub, share in queue_shares(members, messages):
                self._give(account, to, sub, share)

    def _give(
        self, account: Account, to: bytes, sub: Subscription, messages: list[Message]
    ) -> None:
        if isinstance(sub.sink, LeafSink):
            for message in messages:
                sub.sink.deliver_as(sub, to, message)
            return
        if sub.sink.kind is not SinkKind.ROUTE:
            for message in messages:
                sub.sink.deliver(sub, *message)
            return
        queues = [sub.queue] if sub.queue else []
        frame = DeliverFrame(account.name, to, not queues, queues, messages)
        peer = cast(PeerSink, sub.sink).peer
        self._send_frame(peer, CHANNEL_DELIVER, encode_frame(frame))


def _payload_bytes(effect: Deliver) -> int:
    return sum(map(effect.rows.row_size, effect.indices))


def _messages(effect: Deliver, prefix: bytes) -> list[Message]:
    rows = effect.rows
    found: list[Message] = []
    for k, i in enumerate(effect.indices):
        count = effect.delivered[k] if effect.delivered is not None else 1
        reply = b"%b.%d.%d.%d.%d.%d" % (
            prefix, count, rows.seq(i), effect.consumer_seq + k, rows.time(i), effect.pending - k,
        )  # fmt: skip
        headers, payload = rows.headers(i), rows.data(i)
        if effect.headers_only:
            headers = wire_headers.add(headers, [(b"Nats-Msg-Size", b"%d" % len(payload))])
            payload = b""
        if effect.pin_id:
            headers = wire_headers.add(headers, [(b"Nats-Pin-Id", effect.pin_id.encode())])
        found.append((rows.subject(i), reply, headers, payload))
    return found
