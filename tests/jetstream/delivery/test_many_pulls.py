"""Pull requests by the thousand: what is kept of them, and how often all are looked at."""

from __future__ import annotations

import json

from broker.jetstream.delivery import pull_queue, receivers
from broker.jetstream.delivery.pull_queue import PullQueue, PullRequest
from tests.support.consumer_rig import Bench, S

HOUR = 3600 * S


def request(number: int, *, expires_at: int) -> PullRequest:
    made = PullRequest(b"r.%d" % number)
    made.expires_at = expires_at
    return made


def test_a_served_request_does_not_stay_until_it_would_have_expired() -> None:
    queue = PullQueue(512)
    queue.add(request(0, expires_at=S))  # its timer stays in front of all others
    for number in range(1, 20_000):
        made = request(number, expires_at=HOUR)
        queue.add(made)
        queue.close(made)
    assert len(queue._timers) < 5000
    assert [message.to for message in queue.due(2 * S, bytes)] == [b"r.0"]


def test_requests_that_wait_are_bounded_whatever_the_consumer_asks_for() -> None:
    bench = Bench(durable_name="C", ack_policy="explicit", max_waiting=10**9)
    body = json.dumps({"batch": 1, "expires": HOUR}).encode()
    for number in range(pull_queue.WAITING_MAX + 1):
        bench.delivery.pull(body, b"r.%d" % number, bench.now)
    assert bench.delivery.numbers(bench.now).num_waiting == pull_queue.WAITING_MAX


def test_a_flood_of_requests_does_not_look_at_all_that_wait_each_time() -> None:
    bench = Bench(durable_name="C", ack_policy="explicit", max_waiting=2000)
    looks = 0

    def has_interest(_: bytes) -> bool:
        nonlocal looks
        looks += 1
        return True

    pull = bench.delivery._pull
    assert pull is not None
    pull._has_interest = has_interest
    body = json.dumps({"batch": 1, "expires": HOUR}).encode()
    for number in range(2000):
        bench.delivery.pull(body, b"r.%d" % number, bench.now)
    looks = 0
    for number in range(1000):
        bench.delivery.pull(body, b"x.%d" % number, bench.now)
    assert looks == 2000  # all of them once, for the first request that found no room
    bench.now += receivers.SWEPT_EVERY_NS
    bench.delivery.pull(body, b"later", bench.now)
    assert looks == 4000
