"""The limits of a stream: discard old removes the oldest messages, discard new refuses new ones.

Owns: both rules.
May not touch: what consumers still need (broker/jetstream/stream/interest.py), max_age
(broker/jetstream/stream/expiry.py).
Spec: NATS JetStream stream configuration: max_msgs, max_bytes, max_msgs_per_subject, discard."""

from __future__ import annotations

from collections.abc import Iterable

from broker.jetstream.config import Discard, StreamConfig
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.incoming_message import IncomingMessage
from broker.store.messages import MessageStore
from broker.store.oldest_rows import SUBJECTS_PER_STEP, OldestRows
from broker.subjects import Steps, finish


def enforce_limits(config: StreamConfig, store: MessageStore, subjects: Iterable[bytes]) -> None:
    """Called after messages on `subjects` were stored: remove the oldest messages above a limit."""
    if config.max_msgs_per_subject > 0:
        for subject in subjects:
            store.drop_oldest_of(subject, config.max_msgs_per_subject)
    if config.discard is Discard.OLD:
        if 0 < config.max_msgs < store.messages:
            store.drop_oldest(store.messages - config.max_msgs)
        if 0 < config.max_bytes < store.bytes:
            store.drop_to_size(config.max_bytes)


def enforce_all_limits(
    config: StreamConfig, store: MessageStore, found: OldestRows | None = None
) -> None:
    """As `enforce_limits` for all subjects, after a limit may have been lowered. `found` is what
    `find_excess` has found for this configuration."""
    if found is None or not store.drop_found(found):
        store.drop_found(finish(find_excess(config, store)))
    enforce_limits(config, store, ())


def find_excess(config: StreamConfig, store: MessageStore) -> Steps[OldestRows]:
    """What subjects have above their limit. Nothing may be stored or removed during the search."""
    limit = config.max_msgs_per_subject
    excess: dict[bytes, int] = {}
    for at, (name, count) in enumerate(store.index.counts() if limit > 0 else ()):
        if count > limit:
            excess[name] = count - limit
        if at % SUBJECTS_PER_STEP == SUBJECTS_PER_STEP - 1:
            yield
    return (yield from store.find_oldest_of_many(excess))


def limit_refusal(
    config: StreamConfig, store: MessageStore, message: IncomingMessage
) -> JetStreamError | None:
    """Why a stream with discard new refuses this message, None if it does not.

    A message that replaces the oldest one of its subject needs no extra room."""
    if config.discard is not Discard.NEW:
        return None
    per_subject = config.max_msgs_per_subject
    entry = store.index.get(message.subject) if per_subject > 0 else None
    replaces = entry is not None and entry.count >= per_subject
    if replaces and config.discard_new_per_subject and b"Nats-Rollup" not in message.named:
        return not_stored("maximum messages per subject exceeded")
    if 0 < config.max_msgs <= store.messages and not replaces:
        return not_stored("maximum messages exceeded")
    size = store.sizing.of(message.subject, message.headers, message.data)
    if 0 < config.max_bytes < store.bytes + size:
        oldest = store.subject_state(message.subject) if replaces else None
        found = store.rows(oldest[1]) if oldest is not None else None
        if found is None or store.sizing.of_row(*found) < size:
            return not_stored("maximum bytes exceeded")
    return None


def not_stored(reason: str) -> JetStreamError:
    return JetStreamError.of(ErrCode.STREAM_STORE_FAILED, err=reason)
