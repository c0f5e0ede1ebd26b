"""Creating a consumer twice with action "create", as nats-server 2.15.1 answers it."""

from __future__ import annotations

import pytest

from broker.jetstream.config.consumer_config import ConsumerConfig
from broker.jetstream.config.consumer_update import check_repeated_create
from broker.jetstream.errors import JetStreamError

MINUTE = 60_000_000_000


@pytest.mark.parametrize(
    ("config", "action", "refused"),
    [
        (ConsumerConfig(name="C"), "create", True),
        (ConsumerConfig(name="C", deliver_subject="d"), "create", True),
        (ConsumerConfig(name="C", inactive_threshold=MINUTE), "create", False),
        (ConsumerConfig(name="C", durable_name="C"), "create", False),
        (ConsumerConfig(name="C"), "", False),
        (ConsumerConfig(name="C"), "update", False),
    ],
)
def test_an_ephemeral_consumer_without_a_threshold_is_created_once(
    config: ConsumerConfig, action: str, refused: bool
) -> None:
    check_repeated_create(action, config, exists=False)
    if not refused:
        check_repeated_create(action, config, exists=True)
        return
    with pytest.raises(JetStreamError) as error:
        check_repeated_create(action, config, exists=True)
    assert error.value.err_code == 10148
