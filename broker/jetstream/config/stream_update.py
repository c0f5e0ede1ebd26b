"""What an update of a stream configuration may change.

Owns: the comparison of a new configuration with the current one.
May not touch: the effects of an accepted update (removing messages, moving replicas).
Spec: JetStream stream configuration, STREAM.UPDATE."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from broker.jetstream.config.consumer_config import ConsumerConfig
from broker.jetstream.config.limits import AccountView, check_account_limits
from broker.jetstream.config.stream_config import (
    Discard,
    Retention,
    StreamConfig,
    StreamConfigRequest,
)
from broker.jetstream.config.stream_rules import invalid_config, stream_config_steps
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.subjects import Steps, finish


def check_stream_update(
    request: StreamConfigRequest,
    *,
    named: str,
    old: StreamConfig | None,
    consumers: Mapping[str, ConsumerConfig],
    view: AccountView,
) -> StreamConfig:
    """`stream_update_steps`, in one call."""
    steps = stream_update_steps(request, named=named, old=old, consumers=consumers, view=view)
    return finish(steps)


def stream_update_steps(
    request: StreamConfigRequest,
    *,
    named: str,
    old: StreamConfig | None,
    consumers: Mapping[str, ConsumerConfig],
    view: AccountView,
) -> Steps[StreamConfig]:
    """The configuration after STREAM.UPDATE.<named>; raises the error to answer with. The caller
    checks the overlap with other streams afterwards.

    An invalid configuration is reported before a missing stream (`old` None). `consumers` are the
    stream's own; a caller that does not hold them passes none, and `check_consumer_limits` is
    called where they are known.
    """
    config = yield from stream_config_steps(request.config(), view=view, pedantic=request.pedantic)
    if config.name != named:
        raise JetStreamError(ErrCode.STREAM_MISMATCH)
    if old is None:
        raise JetStreamError(ErrCode.STREAM_NOT_FOUND)
    config = check_update(old, config, view=view)
    check_account_limits(config, view)
    check_consumer_limits(old, config, consumers)
    return config


def check_update(old: StreamConfig, new: StreamConfig, *, view: AccountView) -> StreamConfig:
    """`new`, adjusted if it seals the stream; raises if `old` may not be updated to it."""
    if new.name != old.name:
        raise invalid_config("stream configuration name must match original")
    if new.num_replicas > 1 and not view.clustered:
        raise JetStreamError(ErrCode.STREAM_REPLICAS_NOT_SUPPORTED)
    _check_fixed(old, new)
    if new.mirror is not None and new.mirror != old.mirror:
        raise JetStreamError(ErrCode.STREAM_MIRROR_NOT_UPDATABLE)
    moves = new.placement is not None and new.placement != old.placement
    if moves and new.num_replicas != old.num_replicas:
        raise JetStreamError(ErrCode.STREAM_MOVE_AND_SCALE)
    return sealed(new) if new.sealed else new


def sealed(config: StreamConfig) -> StreamConfig:
    """The configuration of a sealed stream: no message is added or removed, not even by age."""
    return replace(
        config,
        sealed=True,
        max_age=0,
        discard=Discard.NEW,
        deny_delete=True,
        deny_purge=True,
        allow_rollup_hdrs=False,
    )


def check_consumer_limits(
    old: StreamConfig, new: StreamConfig, consumers: Mapping[str, ConsumerConfig]
) -> None:
    """Raise if existing consumers exceed lowered consumer limits."""
    was, limits = old.consumer_limits, new.consumer_limits
    idle = limits.inactive_threshold if limits.inactive_threshold != was.inactive_threshold else 0
    pending = limits.max_ack_pending if limits.max_ack_pending != was.max_ack_pending else 0
    if idle <= 0 and pending <= 0:
        return
    violating = sorted(
        name
        for name, consumer in consumers.items()
        if 0 < limits.inactive_threshold < consumer.inactive_threshold
        or 0 < limits.max_ack_pending < consumer.max_ack_pending
    )
    if violating:
        reason = f"change to limits violates consumers: {', '.join(violating)}"
        raise JetStreamError.of(ErrCode.STREAM_UPDATE, err=reason)


def _check_fixed(old: StreamConfig, new: StreamConfig) -> None:
    if new.storage is not old.storage:
        raise invalid_config("stream configuration update can not change storage type")
    if new.retention is not old.retention and Retention.WORKQUEUE in (old.retention, new.retention):
        raise invalid_config(
            "stream configuration update can not change retention policy to/from workqueue"
        )
    only_upwards = (
        ("sealed", "stream configuration update can not unseal a sealed stream"),
        ("deny_delete", "stream configuration update can not cancel deny message deletes"),
        ("deny_purge", "stream configuration update can not cancel deny purge"),
        ("allow_msg_ttl", "message TTL status can not be disabled"),
        ("allow_msg_schedules", "message schedules can not be disabled"),
    )
    for field, reason in only_upwards:
        if getattr(old, field) and not getattr(new, field):
            raise invalid_config(reason)
    if new.allow_msg_counter != old.allow_msg_counter:
        raise invalid_config("stream configuration update can not change message counter setting")
    if new.persist_mode is not old.persist_mode:
        raise invalid_config("stream configuration update can not change persist mode")
