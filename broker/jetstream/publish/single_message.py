"""One message of its own: checked, then stored.

Owns: the order in which checks and storing follow each other.
May not touch: batches, blocks, what the row is answered in the end.
Spec: JetStream sheet 3.3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.jetstream.commands.publish_entry import Bounds
from broker.jetstream.config import Discard
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.publish.checks import above_account, full, refusal
from broker.jetstream.publish.counters import value_of
from broker.jetstream.publish.message import IncomingMessage
from broker.jetstream.publish.sessions import Duplicate, Stored
from broker.jetstream.publish.store_message import store_message
from broker.jetstream.publish.ttl import parse_ttl

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream


def publish_single(
    stream: Stream, message: IncomingMessage, bounds: Bounds | None
) -> JetStreamError | Duplicate | Stored | None:
    """Store it, or say why not. None: it took the next sequence."""
    refused = refusal(stream, message)
    if refused is not None:
        return refused
    if bounds is not None and stream.store.bytes > bounds.server:
        return JetStreamError(ErrCode.INSUFFICIENT_RESOURCES)
    if stream.wants(message.subject):
        broken = above_account(stream, message, bounds) or _unfit(stream, message)
        if broken is not None:
            return broken
    store_message(stream, message)
    if stream.config.allow_msg_counter:
        return Stored(stream.store.last_seq, val=value_of(message.data))
    return None


def _unfit(stream: Stream, message: IncomingMessage) -> JetStreamError | None:
    named = message.named
    if b"Nats-TTL" in named and parse_ttl(named[b"Nats-TTL"]) is None:
        return JetStreamError(ErrCode.MESSAGE_TTL_INVALID)
    return full(stream, message) if stream.config.discard is Discard.NEW else None
