"""A queue of requests for groups that have no leader at the moment.

Owns: the queued requests; their bytes and their age are bounded. When the queue is full, requests
of the account that holds the most are dropped for one that holds less: the streams of one tenant
may be without a leader for long, and the requests of others must still survive an election.
May not touch: what a request is, clocks (`now_s` is an argument).
An ack or a pull request may be lost, but not in an ordinary election."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

HELD_S = 5.0  # as long as an API request waits for a leader
HELD_BYTES_MAX = 4 << 20  # of all groups; beyond it requests are refused


@dataclass(slots=True)
class WaitingForLeader(Generic[T]):
    """Requests by group, in order of arrival."""

    on_expired: Callable[[T], None] = lambda _item: None  # dropped to make room for another
    _by_group: dict[int, list[tuple[float, int, T]]] = field(default_factory=dict)  # expiry, size
    _owners: dict[int, str] = field(default_factory=dict)  # the account of each of these groups
    _by_owner: dict[str, int] = field(default_factory=dict)  # bytes
    _bytes: int = 0

    def keep(self, group: int, item: T, size: int, *, owner: str, now_s: float) -> bool:
        """False if the queue is full. `owner` is the account of the group."""
        if self._bytes + size > HELD_BYTES_MAX:
            for other in list(self._by_group):
                self._drop_expired(other, now_s)
            if not self._make_room(owner, size):
                return False
        self._by_group.setdefault(group, []).append((now_s + HELD_S, size, item))
        self._owners[group] = owner
        self._count(owner, size)
        return True

    def _make_room(self, owner: str, size: int) -> bool:
        """Drop the newest requests of accounts that hold more than this one will. False: that would
        not make enough room, and nothing was dropped."""
        ours = self._by_owner.get(owner, 0) + size
        spare = sum(max(held - ours, 0) for held in self._by_owner.values())
        if self._bytes + size - HELD_BYTES_MAX > spare:
            return False
        while self._bytes + size > HELD_BYTES_MAX:
            largest = max(self._by_owner, key=self._by_owner.__getitem__)
            if self._by_owner[largest] <= ours:
                return False
            group = next(one for one, account in self._owners.items() if account == largest)
            _, dropped, item = self._by_group[group].pop()
            self._count(largest, -dropped)
            if not self._by_group[group]:
                del self._by_group[group], self._owners[group]
            self.on_expired(item)
        return True

    def _count(self, owner: str, size: int) -> None:
        self._bytes += size
        self._by_owner[owner] = self._by_owner.get(owner, 0) + size
        if not self._by_owner[owner]:
            del self._by_owner[owner]

    def take(self, group: int, *, now_s: float) -> tuple[list[T], list[T]]:
        """Remove the group's requests: those that have not expired, and those that have."""
        held = self._by_group.pop(group, [])
        if held:
            self._count(self._owners.pop(group), -sum(size for _, size, _ in held))
        alive = [item for expiry, _, item in held if expiry > now_s]
        return alive, [item for expiry, _, item in held if expiry <= now_s]

    def groups(self) -> list[int]:
        return list(self._by_group)

    def _drop_expired(self, group: int, now_s: float) -> None:
        held = self._by_group.get(group, [])
        if held and held[0][0] > now_s:
            return  # they expire in order
        alive = [entry for entry in held if entry[0] > now_s]
        dropped = sum(size for _, size, _ in held) - sum(size for _, size, _ in alive)
        if dropped:
            self._count(self._owners[group], -dropped)
        for _, _, item in [entry for entry in held if entry[0] <= now_s]:
            self.on_expired(item)
        if alive:
            self._by_group[group] = alive
        else:
            self._by_group.pop(group, None)
            self._owners.pop(group, None)
