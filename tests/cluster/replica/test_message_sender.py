"""Which messages of a consumer are written to the client's socket at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.accounts import Account
from broker.cluster.replica.message_sender import AT_ONCE_BYTES, MessageSender
from broker.jetstream.delivery.effects import Deliver
from broker.store.block.codec import Block, BlockBuilder


class Sink:
    """A client that notes how messages reach it."""

    headers_ok = True

    def __init__(self) -> None:
        self.got: list[tuple[str, int, int]] = []

    def deliver_answers(self, _: object, __: bytes, *, messages: int, payload_bytes: int) -> None:
        self.got.append(("at once", messages, payload_bytes))

    def deliver_encoded(self, _: object, __: bytes, *, messages: int, payload_bytes: int) -> None:
        self.got.append(("in turn", messages, payload_bytes))


@pytest.mark.parametrize(
    ("alone", "size", "max_msgs", "how"),
    [
        (True, 10, 0, "at once"),
        (False, 10, 0, "in turn"),  # more follows: one write for all of it
        (True, AT_ONCE_BYTES, 0, "in turn"),
        (True, 10, 1, "in turn"),  # the subscription ends with it
    ],
)
def test_a_small_message_that_is_alone_is_sent_at_once(
    *, alone: bool, size: int, max_msgs: int, how: str
) -> None:
    sink = Sink()
    target = SimpleNamespace(sink=sink, sid=b"1", max_msgs=max_msgs)
    router: Any = SimpleNamespace(bulk=lambda *_: target)
    sender = MessageSender(router, cast(Any, None), Account("A"), "S")
    builder = BlockBuilder(1)
    builder.append(b"s", b"NATS/1.0\r\n\r\n", b"x" * size, time_ns=1)
    rows = Block(builder.build())
    sender.deliver(Deliver(b"inbox", rows, [0], 1, None, 0, headers_only=False), "C", alone=alone)
    assert sink.got == [(how, 1, size + 12)]
