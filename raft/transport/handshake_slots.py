"""Slots for connections with an unfinished handshake, and which connection is evicted.

Owns: the slots of waiting connections, by the address they come from.
May not touch: sockets, tasks, the handshake itself; the caller closes what is evicted.
Spec: a node finishes its handshake within milliseconds; a connection that holds a slot for long is
not a node. So a new connection is never refused: if no slot is free, the oldest connection of the
address that holds the most slots is closed instead. Known nodes have slots of their own, which
connections from other addresses cannot take, and no address has more than its share."""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Final, Generic, TypeVar

Waiting = TypeVar("Waiting")
_IPV6_SITE_BITS: Final = 64  # one site usually has a /64 or more, so its addresses count as one


def source_of(address: str) -> str:
    """The address that connections are counted by: an IPv6 site counts as one."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, _IPV6_SITE_BITS), strict=False).network_address)


class HandshakeSlots(Generic[Waiting]):
    """Two pools of `pool_max` slots, for known nodes and for others."""

    def __init__(self, *, pool_max: int, source_max: int) -> None:
        self._pool_max = pool_max
        self._source_max = source_max
        # In order of arrival: connection -> (source, pool). Pool True: known nodes.
        self._waiting: dict[Waiting, tuple[str, bool]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, newcomer: Waiting, source: str, *, known: bool) -> Waiting | None:
        """Give the new connection a slot. Returns the evicted connection, which must be closed."""
        evicted = self._to_evict(source, known=known)
        if evicted is not None:
            del self._waiting[evicted]
        self._waiting[newcomer] = (source, known)
        return evicted

    def leave(self, one: Waiting) -> None:
        """The handshake is done, or the connection is closed."""
        self._waiting.pop(one, None)

    def _to_evict(self, source: str, *, known: bool) -> Waiting | None:
        held = Counter(where for where, pool in self._waiting.values() if pool is known)
        if held[source] < self._source_max:
            if held.total() < self._pool_max:
                return None
            source = held.most_common(1)[0][0]
        return next(one for one, at in self._waiting.items() if at == (source, known))
