"""Quiescence: idle groups sleep, and nodes watch each other instead of each group's heartbeats.

Owns: which groups get ticks, which nodes are reachable, and the beats: one per node and interval,
in place of a heartbeat per group.
May not touch: the consensus rules. A group that sleeps too long reacts late, but stays correct.
Spec: raft/DIVERGENCE.md, "Idle groups". A leader puts an idle group to sleep when every reachable
member has the whole log (RaftCore.may_sleep). From then on no member counts time. A proposal or any
message wakes it. Followers also wake when the leader's node is lost; a leader wakes when no
majority of nodes is left, or when a member's node returns. A node is lost when our links to it
break, or when nothing has arrived from it for two election timeouts. Because of the beats, a node
that is up is never silent for so long. Many groups are woken in slices, so that the event loop
stays responsive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar

from raft.core.raft_core import RaftCore
from raft.core.ready import CoreConfig
from raft.transport.transport import RAFT_CONTROL
from raft.types import GroupId, Index, NodeId, Role

# A group with fewer than three proposals per second is cheaper asleep: heartbeats cost more.
_SLEEP_AFTER_TICKS: Final = 6  # without a new entry
_SLEEP_AFTER_UNUSED_TICKS: Final = 3
_TRY_EVERY_TICKS: Final = 3
_SLICE: Final = 200  # groups woken in one turn of the loop
_BEAT: Final = b""


class IdleGroup(Protocol):
    """A group, as far as quiescence uses it."""

    idle_at: Index  # the log's last index when it was last seen to grow
    idle_ticks: int

    @property
    def id(self) -> GroupId: ...

    @property
    def core(self) -> RaftCore: ...

    @property
    def stopped(self) -> str | None: ...

    @property
    def unflushed(self) -> int: ...


class BeatLinks(Protocol):
    """The links to the other nodes, as far as quiescence uses them."""

    def connected_peers(self) -> set[NodeId]: ...

    def connected(self, node: NodeId) -> bool: ...

    def send(self, to: NodeId, channel: int, payload: bytes, *, control: bool = False) -> bool: ...


G = TypeVar("G", bound=IdleGroup)


class Quiescence(Generic[G]):
    def __init__(
        self,
        *,
        transport: BeatLinks,
        config: CoreConfig,
        groups: Mapping[GroupId, G],
        mark: Callable[[G], None],
        call_soon: Callable[[Callable[[], None]], None],
        yields: Callable[[NodeId], bool] = lambda _node: False,
    ) -> None:
        """`call_soon` runs a callback in another turn of the loop. `yields` returns whether a node
        leaves elections to others."""
        self.awake: dict[GroupId, G] = {}
        self.reachable: set[NodeId] = set()
        self._transport = transport
        self._config = config
        self._groups = groups
        self._mark = mark
        self._call_soon = call_soon
        self._yields = yields
        self._ticks = 0
        self._heard: dict[NodeId, int] = {}
        self._to_wake: deque[tuple[G, NodeId, bool]] = deque()  # group, node, whether it is lost

    # nodes

    def heard(self, node: NodeId) -> None:
        """A frame of this node has arrived."""
        self._heard[node] = self._ticks

    def tick(self) -> None:
        """Send beats, and detect nodes that have appeared or are lost."""
        self._ticks += 1
        connected = self._transport.connected_peers()
        if self._ticks % self._config.heartbeat_ticks == 0:
            for node in connected:
                self._transport.send(node, RAFT_CONTROL, _BEAT, control=True)
        horizon = self._ticks - 2 * self._config.election_ticks  # a broken link shows sooner
        reachable = {n for n in connected if self._heard.setdefault(n, self._ticks) >= horizon}
        for node in self.reachable ^ reachable:
            self._changed(node, lost=node in self.reachable)

    def _changed(self, node: NodeId, *, lost: bool) -> None:
        if lost:
            self.reachable.discard(node)
        else:
            self.reachable.add(node)
        if not self._to_wake:
            self._call_soon(self._wake_some)
        self._to_wake.extend((group, node, lost) for group in self._groups.values())

    def _wake_some(self) -> None:
        woken = 0
        while self._to_wake and woken < _SLICE:
            group, node, lost = self._to_wake.popleft()
            core = group.core
            leads_node = core.role is Role.LEADER and node in core.members.everyone()
            follows_lost = lost and core.leader == node
            if group.stopped is not None or not (leads_node or follows_lost):
                continue
            if leads_node and lost and core.asleep and core.keeps_quorum(self.reachable):
                continue  # the lost node has everything, and a majority is left: stay asleep
            woken += 1
            core.wake()
            # A connected node that is silent may only be slow: wait the usual election timeout.
            if lost and not leads_node and not self._transport.connected(node):
                core.leader_lost(first=self._campaigns_first(group))
            self.update(group)
            self._mark(group)
        if self._to_wake:
            self._call_soon(self._wake_some)

    def _campaigns_first(self, group: G) -> bool:
        """Whether we campaign before the other remaining voters. One of them does, so that votes
        are not split; which one differs from group to group."""
        core = group.core
        left = sorted(
            node
            for node in core.members.voters
            if (node in self.reachable or node == core.node) and not self._yields(node)
        )
        return bool(left) and left[group.id % len(left)] == core.node

    # groups

    def update(self, group: G) -> None:
        """Something happened to this group: it gets ticks unless its core is asleep."""
        if group.core.asleep:
            self.awake.pop(group.id, None)
        else:
            self.awake[group.id] = group

    def forget(self, group: G) -> None:
        self.awake.pop(group.id, None)

    def ticked(self, group: G) -> None:
        """After a tick of a group that is awake: put it to sleep if it is idle."""
        core = group.core
        if core.last_index != group.idle_at:
            group.idle_at, group.idle_ticks = core.last_index, 0
            return
        group.idle_ticks += 1
        if core.role is not Role.LEADER or group.unflushed:
            return
        ticks = group.idle_ticks
        # Nothing was proposed since the election: many groups may just have been created.
        after = _SLEEP_AFTER_UNUSED_TICKS if core.unused_term else _SLEEP_AFTER_TICKS
        if ticks < after or ticks % _TRY_EVERY_TICKS:
            return
        if core.may_sleep(self.reachable):
            core.sleep()
            self.forget(group)
