"""A leader whose proposal was refused starts its engines again, from a state that is complete."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.replica import replica as module
from broker.cluster.replica.replica import Replica
from broker.jetstream.delivery.engine import Delivery
from broker.store.block.codec import BlockDamaged
from raft.core.messages import Entry, EntryKind
from raft.host.group import MachineDamaged
from raft.types import Index, Term
from tests.support.cluster_fakes import run
from tests.support.led_consumer import LedConsumer


class Closed:
    closed = False

    def close(self) -> None:
        self.closed = True


def test_engines_start_again_when_what_they_proposed_is_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Engines that begin earlier deliver again what entries under way settle."""
    monkeypatch.setattr(module, "RESUME_EVERY_S", 0.0)
    begun = asyncio.Event()

    def leadership(*_: Any) -> str:
        begun.set()
        return "new"

    monkeypatch.setattr(module, "Leadership", leadership)

    async def test() -> None:
        lost = Closed()
        stream = SimpleNamespace(applied=4)
        services = SimpleNamespace(delivery=None)
        replica = SimpleNamespace(leading=lost, stream=stream, _proposed=5, _services=services)
        replica._resume_leading = lambda one: Replica._resume_leading(cast(Any, replica), one)
        Replica._restart_leading(cast(Any, replica), cast(Any, lost))
        for _ in range(10):
            await asyncio.sleep(0)
        assert lost.closed
        assert replica.leading is lost  # and requests are not taken: it is closed
        assert not begun.is_set()
        stream.applied = 5
        async with asyncio.timeout(10):
            await begun.wait()
        assert replica.leading == "new"

    run(test())


def damaged(*_: Any) -> None:
    raise BlockDamaged("simulated damage")


def test_damage_that_a_new_leader_meets_stops_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks for the next expiry, for example."""
    monkeypatch.setattr(module, "Leadership", damaged)
    replica = SimpleNamespace(
        stream=SimpleNamespace(advanced=lambda _: None),
        _proposals=SimpleNamespace(passed=lambda _: None),
        _services=SimpleNamespace(
            usage=SimpleNamespace(changed=lambda _: None), now_ns=lambda: 1, delivery=None
        ),
        _won=Term(3),
    )
    replica._apply = lambda entries: Replica._apply(cast(Any, replica), entries)
    replica._begin_leading = lambda: Replica._begin_leading(cast(Any, replica))
    with pytest.raises(MachineDamaged):
        Replica.apply(cast(Any, replica), [Entry(Index(1), Term(3), b"", EntryKind.NOOP)])


def test_damage_at_a_new_beginning_stops_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Leadership", damaged)
    lost, failures = Closed(), list[Exception]()
    replica = SimpleNamespace(
        leading=lost,
        stream=SimpleNamespace(applied=5),
        _proposed=5,
        _services=SimpleNamespace(delivery=None),
        _failed=failures.append,
    )
    Replica._resume_leading(cast(Any, replica), cast(Any, lost))
    assert isinstance(failures[0], MachineDamaged)


def test_a_leadership_that_meets_damage_leaves_nothing_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[object] = []
    close = module.Leadership.close
    monkeypatch.setattr(module.Leadership, "_begin", damaged)
    monkeypatch.setattr(
        module.Leadership, "close", lambda one: (closed.append(one), close(one), None)[-1]
    )

    async def test() -> None:
        with pytest.raises(BlockDamaged):
            LedConsumer(monkeypatch)

    run(test())
    assert len(closed) == 1


@pytest.mark.parametrize("meets", ["delivery", "search of the next expiry", "expiry"])
def test_damage_that_a_leadership_meets_does_not_leave_its_callbacks(
    monkeypatch: pytest.MonkeyPatch, meets: str
) -> None:
    """The owner of the data was told by whoever read it, and ends the leadership."""

    async def test() -> None:
        raised: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        led = LedConsumer(monkeypatch)
        if meets == "delivery":
            monkeypatch.setattr(Delivery, "pump", damaged)
            assert await led.pull() == []
        elif meets == "expiry":
            monkeypatch.setattr(led.leadership.stream, "due_commands", damaged)
            led.leadership._expire()
        else:
            monkeypatch.setattr(led.leadership.stream, "next_expiry", damaged)
            led.leadership.time_stepped()
        assert not raised
        led.leadership.close()

    run(test())
