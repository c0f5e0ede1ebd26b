"""The rules a consumer configuration must satisfy, and its defaults.

Owns: normalization and validation of one configuration against that of its stream.
May not touch: other consumers, or the existing one of the same name (consumer_update.py).
Spec: JetStream consumer configuration. The checks run in the order of nats-server, since clients
see the first error."""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from broker.jetstream.config.api_levels import stored_consumer
from broker.jetstream.config.consumer_config import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    PriorityPolicy,
)
from broker.jetstream.config.limits import AccountView
from broker.jetstream.config.names import (
    DESCRIPTION_BYTES_MAX,
    METADATA_BYTES_MAX,
    NAME_BYTES_MAX,
    metadata_exceeds,
    valid_asset_name,
)
from broker.jetstream.config.stream_config import Retention, StreamConfig
from broker.jetstream.config.stream_rules import invalid_config, pedantic_error
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.times import NS_PER_MS, NS_PER_S, go_duration
from broker.subjects import (
    STEP_ITEMS,
    Steps,
    any_included,
    finish,
    has_wildcard,
    is_subset,
    valid_subject,
)

ACK_WAIT_DEFAULT_NS: Final = 30 * NS_PER_S
MAX_WAITING_DEFAULT: Final = 512
MAX_ACK_PENDING_DEFAULT: Final = 1000
INACTIVE_THRESHOLD_DEFAULT_NS: Final = 5 * NS_PER_S
PRIORITY_TIMEOUT_DEFAULT_NS: Final = 120 * NS_PER_S
SOURCING_HEARTBEAT_NS: Final = NS_PER_S

_GROUP_NAME: Final = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
_POLICY_WORDS: Final = {
    DeliverPolicy.ALL: "all",
    DeliverPolicy.LAST: "last",
    DeliverPolicy.NEW: "new",
    DeliverPolicy.LAST_PER_SUBJECT: "last per subject",
    DeliverPolicy.BY_START_SEQUENCE: "by start sequence",
    DeliverPolicy.BY_START_TIME: "by start time",
}


def check_consumer_config(
    config: ConsumerConfig, *, stream: StreamConfig, view: AccountView, pedantic: bool = False
) -> ConsumerConfig:
    """`consumer_config_steps`, in one call."""
    steps = consumer_config_steps(config, stream=stream, view=view, pedantic=pedantic)
    return finish(steps)


def consumer_config_steps(
    config: ConsumerConfig, *, stream: StreamConfig, view: AccountView, pedantic: bool = False
) -> Steps[ConsumerConfig]:
    """The normalized configuration, with the API level it requires in its metadata.

    No name is generated here: if a consumer was created without one, `name` stays empty in its
    configuration.
    """
    if config.num_replicas > 1 and not view.clustered:
        raise JetStreamError(ErrCode.STREAM_REPLICAS_NOT_SUPPORTED)
    config = _without_negatives(config, pedantic=pedantic)
    config = _with_defaults(config, stream, view, pedantic=pedantic)
    _check_names_and_replicas(config, stream)
    _check_ack_times(config)
    _check_flow_control_acks(config)
    if config.backoff and -1 != config.max_deliver < len(config.backoff):
        raise JetStreamError(ErrCode.CONSUMER_MAX_DELIVER_BACKOFF)
    if len(config.description.encode()) > DESCRIPTION_BYTES_MAX:
        raise JetStreamError.of(ErrCode.CONSUMER_DESCRIPTION_TOO_LONG, max=DESCRIPTION_BYTES_MAX)
    if config.is_push:
        _check_push(config, stream)
    else:
        _check_pull(config, stream, view)
    _check_limits(config, stream, view)
    _check_direct(config)
    yield from _check_filters(config)
    _check_start(config)
    _check_sampling(config)
    _check_last(config)
    _check_priority(config)
    if not config.is_durable and config.inactive_threshold == 0:
        config = replace(config, inactive_threshold=INACTIVE_THRESHOLD_DEFAULT_NS)
    return stored_consumer(config)


def _without_negatives(config: ConsumerConfig, *, pedantic: bool) -> ConsumerConfig:
    """Raise negative values to the smallest valid one (an error in pedantic mode)."""
    changes: dict[str, int] = {}
    for name in ("max_deliver", "max_ack_pending"):
        if getattr(config, name) < -1:
            if pedantic:
                raise pedantic_error(f"{name} must be set to -1")
            changes[name] = -1
    for name in (
        "max_waiting",
        "max_batch",
        "max_expires",
        "max_bytes",
        "idle_heartbeat",
        "inactive_threshold",
        "priority_timeout",
    ):
        if getattr(config, name) < 0:
            if pedantic:
                raise pedantic_error(f"{name} must not be negative")
            changes[name] = 0
    if config.max_deliver == 0:
        changes["max_deliver"] = -1
    return replace(config, **changes)


def _with_defaults(
    config: ConsumerConfig, stream: StreamConfig, view: AccountView, *, pedantic: bool
) -> ConsumerConfig:
    if not config.is_push and config.max_waiting == 0:
        config = replace(config, max_waiting=MAX_WAITING_DEFAULT)
    config = replace(config, ack_wait=_ack_wait(config, pedantic=pedantic))
    config = _with_stream_limits(config, stream, pedantic=pedantic)
    if config.max_ack_pending == 0 and config.ack_policy is not AckPolicy.NONE:
        limits = (view.server.max_ack_pending, view.limits_of(stream).max_ack_pending)
        lowest = min([MAX_ACK_PENDING_DEFAULT, *(limit for limit in limits if limit > 0)])
        config = replace(config, max_ack_pending=lowest)
    if not config.is_push and config.max_batch == 0 and view.server.max_request_batch > 0:
        if pedantic:
            raise pedantic_error("max_request_batch must be set if it's JetStream limits are set")
        config = replace(config, max_batch=view.server.max_request_batch)
    if config.priority_policy is PriorityPolicy.PINNED_CLIENT and config.priority_timeout == 0:
        config = replace(config, priority_timeout=PRIORITY_TIMEOUT_DEFAULT_NS)
    if config.ack_policy is AckPolicy.FLOW_CONTROL and not pedantic:
        config = replace(config, flow_control=True, idle_heartbeat=SOURCING_HEARTBEAT_NS)
    return config


def _ack_wait(config: ConsumerConfig, *, pedantic: bool) -> int:
    ack_wait = config.ack_wait
    if ack_wait == 0 and config.ack_policy in (AckPolicy.EXPLICIT, AckPolicy.ALL):
        ack_wait = ACK_WAIT_DEFAULT_NS
    if not config.backoff:
        return ack_wait
    if pedantic and ack_wait != config.backoff[0]:
        raise pedantic_error("first backoff value has to equal batch AckWait")
    return config.backoff[0]


def _with_stream_limits(
    config: ConsumerConfig, stream: StreamConfig, *, pedantic: bool
) -> ConsumerConfig:
    """Fields that are not set get the stream's consumer limits as defaults."""
    for name in ("max_ack_pending", "inactive_threshold"):
        imposed: int = getattr(stream.consumer_limits, name)
        if getattr(config, name) == 0 and imposed:
            if pedantic and imposed > 0:
                raise pedantic_error(f"{name} must be set if it's configured in stream limits")
            config = replace(config, **{name: imposed})
    return config


def _check_names_and_replicas(config: ConsumerConfig, stream: StreamConfig) -> None:
    if config.name and not valid_asset_name(config.name):
        raise invalid_config("consumer name can not contain '.', '*', '>', '\\', '/'")
    if config.durable_name and not valid_asset_name(config.durable_name):
        raise invalid_config("consumer durable name can not contain '.', '*', '>', '\\', '/'")
    for name in (config.durable_name, config.name):
        if len(name.encode()) > NAME_BYTES_MAX:
            raise JetStreamError.of(ErrCode.CONSUMER_NAME_TOO_LONG, max=NAME_BYTES_MAX)
    if config.num_replicas > stream.num_replicas:
        raise JetStreamError(ErrCode.CONSUMER_REPLICAS_EXCEEDS_STREAM)
    if config.num_replicas < 0:
        raise JetStreamError(ErrCode.REPLICAS_COUNT_CANNOT_BE_NEGATIVE)
    if stream.retention is not Retention.LIMITS and config.num_replicas not in (
        0,
        stream.num_replicas,
    ):
        raise JetStreamError(ErrCode.CONSUMER_REPLICAS_SHOULD_MATCH_STREAM)


def _check_ack_times(config: ConsumerConfig) -> None:
    if any(wait < 0 for wait in config.backoff):
        raise JetStreamError(ErrCode.CONSUMER_BACK_OFF_NEGATIVE)
    if config.ack_wait < 0:
        raise JetStreamError(ErrCode.CONSUMER_ACK_WAIT_NEGATIVE)


def _check_flow_control_acks(config: ConsumerConfig) -> None:
    """Ack policy flow_control needs a push consumer that sends flow control requests."""
    if config.ack_policy is not AckPolicy.FLOW_CONTROL:
        return
    if not config.is_push:
        raise JetStreamError(ErrCode.CONSUMER_ACK_FC_REQUIRES_PUSH)
    if not config.flow_control:
        raise JetStreamError(ErrCode.CONSUMER_ACK_FC_REQUIRES_FC)
    if config.idle_heartbeat != SOURCING_HEARTBEAT_NS:
        raise invalid_config("flow control ack policy heartbeat needs to be 1s")
    if config.max_ack_pending <= 0:
        raise JetStreamError(ErrCode.CONSUMER_ACK_FC_REQUIRES_MAX_ACK_PENDING)
    if config.ack_wait or config.backoff:
        raise JetStreamError(ErrCode.CONSUMER_ACK_FC_REQUIRES_NO_ACK_WAIT)
    if config.max_deliver > 0:
        raise JetStreamError(ErrCode.CONSUMER_ACK_FC_REQUIRES_NO_MAX_DELIVER)


def _check_push(config: ConsumerConfig, stream: StreamConfig) -> None:
    deliver_subject = config.deliver_subject.encode()
    if has_wildcard(deliver_subject):
        raise JetStreamError(ErrCode.CONSUMER_DELIVER_TO_WILDCARDS)
    if not valid_subject(deliver_subject, wildcards=False):
        raise JetStreamError(ErrCode.CONSUMER_INVALID_DELIVER_SUBJECT)
    if any(is_subset(deliver_subject, pattern) for pattern in stream.subject_patterns):
        raise JetStreamError(ErrCode.CONSUMER_DELIVER_CYCLE)
    if config.max_waiting != 0:
        raise JetStreamError(ErrCode.CONSUMER_PUSH_MAX_WAITING)
    if config.max_ack_pending > 0 and config.ack_policy is AckPolicy.NONE:
        raise JetStreamError(ErrCode.CONSUMER_MAX_PENDING_ACK_POLICY_REQUIRED)
    if 0 < config.idle_heartbeat < 100 * NS_PER_MS:
        raise JetStreamError(ErrCode.CONSUMER_SMALL_HEARTBEAT)


def _check_pull(config: ConsumerConfig, stream: StreamConfig, view: AccountView) -> None:
    if config.ack_policy is AckPolicy.NONE and stream.retention is Retention.WORKQUEUE:
        raise JetStreamError(ErrCode.CONSUMER_PULL_REQUIRES_ACK)
    if config.rate_limit_bps > 0:
        raise JetStreamError(ErrCode.CONSUMER_PULL_WITH_RATE_LIMIT)
    if config.idle_heartbeat > 0:
        raise JetStreamError(ErrCode.CONSUMER_HB_REQUIRES_PUSH)
    if config.flow_control:
        raise JetStreamError(ErrCode.CONSUMER_FC_REQUIRES_PUSH)
    if 0 < config.max_expires < NS_PER_MS:
        raise JetStreamError(ErrCode.CONSUMER_MAX_REQUEST_EXPIRES_TOO_SMALL)
    if 0 < view.server.max_request_batch < config.max_batch:
        limit = view.server.max_request_batch
        raise JetStreamError.of(ErrCode.CONSUMER_MAX_REQUEST_BATCH_EXCEEDED, limit=limit)


def _check_limits(config: ConsumerConfig, stream: StreamConfig, view: AccountView) -> None:
    limits = stream.consumer_limits
    of_account = view.limits_of(stream).max_ack_pending
    pending = (view.server.max_ack_pending, of_account, limits.max_ack_pending)
    for limit in pending:
        if 0 < limit < config.max_ack_pending:
            raise JetStreamError.of(ErrCode.CONSUMER_MAX_PENDING_ACK_EXCESS, limit=limit)
    if 0 < limits.inactive_threshold < config.inactive_threshold:
        limit_text = go_duration(limits.inactive_threshold)
        raise JetStreamError.of(ErrCode.CONSUMER_INACTIVE_THRESHOLD_EXCESS, limit=limit_text)


def _check_direct(config: ConsumerConfig) -> None:
    if not config.direct:
        return
    if not config.is_push:
        raise JetStreamError(ErrCode.CONSUMER_DIRECT_REQUIRES_PUSH)
    if config.is_durable:
        raise JetStreamError(ErrCode.CONSUMER_DIRECT_REQUIRES_EPHEMERAL)


def _check_filters(config: ConsumerConfig) -> Steps[None]:
    if config.filter_subject and config.filter_subjects:
        raise JetStreamError(ErrCode.CONSUMER_DUPLICATE_FILTER_SUBJECTS)
    if "" in config.filter_subjects:
        raise JetStreamError(ErrCode.CONSUMER_EMPTY_FILTER)
    filters = config.filters
    for at, pattern in enumerate(filters):
        if at % STEP_ITEMS == STEP_ITEMS - 1:
            yield
        if not valid_subject(pattern, wildcards=True):
            raise invalid_config("invalid subject")
    if (yield from any_included(filters)):
        raise JetStreamError(ErrCode.CONSUMER_OVERLAPPING_SUBJECT_FILTERS)


def _check_start(config: ConsumerConfig) -> None:
    """Raise unless exactly the start options of the deliver policy are set."""
    policy = config.deliver_policy
    words = f"consumer delivery policy is deliver {_POLICY_WORDS[policy]}"
    has_time = config.opt_start_time is not None
    missing = superfluous = None
    if policy is DeliverPolicy.BY_START_SEQUENCE:
        missing = None if config.opt_start_seq else "start sequence"
        superfluous = "time" if has_time else None
    elif policy is DeliverPolicy.BY_START_TIME:
        missing = None if has_time else "start time"
        superfluous = "start sequence" if config.opt_start_seq else None
    elif config.opt_start_seq:
        superfluous = "sequence"
    elif has_time:
        superfluous = "time"
    elif policy is DeliverPolicy.LAST_PER_SUBJECT and not config.filters:
        missing = "filter subject"
    if missing:
        reason = f"{words}, but optional {missing} is not set"
        raise JetStreamError.of(ErrCode.CONSUMER_INVALID_POLICY, err=reason)
    if superfluous:
        reason = f"{words}, but optional start {superfluous} is also set"
        raise JetStreamError.of(ErrCode.CONSUMER_INVALID_POLICY, err=reason)


def _check_sampling(config: ConsumerConfig) -> None:
    text = config.sample_freq.removesuffix("%")
    if config.sample_freq and not (text.isascii() and text.isdigit()):
        reason = f'strconv.Atoi: parsing "{text}": invalid syntax'
        raise JetStreamError.of(ErrCode.CONSUMER_INVALID_SAMPLING, err=reason)


def _check_last(config: ConsumerConfig) -> None:
    if config.flow_control and config.idle_heartbeat == 0:
        raise JetStreamError(ErrCode.CONSUMER_WITH_FLOW_CONTROL_NEEDS_HEARTBEATS)
    if config.durable_name and config.name and config.name != config.durable_name:
        raise JetStreamError(ErrCode.CONSUMER_CREATE_DURABLE_AND_NAME_MISMATCH)
    if metadata_exceeds(config.metadata, METADATA_BYTES_MAX):
        limit = f"{METADATA_BYTES_MAX // 1024}KB"
        raise JetStreamError.of(ErrCode.CONSUMER_METADATA_LENGTH, limit=limit)


def _check_priority(config: ConsumerConfig) -> None:
    if config.priority_policy is PriorityPolicy.NONE:
        if config.priority_groups:
            raise JetStreamError(ErrCode.CONSUMER_PRIORITY_GROUP_WITH_POLICY_NONE)
        if config.priority_timeout > 0:
            raise JetStreamError(ErrCode.CONSUMER_PINNED_TTL_WITHOUT_PRIORITY_POLICY_NONE)
        return
    if config.is_push:
        raise JetStreamError(ErrCode.CONSUMER_PUSH_WITH_PRIORITY_GROUP)
    if not config.priority_groups:
        raise JetStreamError(ErrCode.CONSUMER_PRIORITY_POLICY_WITHOUT_GROUP)
    for group in config.priority_groups:
        check_group_name(group)


def check_group_name(group: str) -> None:
    if not group:
        raise JetStreamError(ErrCode.CONSUMER_EMPTY_GROUP_NAME)
    if _GROUP_NAME.fullmatch(group) is None:
        raise JetStreamError(ErrCode.CONSUMER_INVALID_GROUP_NAME)
