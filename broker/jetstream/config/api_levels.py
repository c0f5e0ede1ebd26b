"""API levels: the level of this server, the level an asset requires, and the metadata for both.

Owns: the level we advertise, the `_nats.*` metadata keys, the required-level check.
May not touch: header blocks; the caller extracts the value.
Spec: NATS ADR-44; level 1 is 2.11 (TTL, pause, priority), 2 is 2.12, 4 is 2.14 (batches, reset,
acks by flow control), 5 is 2.15 (stream identities)."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from broker.jetstream.config.consumer_config import AckPolicy, ConsumerConfig, PriorityPolicy
from broker.jetstream.config.stream_config import PersistMode, StreamConfig
from broker.jetstream.errors import ErrCode, JetStreamError

API_LEVEL: Final = 5
SERVER_VERSION: Final = "2.15.1"
"""The NATS release whose behavior clients may expect; they choose features by it."""

REQUIRED_LEVEL_HEADER: Final = b"Nats-Required-Api-Level"
REQUIRED_LEVEL_KEY: Final = "_nats.req.level"
VERSION_KEY: Final = "_nats.ver"
LEVEL_KEY: Final = "_nats.level"
_DIGITS_MAX: Final = 19  # longer numbers are invalid


# For messages of a batch, the level is checked at apply, where all replicas must decide alike: by
# the rules of the entry (commands/publish_entry.py).
_APPLIED_LEVELS: Final = (2, 5)


def level_is_met(header: bytes | None, level: int = API_LEVEL) -> bool:
    """Whether a request with this `Nats-Required-Api-Level` value may be served."""
    if not header:
        return True
    text = header.decode("latin-1")
    sign, digits = (text[0], text[1:]) if text[0] in "+-" else ("", text)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX):
        return False
    return sign == "-" or int(digits) <= level


def applied_level_is_met(header: bytes | None, rules: int) -> bool:
    """The same for a message of a batch."""
    return level_is_met(header, _APPLIED_LEVELS[rules])


def check_required_level(header: bytes | None) -> None:
    if not level_is_met(header):
        raise JetStreamError(ErrCode.REQUIRED_API_LEVEL)


def stream_level(config: StreamConfig) -> int:
    """The lowest API level that supports everything this stream uses."""
    if config.allow_batched:
        return 4
    if (
        config.allow_msg_counter
        or config.allow_atomic
        or config.allow_msg_schedules
        or config.persist_mode is PersistMode.ASYNC
    ):
        return 2
    return 1 if config.allow_msg_ttl or config.subject_delete_marker_ttl > 0 else 0


def consumer_level(config: ConsumerConfig) -> int:
    if config.ack_policy is AckPolicy.FLOW_CONTROL:
        return 4
    has_priority = config.priority_policy is not PriorityPolicy.NONE or config.priority_groups
    return 1 if config.pause_until or has_priority or config.priority_timeout else 0


def user_metadata(metadata: dict[str, str]) -> dict[str, str]:
    """The metadata without the server's own keys; only this is compared."""
    ours = (REQUIRED_LEVEL_KEY, VERSION_KEY, LEVEL_KEY)
    return {key: value for key, value in metadata.items() if key not in ours}


def stored_stream(config: StreamConfig) -> StreamConfig:
    """The configuration as stored and listed: with the level it requires, not the server's."""
    metadata = user_metadata(config.metadata)
    metadata[REQUIRED_LEVEL_KEY] = str(stream_level(config))
    return replace(config, metadata=metadata)


def shown_stream(config: StreamConfig) -> StreamConfig:
    """The configuration in answers to create, update and info. LIST shows the stored one."""
    stored = stored_stream(config)
    return replace(stored, metadata=_shown(stored.metadata))


def stored_consumer(config: ConsumerConfig) -> ConsumerConfig:
    metadata = user_metadata(config.metadata)
    metadata[REQUIRED_LEVEL_KEY] = str(consumer_level(config))
    return replace(config, metadata=metadata)


def shown_consumer(config: ConsumerConfig) -> ConsumerConfig:
    stored = stored_consumer(config)
    return replace(stored, metadata=_shown(stored.metadata))


def same_stream(one: StreamConfig, other: StreamConfig) -> bool:
    """Whether a repeated create asks for the same stream: version metadata is ignored."""
    return _without_version(one) == _without_version(other)


def same_consumer(one: ConsumerConfig, other: ConsumerConfig) -> bool:
    return replace(one, metadata=user_metadata(one.metadata)) == replace(
        other, metadata=user_metadata(other.metadata)
    )


def _without_version(config: StreamConfig) -> StreamConfig:
    return replace(config, metadata=user_metadata(config.metadata))


def _shown(metadata: dict[str, str]) -> dict[str, str]:
    shown = metadata | {LEVEL_KEY: str(API_LEVEL), VERSION_KEY: SERVER_VERSION}
    return dict(sorted(shown.items()))
