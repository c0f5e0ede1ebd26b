"""Whether a create request creates or updates a consumer, and what an update may change.

Owns: the create and update actions, the limit on consumers, work queue rules, update rules.
May not touch: delivery, interest; whether a deliver subject is bound is an argument.
Spec: JetStream consumer create (`action`), retention rules for consumers. The rules that one
configuration must satisfy by itself are in consumer_rules.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from msgspec.structs import replace

from broker.jetstream.config.api_levels import same_consumer
from broker.jetstream.config.consumer_config import (
    AckPolicy,
    ConsumerAction,
    ConsumerConfig,
    DeliverPolicy,
)
from broker.jetstream.config.names import valid_asset_name
from broker.jetstream.config.stream_config import Retention, StreamConfig
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.subjects import any_overlap, finish


def sourcing_consumer(
    config: ConsumerConfig, *, stream: StreamConfig, suffix: str
) -> ConsumerConfig:
    """The consumer through which a mirror or source reads, as this stream stores it. Any other
    configuration is returned unchanged.

    On a stream with limits retention every connection creates a new one, hence the suffix. Other
    retentions must keep messages until they are copied, so there the consumer becomes durable
    and acks by flow control.
    """
    if not (config.direct and config.sourcing and config.name):
        return config
    if stream.retention is Retention.LIMITS:
        return replace(config, name=f"{config.name}-{suffix}")
    return replace(
        config,
        direct=False,
        durable_name=config.name,
        ack_policy=AckPolicy.FLOW_CONTROL,
        ack_wait=0,
        max_deliver=0,
        inactive_threshold=0,
    )


class CreateOutcome(Enum):
    """What a create request does."""

    CREATE = "create"
    UNCHANGED = "unchanged"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class CreateDecision:
    """The outcome and the configuration that is in force after it."""

    outcome: CreateOutcome
    config: ConsumerConfig


def decide_create(
    name: str,
    config: ConsumerConfig,
    action: str,
    *,
    stream: StreamConfig,
    consumers: Mapping[str, ConsumerConfig],
    account_max_consumers: int = -1,
    is_bound: bool = False,
) -> CreateDecision:
    """Decide what creating the consumer `name` with a normalized `config` does; raises the error
    to answer with. `consumers` are the stream's consumers.

    `is_bound`: the current deliver subject has a subscriber, so it may not change.
    A create request for an existing consumer cannot pause it: its `pause_until` is ignored.
    """
    old = consumers.get(name)
    if old is None:
        if action == ConsumerAction.UPDATE:
            raise JetStreamError(ErrCode.CONSUMER_DOES_NOT_EXIST)
        _check_max_consumers(stream, consumers, account_max_consumers, config)
        _check_workqueue(name, config, stream, consumers)
        if not valid_asset_name(name):
            raise JetStreamError(ErrCode.CONSUMER_BAD_DURABLE_NAME)
        return CreateDecision(CreateOutcome.CREATE, config)
    config = replace(config, pause_until=old.pause_until)
    if same_consumer(old, config):
        return CreateDecision(CreateOutcome.UNCHANGED, old)
    if action == ConsumerAction.CREATE:
        raise JetStreamError(ErrCode.CONSUMER_ALREADY_EXISTS)
    if stream.retention is Retention.WORKQUEUE and _shares_filter(name, config, consumers):
        raise JetStreamError(ErrCode.CONSUMER_WQ_CONSUMER_NOT_UNIQUE)
    check_consumer_update(old, config, is_bound=is_bound)
    return CreateDecision(CreateOutcome.UPDATE, config)


def check_repeated_create(action: str, requested: ConsumerConfig, *, exists: bool) -> None:
    """`requested` is as the client sent it. nats-server compares it with the stored configuration,
    in which an ephemeral consumer has the default inactive_threshold: so a create of an ephemeral
    consumer can be repeated only if the request sets a threshold."""
    differs = not requested.durable_name and not requested.inactive_threshold
    if exists and differs and action == ConsumerAction.CREATE:
        raise JetStreamError(ErrCode.CONSUMER_ALREADY_EXISTS)


def without_default_threshold(
    old: ConsumerConfig | None, config: ConsumerConfig, *, asked: int
) -> ConsumerConfig:
    """A durable consumer stays durable when an update leaves out its durable name: it must not get
    the default inactive_threshold of an ephemeral one. `asked`: the threshold that the client
    sent."""
    if old is None or not old.is_durable or asked > 0:
        return config
    return replace(config, inactive_threshold=0)


def check_consumer_update(
    old: ConsumerConfig, new: ConsumerConfig, *, is_bound: bool = False
) -> None:
    """Raise if `old` may not be updated to `new`."""
    fixed = (
        ("deliver_policy", "deliver policy can not be updated"),
        ("mem_storage", "storage type can not be updated"),
        ("direct", "direct can not be updated"),
        ("sourcing", "sourcing can not be updated"),
        ("opt_start_seq", "start sequence can not be updated"),
        ("opt_start_time", "start time can not be updated"),
        ("ack_policy", "ack policy can not be updated"),
        ("replay_policy", "replay policy can not be updated"),
        ("idle_heartbeat", "heart beats can not be updated"),
        ("flow_control", "flow control can not be updated"),
    )
    for field, reason in fixed:
        if getattr(old, field) != getattr(new, field):
            raise _not_updatable(reason)
    if old.deliver_subject != new.deliver_subject:
        if not old.is_push:
            raise _not_updatable("can not update pull consumer to push based")
        if not new.is_push:
            raise _not_updatable("can not update push consumer to pull based")
        if is_bound:
            raise JetStreamError(ErrCode.CONSUMER_NAME_EXIST)
    if old.max_waiting != new.max_waiting:
        raise _not_updatable("max waiting can not be updated")
    if new.backoff and -1 != new.max_deliver < len(new.backoff):
        raise JetStreamError(ErrCode.CONSUMER_MAX_DELIVER_BACKOFF)


def is_internal(config: ConsumerConfig) -> bool:
    """Whether this is the consumer of a mirror or source: it does not count against limits and is
    not listed, unless it is durable (sourcing_consumer)."""
    return config.direct


def _check_max_consumers(
    stream: StreamConfig,
    consumers: Mapping[str, ConsumerConfig],
    account_max: int,
    config: ConsumerConfig,
) -> None:
    most = stream.max_consumers
    if most <= 0 or 0 < account_max < most:
        most = account_max
    if is_internal(config) or most <= 0:
        return
    if sum(not is_internal(other) for other in consumers.values()) >= most:
        raise JetStreamError(ErrCode.MAXIMUM_CONSUMERS_LIMIT)


def _check_workqueue(
    name: str, config: ConsumerConfig, stream: StreamConfig, consumers: Mapping[str, ConsumerConfig]
) -> None:
    """Each message of a work queue belongs to exactly one consumer."""
    if stream.retention is not Retention.WORKQUEUE or is_internal(config) or config.sourcing:
        return
    if config.ack_policy not in (AckPolicy.EXPLICIT, AckPolicy.FLOW_CONTROL):
        raise JetStreamError(ErrCode.CONSUMER_WQ_REQUIRES_EXPLICIT_ACK)
    if config.deliver_policy is not DeliverPolicy.ALL:
        raise JetStreamError(ErrCode.CONSUMER_WQ_CONSUMER_NOT_DELIVER_ALL)
    if all(is_internal(other) for other in consumers.values()):
        return
    if not config.filters:
        raise JetStreamError(ErrCode.CONSUMER_WQ_MULTIPLE_UNFILTERED)
    if _shares_filter(name, config, consumers):
        raise JetStreamError(ErrCode.CONSUMER_WQ_CONSUMER_NOT_UNIQUE)


def _shares_filter(
    name: str, config: ConsumerConfig, consumers: Mapping[str, ConsumerConfig]
) -> bool:
    """Whether some message could match this consumer and another one."""
    others = (
        pattern
        for other_name, other in consumers.items()
        if other_name != name and not is_internal(other)
        for pattern in other.filters or (b">",)
    )
    return finish(any_overlap(config.filters or (b">",), others))


def _not_updatable(reason: str) -> JetStreamError:
    return JetStreamError.of(ErrCode.CONSUMER_CREATE, err=reason)
