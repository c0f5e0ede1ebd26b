"""A queue of requests for groups that have no leader at the moment.

Owns: the queued requests; their bytes and their age are bounded.
May not touch: what a request is, clocks (`now_s` is an argument).
Losing an ack or a pull request is allowed, but an ordinary election should not cause it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

HELD_S = 5.0  # as long as an API request waits for a leader
HELD_BYTES_MAX = 4 << 20  # of all groups; beyond it new requests are refused


@dataclass(slots=True)
class WaitingForLeader(Generic[T]):
    """Requests by group, in order of arrival."""

    on_expired: Callable[[T], None] = lambda _item: None  # dropped to make room for another
    _by_group: dict[int, list[tuple[float, int, T]]] = field(default_factory=dict)  # expiry, size
    _bytes: int = 0

    def keep(self, group: int, item: T, size: int, *, now_s: float) -> bool:
        """False if the queue is full."""
        if self._bytes + size > HELD_BYTES_MAX:
            for other in list(self._by_group):
                self._drop_expired(other, now_s)
            if self._bytes + size > HELD_BYTES_MAX:
                return False
        self._by_group.setdefault(group, []).append((now_s + HELD_S, size, item))
        self._bytes += size
        return True

    def take(self, group: int, *, now_s: float) -> tuple[list[T], list[T]]:
        """Remove the group's requests: those that have not expired, and those that have."""
        held = self._by_group.pop(group, [])
        self._bytes -= sum(size for _, size, _ in held)
        alive = [item for expiry, _, item in held if expiry > now_s]
        return alive, [item for expiry, _, item in held if expiry <= now_s]

    def groups(self) -> list[int]:
        return list(self._by_group)

    def _drop_expired(self, group: int, now_s: float) -> None:
        held = self._by_group.get(group, [])
        alive = [entry for entry in held if entry[0] > now_s]
        self._bytes -= sum(size for _, size, _ in held) - sum(size for _, size, _ in alive)
        for _, _, item in [entry for entry in held if entry[0] <= now_s]:
            self.on_expired(item)
        if alive:
            self._by_group[group] = alive
        else:
            self._by_group.pop(group, None)
