"""When the leader replicates deliveries and acks: together, unless somebody waits for them."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from msgspec.structs import replace

from broker.cluster.replica import leadership as module
from broker.jetstream.commands.consumer_commands import Acks, DeliveryProgress
from broker.jetstream.config import Retention
from broker.jetstream.delivery import ack_collector, replication
from broker.jetstream.delivery.pull_queue import LEADERSHIP_CHANGE
from tests.support.cluster_fakes import run, turns
from tests.support.consumer_rig import BenchStream, S
from tests.support.led_consumer import PULL, LedConsumer


def ack_subject(seq: int) -> bytes:
    return b"$JS.ACK.S.C.1.%d.%d.0.0" % (seq, seq)


async def fetch_and_ack(led: LedConsumer, seq: int, *, reply: bytes = b"") -> None:
    assert await led.pull() == [seq]
    led.leadership.take_request((0, ack_subject(seq), reply, b"", b"+ACK"))
    await turns()


def kinds(led: LedConsumer) -> list[type]:
    return [type(command) for command in led.proposed]


def test_messages_that_are_fetched_and_acked_one_by_one_share_two_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RECORD_AFTER_S", 0.2)

    async def test() -> None:
        led = LedConsumer(monkeypatch)
        led.bench.publish(*"abc")
        for seq in (1, 2, 3):
            await fetch_and_ack(led, seq)
        assert led.proposed == []
        async with asyncio.timeout(10):
            while not led.proposed:
                await asyncio.sleep(0)
        assert kinds(led) == [DeliveryProgress, Acks]
        assert led.proposed[0].of[0].first == [1, 1, 3]
        assert led.proposed[1].of[0].acked == [1, 3]
        led.leadership.close()

    run(test())


def test_a_double_ack_does_not_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORD_AFTER_S", 3600.0)

    async def test() -> None:
        led = LedConsumer(monkeypatch)
        led.bench.publish("a")
        await fetch_and_ack(led, 1, reply=b"confirm")
        assert kinds(led) == [DeliveryProgress, Acks]
        led.leadership.close()

    run(test())


def test_an_ack_that_removes_its_message_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORD_AFTER_S", 3600.0)

    async def test() -> None:
        led = LedConsumer(monkeypatch)
        stream = cast(BenchStream, led.bench.of.stream)
        stream.config = replace(stream.config, retention=Retention.WORKQUEUE)
        led.bench.publish("a")
        await fetch_and_ack(led, 1)
        assert kinds(led) == [DeliveryProgress, Acks]
        led.leadership.close()

    run(test())


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORD_AFTER_S", 3600.0)
    for user in (replication, ack_collector):
        monkeypatch.setattr(user, "WAITING_MAX", 2)

    async def test() -> None:
        led = LedConsumer(monkeypatch)
        led.bench.publish(*"ab")
        assert await led.pull() == [1]
        assert led.proposed == []
        assert await led.pull() == [2]
        assert kinds(led) == [DeliveryProgress]
        acks = [ack_subject(1), ack_subject(2)]
        for subject in acks:
            led.leadership.take_request((0, subject, b"", b"", b"+ACK"))
        await turns()
        assert kinds(led) == [DeliveryProgress, Acks]
        led.leadership.close()

    run(test())


def test_records_from_before_a_reset_are_not_replicated_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would be taken for those of the new epoch."""
    monkeypatch.setattr(module, "RECORD_AFTER_S", 3600.0)

    async def test() -> None:
        led = LedConsumer(monkeypatch)
        led.bench.publish(*"ab")
        await fetch_and_ack(led, 1)
        led.bench.reset()
        led.leadership.propose_changes()
        assert led.proposed == []
        led.leadership.close()

    run(test())


def test_a_closed_leadership_proposes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORD_AFTER_S", 0.0)

    async def test() -> None:
        led = LedConsumer(monkeypatch)
        led.bench.publish("a")
        led.leadership.take_request((0, PULL, b"r", b"", b"1"))
        await asyncio.sleep(0)
        led.leadership.close(LEADERSHIP_CHANGE)
        led.leadership.propose_changes()
        await turns()
        assert led.proposed == []

    run(test())


def test_a_timer_is_set_again_only_for_an_earlier_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        led = LedConsumer(monkeypatch)
        led.bench.publish(*"ab")
        await fetch_and_ack(led, 1)
        timer = led.leadership._timer
        assert timer is not None
        led.boot_ns += S
        await fetch_and_ack(led, 2)
        assert led.leadership._timer is timer
        request = b'{"batch":1,"expires":%d}' % S
        led.leadership.take_request((0, PULL, b"r", b"", request))
        await turns()
        assert timer.cancelled()
        sooner = led.leadership._timer
        assert sooner is not None
        assert sooner.when() < timer.when()
        led.leadership.close()

    run(test())


def pumps(led: LedConsumer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One item for each pump of the engine from now on."""
    (engine,), seen = led.leadership.engines.values(), list[int]()
    pump = engine.pump

    def counted(now: int) -> object:
        seen.append(now)
        return pump(now)

    monkeypatch.setattr(engine, "pump", counted)
    return seen


def test_acks_that_nobody_waits_for_need_no_pump(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORD_AFTER_S", 3600.0)

    async def test() -> None:
        led = LedConsumer(monkeypatch)
        led.bench.publish(*"abc")
        for seq in (1, 2, 3):
            assert await led.pull() == [seq]
        seen = pumps(led, monkeypatch)
        led.leadership.take_acks((0, b"C", [1, 2], [1, 2]))
        await turns()
        assert not seen
        numbers = led.leadership.numbers("C")
        assert numbers is not None
        assert (numbers.floor_stream_seq, numbers.num_ack_pending) == (2, 1)
        led.leadership.take_acks((0, b"C", [3], [3]))
        led.leadership.propose_changes()
        assert kinds(led) == [DeliveryProgress, Acks]
        assert led.proposed[1].of[0].acked == [1, 3]
        led.leadership.close()

    run(test())


@pytest.mark.parametrize("why", ["a request waits", "acks remove", "many", "sampled"])
def test_other_acks_are_applied_at_once(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORD_AFTER_S", 3600.0)
    monkeypatch.setattr(ack_collector, "WAITING_MAX", 2)

    async def test() -> None:
        led = LedConsumer(monkeypatch)
        led.bench.publish(*"ab")
        stream = cast(BenchStream, led.bench.of.stream)
        for seq in (1, 2):
            assert await led.pull() == [seq]
        if why == "a request waits":
            assert await led.pull() == []
        elif why == "acks remove":
            stream.config = replace(stream.config, retention=Retention.WORKQUEUE)
        elif why == "sampled":
            (engine,) = led.leadership.engines.values()
            config = engine.consumer.config
            engine.consumer.config = replace(config, sample_freq="100%")
            engine.config_changed(config)
        seen = pumps(led, monkeypatch)
        acked = [1, 2] if why == "many" else [1]
        led.leadership.take_acks((0, b"C", acked, acked))
        await turns()
        assert seen
        led.leadership.close()

    run(test())
