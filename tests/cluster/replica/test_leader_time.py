"""Waits at the leader of a stream, when the time of the cluster turns out to be another one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.clock_watch import ClockWatch
from broker.cluster.replica import leadership as module
from broker.jetstream.commands.consumer_commands import DeliveryProgress
from raft.clock.cluster_time import ClockVerdict
from tests.support.cluster_fakes import run, turns
from tests.support.consumer_rig import START, S
from tests.support.led_consumer import LedConsumer

HOUR = 3600 * S


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_of_the_time_neither_ends_nor_extends_an_ack_wait(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        led = LedConsumer(monkeypatch)
        led.bench.publish("a")
        assert await led.pull() == [1]
        led.offset_ns += step
        assert await led.pull() == []
        led.boot_ns += 30 * S - 1
        assert await led.pull() == []
        led.boot_ns += 1
        assert await led.pull() == [1]
        led.leadership.close()

    run(test())


def test_a_step_of_the_time_does_not_shorten_a_nak_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        led = LedConsumer(monkeypatch)
        led.bench.publish("a")
        assert await led.pull() == [1]
        nak = b'-NAK {"delay": %d}' % S
        led.leadership.take_request((0, b"$JS.ACK.S.C.1.1.1.0.0", b"", b"", nak))
        led.offset_ns += HOUR
        assert await led.pull() == []
        led.boot_ns += S
        assert await led.pull() == [1]
        led.leadership.close()

    run(test())


def test_what_is_replicated_has_the_time_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        led = LedConsumer(monkeypatch)
        led.offset_ns += HOUR
        led.bench.publish("a")
        assert await led.pull() == [1]
        led.leadership.propose_changes()
        (progress,) = led.proposed
        assert isinstance(progress, DeliveryProgress)
        assert progress.now_ns == led.boot_ns + led.offset_ns
        numbers = led.leadership.numbers("C")
        assert numbers is not None
        assert numbers.last_delivered_ns == led.boot_ns + led.offset_ns
        led.leadership.close()

    run(test())


def test_what_expires_at_a_date_expires_when_the_time_leaps_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "EXPIRY_CHECK_MIN_NS", 0)

    async def test() -> None:
        led = LedConsumer(monkeypatch)
        led.expires_ns = START + HOUR
        led.leadership.time_stepped()  # arms it
        await turns()
        assert led.proposed == []
        led.offset_ns += HOUR
        led.leadership.time_stepped()
        async with asyncio.timeout(30):
            while not led.proposed:
                await asyncio.sleep(0)
        assert led.proposed[0] == "expire"
        led.leadership.close()

    run(test())


def test_a_leap_of_the_time_is_noticed_and_a_correction_is_not() -> None:
    clock = SimpleNamespace(
        verdict=ClockVerdict.AGREES, own_error_ns=0, in_doubt=lambda: False, now_ns=lambda: now
    )
    steps: list[int] = []
    now = steady = 1000 * S
    watch = ClockWatch(
        cast(Any, clock), lambda: None, lambda: steps.append(now), steady_ns=lambda: steady
    )
    for passed, correction in ((1, 0), (1, S // 20), (1, -S // 20), (1, HOUR), (1, 0), (1, -HOUR)):
        watch._check()
        steady += passed * S
        now += passed * S + correction
    watch._check()
    assert len(steps) == 2
