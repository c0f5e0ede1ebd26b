"""A message that has passed its checks becomes part of the stream.

Owns: what storing one message entails: its TTL, its id, its rollup, its schedule, the limits.
May not touch: whether it may be stored (publish_checks.py); nothing here refuses.
Spec: JetStream sheet 3.4, 3.5, 3.10, 4.1, 4.2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.jetstream.publish.message import IncomingMessage
from broker.jetstream.publish.ttl import due_at, parse_ttl
from broker.jetstream.stream.retention import enforce_limits
from broker.jetstream.times import NS_PER_S
from broker.store.block.block import Block

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream

PURGE_SCHEDULE: Final = b"purge"


def store_message(stream: Stream, message: IncomingMessage) -> None:
    """It takes the next sequence, whether or not somebody will ever read it."""
    store, subject = stream.store, message.subject
    if not stream.wants(subject):
        store.skip_to(store.last_seq + 2)  # acked with a sequence that nobody will ever read
        _remember_id(stream, message)
        if message.named:
            _roll_up(stream, message, keep=0)
        return
    ttl = _time_to_live(stream, message) if b"Nats-TTL" in message.named else None
    republishes = stream.republishes
    before = store.last_of_subject(subject) if republishes else 0
    seq = store.append(subject, message.headers, message.data, time_ns=message.time_ns)
    if ttl is not None:
        store.deadlines.set(seq, due_at(message.time_ns, ttl))
    _remember_id(stream, message)
    if stream.config.allow_msg_schedules:
        stream.schedules.stored(message, seq)
    if message.named:
        _roll_up(stream, message, keep=1)
    enforce_limits(stream, (subject,))
    if republishes:
        stream.republish(message, seq=seq, before=before)


def store_block(stream: Stream, block: Block, time_ns: int) -> int:
    """Every row, none of which needs a look of its own. Returns the first sequence."""
    store = stream.store
    last: dict[bytes, int] | None = None
    if stream.republishes:
        last = {subject: store.last_of_subject(subject) for subject in block.subject_summary()}
    first = store.append_block(block, time_ns=time_ns)
    stream.last_msg_id = b""
    limited = stream.config.max_msgs_per_subject > 0
    enforce_limits(stream, block.subject_summary() if limited else ())
    if last is not None:
        for row in range(block.rows):
            subject, seq = block.subject(row), first + row
            message = IncomingMessage(subject, block.headers(row), block.data(row), time_ns)
            stream.republish(message, seq=seq, before=last[subject])
            last[subject] = seq
    return first


def _time_to_live(stream: Stream, message: IncomingMessage) -> int | None:
    """In seconds. Where delete markers are in use, no message may go before a marker would."""
    ttl = parse_ttl(message.named[b"Nats-TTL"])
    config = stream.config
    shortest = config.subject_delete_marker_ttl // NS_PER_S
    if ttl is not None and 0 < ttl < shortest and config.max_msgs_per_subject != 1:
        ttl = shortest
        message.set_header(b"Nats-TTL", b"%d" % ttl)
    return ttl


def _roll_up(stream: Stream, message: IncomingMessage, *, keep: int) -> None:
    config, named = stream.config, message.named
    if not config.allow_rollup_hdrs or config.deny_purge:
        return
    rollup = named.get(b"Nats-Rollup", b"").lower()
    if rollup in (b"sub", b"all"):
        stream.store.purge(None if rollup == b"all" else message.subject, keep=keep)
    scheduler = named.get(b"Nats-Scheduler")
    if scheduler and named.get(b"Nats-Schedule-Next") == PURGE_SCHEDULE:
        stream.store.purge(scheduler)


def _remember_id(stream: Stream, message: IncomingMessage) -> None:
    stream.last_msg_id = msg_id = message.msg_id
    if msg_id and stream.config.duplicate_window > 0:
        stream.dedup.add(msg_id, seq=stream.store.last_seq, time_ns=message.time_ns)
