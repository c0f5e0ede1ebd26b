"""Sleeping groups, and the watch over the nodes that lets them sleep.

Owns: which groups get ticks, which nodes are there, one beat per node and interval in place of a
heartbeat per group.
May not touch: the consensus rules; a group that sleeps too long is late, never wrong.
Spec: DESIGN section 6. A leader sends an idle group to sleep when everyone who is there has
everything (core.may_sleep). From then on no member counts time. What wakes it: a proposal or any
message; for followers, that the leader's node is lost; for leaders, that no majority of the nodes
is left, or that a member's node comes back. A node is lost when our links to it break, or when
nothing was heard of it for two election timeouts; beats make sure that something is. Many groups
are woken in slices, so that the loop keeps turning."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from raft.core.ready import CoreConfig
from raft.host.group import Group
from raft.transport.transport import RAFT_CONTROL, Transport
from raft.types import GroupId, NodeId, Role

# A group with fewer proposals than three a second is cheaper asleep: heartbeats cost more.
_SLEEP_AFTER_TICKS: Final = 6  # without a new entry
_SLEEP_AFTER_UNUSED_TICKS: Final = 3
_TRY_EVERY_TICKS: Final = 3
_SLICE: Final = 200  # groups woken in one turn of the loop
_BEAT: Final = b""


class Vigil:
    def __init__(
        self,
        *,
        transport: Transport,
        config: CoreConfig,
        groups: Mapping[GroupId, Group],
        mark: Callable[[Group], None],
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """`soon` runs a callback in another turn of the loop."""
        self.awake: dict[GroupId, Group] = {}
        self.there: set[NodeId] = set()
        self._transport = transport
        self._config = config
        self._groups = groups
        self._mark = mark
        self._soon = soon
        self._ticks = 0
        self._heard: dict[NodeId, int] = {}
        self._to_wake: deque[tuple[Group, NodeId, bool]] = deque()  # whom, because of, is it lost

    # nodes

    def heard(self, node: NodeId) -> None:
        """A frame of this node has come."""
        self._heard[node] = self._ticks

    def tick(self) -> None:
        """Say that we are here; notice who has come, gone or fallen silent."""
        self._ticks += 1
        connected = {n for n, peer in self._transport.peers().items() if peer.connected}
        if self._ticks % self._config.heartbeat_ticks == 0:
            for node in connected:
                self._transport.send(node, RAFT_CONTROL, _BEAT, control=True)
        horizon = self._ticks - 2 * self._config.election_ticks  # a broken link shows sooner
        there = {node for node in connected if self._heard.setdefault(node, self._ticks) >= horizon}
        for node in self.there ^ there:
            self._changed(node, lost=node in self.there)

    def _changed(self, node: NodeId, *, lost: bool) -> None:
        if lost:
            self.there.discard(node)
        else:
            self.there.add(node)
        if not self._to_wake:
            self._soon(self._wake_some)
        self._to_wake.extend((group, node, lost) for group in self._groups.values())

    def _wake_some(self) -> None:
        woken = 0
        while self._to_wake and woken < _SLICE:
            group, node, lost = self._to_wake.popleft()
            core = group.core
            ours = core.role is Role.LEADER and node in core.members.everyone()
            if group.stopped is not None or not (ours or (lost and core.leader == node)):
                continue
            if ours and lost and core.asleep and core.keeps_quorum(self.there):
                continue  # it misses nothing that it has to be told
            woken += 1
            core.wake()
            # A node that is only silent may be slow: then the usual time is waited for it.
            if lost and not ours and not self._transport.connected(node):
                core.leader_lost(first=self._goes_first(group))
            self.rouse(group)
            self._mark(group)
        if self._to_wake:
            self._soon(self._wake_some)

    def _goes_first(self, group: Group) -> bool:
        """One of those who are left should campaign before the others, or votes are split: not
        the same one for every group."""
        core = group.core
        left = sorted(n for n in core.members.voters if n in self.there or n == core.node)
        return bool(left) and left[group.id % len(left)] == core.node

    # groups

    def rouse(self, group: Group) -> None:
        """Something happened to this group: it gets ticks unless its core sleeps on."""
        if group.core.asleep:
            self.awake.pop(group.id, None)
        else:
            self.awake[group.id] = group

    def forget(self, group: Group) -> None:
        self.awake.pop(group.id, None)

    def ticked(self, group: Group) -> None:
        """After a tick of a group that is awake: is it time to let it sleep?"""
        core = group.core
        if core.last_index != group.idle_at:
            group.idle_at, group.idle_ticks = core.last_index, 0
            return
        group.idle_ticks += 1
        if core.role is not Role.LEADER or group.unflushed:
            return
        ticks = group.idle_ticks
        # After an election nobody has proposed anything yet: many groups may just be founded.
        after = _SLEEP_AFTER_UNUSED_TICKS if core.unused_term else _SLEEP_AFTER_TICKS
        if ticks < after or ticks % _TRY_EVERY_TICKS:
            return
        if core.may_sleep(self.there):
            core.sleep()
            self.forget(group)
