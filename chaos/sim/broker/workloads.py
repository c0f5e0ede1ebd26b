"""The workloads that a plan can draw.

Owns: their names.
May not touch: what they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from chaos.sim.clients.publisher import AckedPublishers
from chaos.sim.clients.workload import Scene, SimWorkload

WORKLOADS: Final[Mapping[str, Callable[[Scene], SimWorkload]]] = {
    "acked publishers": AckedPublishers,
}
