"""Configuration of streams and consumers: the fields, the rules they must satisfy, the updates.

This file only exports the field types (stream_config.py, consumer_config.py). Rules are in
stream_rules.py, origin_rules.py and consumer_rules.py, updates in stream_update.py and
consumer_update.py."""

from __future__ import annotations

from broker.jetstream.config.consumer_config import (
    AckPolicy,
    ConsumerAction,
    ConsumerConfig,
    ConsumerCreateRequest,
    DeliverPolicy,
    PriorityPolicy,
    ReplayPolicy,
)
from broker.jetstream.config.stream_config import (
    Compression,
    ConsumerLimits,
    Discard,
    External,
    PersistMode,
    Placement,
    Republish,
    Retention,
    SourceConsumer,
    Storage,
    StreamConfig,
    StreamConfigRequest,
    StreamSource,
    SubjectTransform,
)

__all__ = [
    "AckPolicy",
    "Compression",
    "ConsumerAction",
    "ConsumerConfig",
    "ConsumerCreateRequest",
    "ConsumerLimits",
    "DeliverPolicy",
    "Discard",
    "External",
    "PersistMode",
    "Placement",
    "PriorityPolicy",
    "ReplayPolicy",
    "Republish",
    "Retention",
    "SourceConsumer",
    "Storage",
    "StreamConfig",
    "StreamConfigRequest",
    "StreamSource",
    "SubjectTransform",
]
