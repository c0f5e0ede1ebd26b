"""What an update of a stream may change (refusals: cases/stream_update.txt)."""

from __future__ import annotations

import pytest

from broker.jetstream.config import (
    ConsumerConfig,
    ConsumerLimits,
    Discard,
    Placement,
    Retention,
    StreamConfig,
    StreamConfigRequest,
)
from broker.jetstream.config.limits import AccountLimits, AccountView
from broker.jetstream.config.stream_rules import check_stream_create
from broker.jetstream.config.stream_update import check_stream_update, check_update
from broker.jetstream.errors import JetStreamError
from broker.jetstream.strict_json import decode
from tests.support.config_cases import refusals

TAKEN = StreamConfig(name="T", subjects=("taken.*",))


def request_of(rest: str) -> StreamConfigRequest:
    rest = "" if rest == "." else f",{rest}"
    return decode(f'{{"name":"A"{rest}}}'.encode(), StreamConfigRequest, strict=True)


def update(
    old: str,
    new: str,
    consumers: dict[str, ConsumerConfig] | None = None,
    *,
    clustered: bool = False,
    limits: AccountLimits | None = None,
) -> StreamConfig:
    view = AccountView(clustered=clustered)
    in_force = check_stream_create(request_of(old), named="A", view=view)
    view = AccountView(
        streams={"T": TAKEN, "A": in_force},
        limits=limits or AccountLimits(),
        clustered=clustered,
    )
    return check_stream_update(
        request_of(new), named="A", old=in_force, consumers=consumers or {}, view=view
    )


@pytest.mark.parametrize(("change", "err_code", "description"), refusals("stream_update.txt"))
def test_update_refuses(change: str, err_code: int, description: str) -> None:
    old, new = change.split(" => ")
    with pytest.raises(JetStreamError) as refused:
        update(old, new)
    assert (refused.value.err_code, refused.value.description) == (err_code, description)


def test_an_invalid_configuration_is_reported_before_a_missing_stream() -> None:
    view = AccountView()
    with pytest.raises(JetStreamError) as refused:
        check_stream_update(request_of('"max_age":1'), named="A", old=None, consumers={}, view=view)
    assert refused.value.err_code == 10052
    with pytest.raises(JetStreamError) as refused:
        check_stream_update(request_of("."), named="A", old=None, consumers={}, view=view)
    assert refused.value.err_code == 10059
    with pytest.raises(JetStreamError) as refused:
        check_stream_update(request_of("."), named="B", old=None, consumers={}, view=view)
    assert refused.value.err_code == 10056


def test_sealing_denies_every_change() -> None:
    config = update('"max_age":1000000000,"allow_rollup_hdrs":true', '"sealed":true')
    assert (config.sealed, config.max_age, config.discard) == (True, 0, Discard.NEW)
    assert (config.deny_delete, config.deny_purge, config.allow_rollup_hdrs) == (True, True, False)
    with pytest.raises(JetStreamError, match="can not unseal a sealed stream"):
        check_update(config, StreamConfig(name="A", subjects=("A",)), view=AccountView())


def test_retention_can_change_between_limits_and_interest() -> None:
    assert update(".", '"retention":"interest"').retention is Retention.INTEREST
    assert update('"retention":"interest"', ".").retention is Retention.LIMITS


def test_a_mirror_is_promoted_by_removing_the_mirror_field() -> None:
    config = update('"mirror":{"name":"B"}', '"subjects":["a.*"]')
    assert config.mirror is None
    assert config.subjects == ("a.*",)


def test_a_stream_does_not_overlap_with_itself() -> None:
    assert update('"subjects":["a.*"]', '"subjects":["a.>"]').subjects == ("a.>",)


def test_moving_and_scaling_at_once_is_refused() -> None:
    with pytest.raises(JetStreamError) as refused:
        update(".", '"num_replicas":3,"placement":{"cluster":"c"}', clustered=True)
    assert refused.value.err_code == 10123
    config = update(".", '"placement":{"cluster":"c"}', clustered=True)
    assert config.placement == Placement(cluster="c")


def test_consumer_limits_are_checked_against_existing_consumers() -> None:
    consumers = {
        "b": ConsumerConfig(max_ack_pending=1000),
        "a": ConsumerConfig(inactive_threshold=5),
        "fine": ConsumerConfig(max_ack_pending=5),
    }
    limits = '"consumer_limits":{"max_ack_pending":10,"inactive_threshold":4}'
    with pytest.raises(JetStreamError) as refused:
        update(".", limits, consumers)
    assert (refused.value.err_code, refused.value.description) == (
        10069,
        "change to limits violates consumers: a, b",
    )
    assert update(limits, limits, consumers).consumer_limits == ConsumerLimits(4, 10)


def test_the_account_limit_counts_only_the_new_size() -> None:
    limits = AccountLimits(max_storage=1000)
    assert update('"max_bytes":900', '"max_bytes":1000', limits=limits).max_bytes == 1000
    with pytest.raises(JetStreamError) as refused:
        update('"max_bytes":900', '"max_bytes":1001', limits=limits)
    assert refused.value.err_code == 10047
