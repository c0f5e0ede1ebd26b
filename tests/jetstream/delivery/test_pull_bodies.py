"""Bodies of client requests that the leader of a consumer parses."""

from __future__ import annotations

import pytest

from broker.jetstream.config import ConsumerConfig
from broker.jetstream.consumer.ack_subjects import nak_delay_ns
from broker.jetstream.delivery.pull_queue import parse_pull

DEEP = b'{"x":' + b"[" * 100_000


def test_a_pull_request_that_is_nested_too_deep_is_refused() -> None:
    answer = parse_pull(DEEP, b"_INBOX.1", 0, ConsumerConfig())
    assert isinstance(answer, bytes)
    assert answer.startswith(b"NATS/1.0 400 ")


@pytest.mark.parametrize("argument", [DEEP, b'{"delay":"x"}', b"{", b"\xff"])
def test_a_nak_whose_delay_cannot_be_read_has_none(argument: bytes) -> None:
    assert nak_delay_ns(b"-NAK " + argument) is None
