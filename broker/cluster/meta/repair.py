"""Repair: moves every stream to nodes that are members and connected.

Owns: what to change next in the stream table when nodes drain, leave or are gone, as a pure
function, and the loop of the meta leader that proposes it. The only memory is since when nodes are
away: a new leader reads the table and continues.
May not touch: the groups of streams; their leaders change the members (replica/member_changes.py).
Spec: docs/decisions/0015-nodes-come-and-go.md."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from broker.cluster.meta.assignments import (
    META_GROUP,
    Assignment,
    MetaCommand,
    MoveReplicas,
    RenewStream,
)
from broker.cluster.meta.meta_group import MetaGroup
from broker.cluster.meta.meta_voters import may_vote
from broker.cluster.meta.node_table import NodeTable, SetStanding, Standing
from broker.cluster.meta.placement import PlacementView, choose_peers
from broker.cluster.meta.table_sums import TableSums
from broker.cluster.proposals import LostLeadership
from raft import NodeId, RaftError

logger = logging.getLogger("jetraft.cluster")

CHECK_EVERY_S: Final = 0.25
FULL_CHECK_EVERY_S: Final = 5.0  # without a change of the table or of the connected nodes
# A leaving node may have the only replica of a stream. A link that fails during the move must not
# lose its messages.
LOST_AFTER_S: Final = 30.0
NAMED_MAX: Final = 3  # streams named in one log message
MOVES_MAX: Final = 32  # streams that move at the same time; the others wait


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What the decision depends on besides the table."""

    placement: PlacementView
    gone: Callable[[NodeId], bool]  # away for so long that its replicas are replaced
    lost: Callable[[NodeId], bool]  # away for so long that a removal does not wait for its data
    votes: Callable[[NodeId], bool]  # in the meta group; a node is removed only without a vote
    now_ns: int


def worth_a_look(
    assignments: Iterable[Assignment],
    sums: TableSums[Assignment],
    nodes: NodeTable,
    view: ClusterView,
) -> Iterable[Assignment]:
    """The streams that may need a repair. While all nodes stay, these are only the streams that
    move or have too few replicas: there may be thousands of others."""
    staying = {node for node in nodes.placeable() if not view.gone(node)}
    return list(sums.unsettled.values()) if sums.holders() <= staying else assignments


def next_repairs(
    assignments: Iterable[Assignment], nodes: NodeTable, view: ClusterView
) -> list[MetaCommand]:
    """The changes to propose now; empty: every stream is where it should be, or moving there."""
    commands: list[MetaCommand] = []
    held: set[int] = set()
    moving = 0
    for one in assignments:
        held |= one.holders
        in_motion = set(one.peers) != set(one.members)
        moving += in_motion
        change = _repair(one, nodes, view)
        if change is not None and (moving < MOVES_MAX or isinstance(change, RenewStream)):
            commands.append(change)
            moving += not in_motion
    for record in nodes.present():
        if record.standing is not Standing.LEAVING or view.votes(NodeId(record.node)):
            continue
        if record.node not in held:
            commands.append(SetStanding(record.node, Standing.REMOVED, view.now_ns))
    return commands


def _repair(one: Assignment, nodes: NodeTable, view: ClusterView) -> MetaCommand | None:
    place, alive = view.placement, view.placement.alive
    peers = _better_peers(one, nodes, view)
    if peers != one.peers:
        return MoveReplicas(one.account, one.name, one.group, one.peers, peers, view.now_ns)
    lost = [
        member
        for member in one.members
        if nodes.is_removed(member) or (_leaves(nodes, member) and view.lost(NodeId(member)))
    ]
    present = any(alive(NodeId(peer)) and peer in place.members for peer in peers)
    if len(lost) == len(one.members) and present:
        return RenewStream(one.account, one.name, one.group, one.members)
    return None


def _better_peers(one: Assignment, nodes: NodeTable, view: ClusterView) -> list[int]:
    """The peers that the stream should have, given the current nodes."""
    staying, must_go, may_go = _staying(one, nodes, view)
    if not must_go and not may_go and len(one.peers) >= one.config.num_replicas:
        return one.peers
    chosen: object = None
    # As many replicas as are wanted, or as many as there can be.
    for replicas in range(one.config.num_replicas, len(staying), -1):
        chosen = choose_peers(
            view.placement,
            name=one.name,
            replicas=replicas,
            keep=staying,
            placement=one.config.placement,
        )
        if isinstance(chosen, list):
            break
    if isinstance(chosen, list):
        better = [int(peer) for peer in chosen]
        if must_go or len(better) > len(one.peers) or len(better) == one.config.num_replicas:
            return better
    if must_go and staying:
        return [int(peer) for peer in staying]
    return one.peers


def _staying(
    one: Assignment, nodes: NodeTable, view: ClusterView
) -> tuple[list[NodeId], bool, bool]:
    """The peers that keep their replicas, and whether others must or may lose theirs. A connected
    peer that is missing from the table of nodes keeps its replica: the gap is in the table, and
    must not cost a replica."""
    staying: list[NodeId] = []
    must_go = may_go = False
    for peer in map(NodeId, one.peers):
        record = nodes.get(peer)
        if record is None and view.placement.alive(peer):
            staying.append(peer)
        elif record is None or record.standing in (Standing.LEAVING, Standing.REMOVED):
            must_go = True
        elif record.standing is Standing.DRAINING or (view.gone(peer) and _can_move(one, view)):
            may_go = True
        else:
            staying.append(peer)
    return staying, must_go, may_go


def without_a_place(
    assignments: Iterable[Assignment],
    nodes: NodeTable,
    view: ClusterView,
    name: Callable[[NodeId], str],
) -> list[str]:
    """Messages about replicas that should be moved or created, but that no node can take."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in assignments:
        staying, must_go, may_go = _staying(one, nodes, view)
        if not must_go and not may_go and len(one.peers) >= one.config.num_replicas:
            continue
        if _better_peers(one, nodes, view) != one.peers:
            continue
        why = choose_peers(
            view.placement,
            name=one.name,
            replicas=one.config.num_replicas,
            keep=staying,
            placement=one.config.placement,
        )
        if isinstance(why, list):
            continue
        stuck = ", ".join(sorted(name(NodeId(p)) for p in one.peers if p not in staying))
        what = f"a replica on {stuck} that" if stuck else "fewer replicas than wanted, which"
        reason = why.sentence(view.placement.unique_tag, name)
        found.setdefault((what, reason), []).append(one.name)
    return [
        f"{_named(streams)} {what} no other node can take: {reason}"
        for (what, reason), streams in sorted(found.items())
    ]


def _named(streams: list[str]) -> str:
    if len(streams) == 1:
        return f"stream {streams[0]} has"
    more = ", ..." if len(streams) > NAMED_MAX else ""
    return f"{len(streams)} streams ({', '.join(streams[:NAMED_MAX])}{more}) have"


def _leaves(nodes: NodeTable, member: int) -> bool:
    record = nodes.get(member)
    return record is None or record.standing is Standing.LEAVING


def _can_move(one: Assignment, view: ClusterView) -> bool:
    """Whether the stream can be moved: without a majority it has no leader to do it."""
    up = sum(view.placement.alive(NodeId(member)) for member in one.members)
    return 2 * up > len(one.members)


@dataclass(slots=True)
class Repair:
    """`run` is a task of every node; it acts only on the leader of the meta group."""

    group: MetaGroup
    view: Callable[[], PlacementView]
    now_ns: Callable[[], int]
    gone_after_s: float  # a node that is away for longer does not keep its replicas
    name: Callable[[NodeId], str]
    stuck: list[str] = field(default_factory=list)  # see without_a_place; the leader knows it
    _away_since: dict[NodeId, float] = field(default_factory=dict)
    # The entry, the connected nodes and the voters at the last check.
    _checked: tuple[int, frozenset[NodeId], frozenset[NodeId]] = (-1, frozenset(), frozenset())
    _checked_at: float = 0.0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            if not self.group.knows_all:
                self._away_since.clear()  # the next leader starts to count again
                self.stuck = []
                continue
            commands = self._due(time.monotonic())
            for command in commands:
                await self._propose(command)

    def _due(self, now: float) -> list[MetaCommand]:
        place, table = self.view(), self.group.assignments
        nodes = table.nodes
        members = [NodeId(record.node) for record in nodes.present()]
        up = frozenset(node for node in members if place.alive(node))
        self._away_since = {
            node: self._away_since.get(node, now) for node in members if node not in up
        }
        core = self.group.host.status(META_GROUP).core
        voting = frozenset(node for node in members if may_vote(core, node))
        seen = (table.applied, up, voting)
        if seen == self._checked and now < self._checked_at + FULL_CHECK_EVERY_S:
            return []
        self._checked, self._checked_at = seen, now

        def away_s(node: NodeId) -> float:
            return now - self._away_since.get(node, now)

        view = ClusterView(
            place,
            gone=lambda node: away_s(node) >= self.gone_after_s,
            lost=lambda node: away_s(node) >= LOST_AFTER_S,
            votes=voting.__contains__,
            now_ns=self.now_ns(),
        )
        looked_at = list(worth_a_look(table, table.sums, nodes, view))
        self._tell(without_a_place(looked_at, nodes, view, self.name))
        return next_repairs(looked_at, nodes, view)

    def _tell(self, stuck: list[str]) -> None:
        for sentence in stuck:
            if sentence not in self.stuck:
                logger.warning("%s", sentence)
        if self.stuck and not stuck:
            logger.info("all replicas are placed again")
        self.stuck = stuck

    async def _propose(self, command: MetaCommand) -> None:
        if isinstance(command, RenewStream):
            logger.error(
                "stream %s: every node that held it is gone from the cluster. Its messages are "
                "lost; it starts again, empty",
                command.name,
            )
        try:
            await self.group.propose(command)
        except (RaftError, LostLeadership) as refused:
            logger.info("repair: %s: %s", type(command).__name__, refused)
