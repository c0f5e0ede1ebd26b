"""A backlog is spread over the members of a queue group, message by message."""

from __future__ import annotations

import random
from typing import Any, cast

from broker.cluster.peers.queue_shares import queue_shares
from broker.subjects import Subscription


def member(name: bytes) -> Subscription:
    return Subscription(cast(Any, object()), cast(Any, None), b"deliver", b"group", name)


def test_every_message_goes_to_one_member_in_order() -> None:
    random.seed(7)
    members = [member(b"1"), member(b"2"), member(b"3")]
    shares = queue_shares(members, range(3000))
    assert sorted(number for _, share in shares for number in share) == list(range(3000))
    assert all(share == sorted(share) for _, share in shares)
    assert {sub.sid for sub, _ in shares} == {b"1", b"2", b"3"}
    assert all(900 < len(share) < 1100 for _, share in shares)


def test_a_member_that_stands_for_two_gets_twice_as_many() -> None:
    random.seed(7)
    heavy, light = member(b"heavy"), member(b"light")
    shares = {
        sub.sid: len(share) for sub, share in queue_shares([heavy, heavy, light], range(3000))
    }
    assert 1900 < shares[b"heavy"] < 2100


def test_a_single_member_gets_everything() -> None:
    only = member(b"1")
    assert queue_shares([only], [1, 2, 3]) == [(only, [1, 2, 3])]
