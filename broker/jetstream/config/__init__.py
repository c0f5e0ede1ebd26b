"""Stream and consumer configuration in one place to import from.

Owns: nothing; it gathers the names other parts of the broker use.
May not touch: rules of its own.
Spec: see stream_config.py and consumer_config.py."""

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
