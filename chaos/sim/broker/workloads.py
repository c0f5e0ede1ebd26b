"""The workloads of a run.

Owns: their names, and which of them a plan can draw.
May not touch: what they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from chaos.sim.clients.administrator import StreamAdministration
from chaos.sim.clients.batches import BatchPublishers
from chaos.sim.clients.expiring import ExpiringMessages
from chaos.sim.clients.flood import Flood
from chaos.sim.clients.lifecycle import RebornStream
from chaos.sim.clients.mirrors import Mirrors
from chaos.sim.clients.publisher import AckedPublishers, TimedPublishers
from chaos.sim.clients.readers import RestingReaders
from chaos.sim.clients.registers import CompareAndSet
from chaos.sim.clients.scheduled import MessageSchedules
from chaos.sim.clients.workload import Scene, SimWorkload
from chaos.sim.consumers.changed_consumers import ChangedConsumers
from chaos.sim.consumers.inactive_consumers import InactiveConsumers
from chaos.sim.consumers.key_value_watch import KeyValueWatch
from chaos.sim.consumers.pull_consumers import PullConsumers
from chaos.sim.consumers.purged_consumers import PurgedConsumers
from chaos.sim.consumers.push_consumers import PushConsumers
from chaos.sim.consumers.retention import RetentionConsumers
from chaos.sim.writers.block_writers import BlockWriters

WORKLOADS: Final[Mapping[str, Callable[[Scene], SimWorkload]]] = {
    "acked publishers": AckedPublishers,
    "administration": StreamAdministration,
    "batches": BatchPublishers,
    "changed consumers": ChangedConsumers,
    "compare and set": CompareAndSet,
    "expiring messages": ExpiringMessages,
    "flood": Flood,
    "inactive consumers": InactiveConsumers,
    "key-value watch": KeyValueWatch,
    "reborn stream": RebornStream,
    "resting readers": RestingReaders,
    "schedules": MessageSchedules,
    "mirrors and sources": Mirrors,
    "pull consumers": PullConsumers,
    "purged consumers": PurgedConsumers,
    "timed publishers": TimedPublishers,
    "push consumers": PushConsumers,
    "retention": RetentionConsumers,
    "writers": BlockWriters,
}
# New workloads go here, each with the probability that a seed uses it. It is drawn with a generator
# of its own, so that seeds that do not use it keep their work.
LATER: Final[Mapping[str, float]] = {"writers": 0.15}
DRAWN: Final = tuple(sorted(WORKLOADS.keys() - LATER.keys()))
