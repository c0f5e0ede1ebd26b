"""The check of inactive_threshold: a replica that replays its log shows what was there before."""

from __future__ import annotations

from chaos.sim.consumers.inactive_consumers import UsedConsumer
from chaos.sim.world.virtual_time import NS


def used(at_s: int) -> UsedConsumer:
    return UsedConsumer({"name": "c", "inactive_threshold": 2 * NS}, used_ns=at_s * NS)


def test_a_consumer_that_ends_too_early_is_found() -> None:
    one = used(10)
    one.seen(7, at_index=9, now_ns=10 * NS)
    one.seen(0, at_index=12, now_ns=11 * NS)
    assert len(one.ended_early) == 1


def test_a_consumer_that_is_replaced_too_early_is_found() -> None:
    one = used(10)
    one.seen(7, at_index=9, now_ns=10 * NS)
    one.seen(12, at_index=12, now_ns=11 * NS)
    assert len(one.ended_early) == 1


def test_a_replica_that_replays_its_log_is_no_end_of_the_consumer() -> None:
    one = used(10)
    one.seen(2, at_index=21, now_ns=20 * NS)
    one.seen(0, at_index=22, now_ns=21 * NS)  # it rested, and is gone
    one.used_ns = 22 * NS  # created again, as 23
    one.seen(2, at_index=21, now_ns=22 * NS)  # the node has restarted
    one.seen(23, at_index=27, now_ns=22 * NS)
    assert (one.there, one.ended_early) == (23, [])


def test_an_end_that_a_client_was_told_is_not_judged_again() -> None:
    one = used(10)
    one.seen(2, at_index=21, now_ns=20 * NS)
    one.told_gone()  # by a node that is down now
    one.used_ns = 22 * NS
    one.seen(2, at_index=21, now_ns=22 * NS)
    one.seen(23, at_index=27, now_ns=22 * NS)
    assert (one.there, one.ended_early) == (23, [])
