"""What waits for a group to have a leader that serves it.

Owns: a bounded number of things per node, for a bounded time.
May not touch: what they are.
Spec: DESIGN section 7: acks and pull requests may be lost, but need not be by an election."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

HELD_S = 5.0  # as long as a request to a stream without a leader waits
HELD_BYTES_MAX = 4 << 20  # of all groups; beyond it the newest is refused


@dataclass(slots=True)
class WaitingForLeader(Generic[T]):
    """By group, in the order they came."""

    _by_group: dict[int, list[tuple[float, int, T]]] = field(default_factory=dict)
    _bytes: int = 0

    def keep(self, group: int, item: T, size: int) -> bool:
        """False when there is no room."""
        now = time.monotonic()
        if self._bytes + size > HELD_BYTES_MAX:
            for other in list(self._by_group):
                self._drop_old(other, now)
            if self._bytes + size > HELD_BYTES_MAX:
                return False
        self._by_group.setdefault(group, []).append((now, size, item))
        self._bytes += size
        return True

    def take(self, group: int) -> list[T]:
        """Those that are not too old; none is held any more."""
        self._drop_old(group, time.monotonic())
        held = self._by_group.pop(group, [])
        self._bytes -= sum(size for _, size, _ in held)
        return [item for _, _, item in held]

    def _drop_old(self, group: int, now: float) -> None:
        held = self._by_group.get(group, [])
        young = [entry for entry in held if entry[0] + HELD_S > now]
        self._bytes -= sum(size for _, size, _ in held) - sum(size for _, size, _ in young)
        if young:
            self._by_group[group] = young
        else:
            self._by_group.pop(group, None)
