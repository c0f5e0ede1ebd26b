"""Bugs of message schedules.

Owns: the replaced functions.
May not touch: anything while no bug is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from broker.jetstream.commands.stream_commands import Fire
from broker.jetstream.schedules.schedules import PendingSchedule, Schedules
from broker.jetstream.stream import stream
from chaos.sim.bugs.broker_bug import BrokerBug, Replacement

_SCHEDULES: Final = ("schedules",)


def _fire_again(original: Callable[..., int]) -> Callable[..., int]:
    def apply_fire(command: Fire, schedules: Schedules, store: Any, **how: Any) -> int:
        held = schedules._by_subject  # noqa: SLF001
        for subject, pending in held.items():
            held[subject] = msgspec.structs.replace(pending, fired_ns=0)
        return original(command, schedules, store, **how)

    return apply_fire


def _forget_schedules(_: Any) -> Any:
    def of(cls: type[Schedules], _images: list[PendingSchedule]) -> Schedules:
        return cls()

    return classmethod(of)


SCHEDULE_BUGS: Final[dict[str, BrokerBug]] = {
    "schedule fired twice": BrokerBug(
        "a command to fire has an effect once for every due time, whoever proposed it",
        (Replacement(stream, "apply_fire", _fire_again),),
        found_by=29,
        workloads=_SCHEDULES,
    ),
    "schedule forgotten over a restart": BrokerBug(
        "schedules are part of a checkpoint",
        (Replacement(Schedules, "of", _forget_schedules),),
        found_by=0,
        workloads=_SCHEDULES,
    ),
}
