"""Leader balance: streams' leaders spread evenly over their nodes, and away from draining ones.

Owns: which leaderships to transfer, as a pure function, and the loop of the meta leader that
requests the transfers. After a rolling restart, the nodes that stayed up lead everything; once no
leader has changed for a while, a few leaderships at a time move back. A draining node gives up its
leaderships immediately.
May not touch: elections; Raft transfers leadership only to a member that has caught up.
Spec: docs/decisions/0015-nodes-come-and-go.md."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.cluster.meta.assignments import META_GROUP, Assignment
from broker.cluster.meta.meta_group import MetaGroup
from broker.cluster.meta.node_table import NodeTable
from broker.cluster.peers.leader_table import LeaderTable
from broker.cluster.peers.rpc import CallFailed, CallRefused, Rpc
from raft import GroupId, NodeId, RaftError

logger = logging.getLogger("jetraft.cluster")

CHECK_EVERY_S: Final = 2.0
QUIET_S: Final = 30.0  # without a change of leaders, before leaderships are moved automatically
TRANSFERS_MAX: Final = 8  # at a time
UNEVEN: Final = 1.25  # automatic moves: only if a node leads this many times its share
EVEN: Final = 1.0  # the same, on request

_encode = msgspec.msgpack.Encoder().encode
_transfer = msgspec.msgpack.Decoder(tuple[int, int])
_count = msgspec.msgpack.Decoder(int)


@dataclass(frozen=True, slots=True)
class LeaderTransfer:
    group: int
    leader: NodeId
    to: NodeId


def next_transfers(
    assignments: Iterable[Assignment],
    nodes: NodeTable,
    *,
    leader: Callable[[int], NodeId | None],
    alive: Callable[[NodeId], bool],
    tolerance: float,
) -> list[LeaderTransfer]:
    """A few leaderships to transfer now. Each reduces a difference by two, so this terminates."""
    able = [node for node in nodes.placeable() if alive(node)]
    led = [(one, leader(one.group)) for one in assignments]
    leading = Counter(node for _, node in led)
    counts = {node: leading[node] for node in able}
    share = sum(counts.values()) / len(able) if able else 0.0
    busy = [node for node, count in counts.items() if count > share * tolerance]
    if not busy and counts.keys() >= leading.keys() - {None}:
        return []
    transfers: list[LeaderTransfer] = []
    for one, node in led:
        if node is None or set(one.peers) != set(one.members):
            continue  # it has no leader, or is being moved by it
        others = [NodeId(m) for m in one.members if m != node and m in counts]
        to = min(others, key=lambda other: (counts[other], other), default=None)
        if to is None:
            continue
        drains = node not in counts
        if drains or (counts[node] > max(share * tolerance, counts[to] + 1)):
            transfers.append(LeaderTransfer(one.group, node, to))
            counts[to] += 1
            if not drains:
                counts[node] -= 1
        if len(transfers) == TRANSFERS_MAX:
            break
    return transfers


@dataclass(slots=True)
class LeaderBalance:
    """`run` is a task of every node; it acts only on the leader of the meta group."""

    group: MetaGroup
    leaders: LeaderTable
    rpc: Rpc
    able: Callable[[NodeId], bool]  # connected, and takes leadership
    _seen: tuple[int, frozenset[NodeId]] = (-1, frozenset())
    _quiet_since: float = 0.0

    def start(self) -> None:
        self.rpc.register("stream transfer", self._serve_transfer)
        self.rpc.register("rebalance", self._serve_rebalance)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            if self.group.knows_all:
                await self._transfer(self._due(time.monotonic()))

    async def ask(self) -> int:
        """Ask the meta leader to spread the leaders now. Returns how many leaderships it transfers
        first; the others follow automatically. Raises CallFailed or JetStreamError."""
        leader = await self.leaders.wait(META_GROUP)
        return _count.decode(await self.rpc.call(leader, "rebalance", b""))

    def _due(self, now: float) -> list[LeaderTransfer]:
        nodes = self.group.assignments.nodes
        members = {NodeId(record.node) for record in nodes.present()}
        seen = (self.leaders.changes, frozenset(filter(self.able, members)))
        if seen != self._seen:
            self._seen, self._quiet_since = seen, now
        if now >= self._quiet_since + QUIET_S:
            self._quiet_since = now  # the next ones after another quiet time
            return self._next(UNEVEN)
        staying = set(nodes.placeable())
        if staying == members:
            return []
        return [one for one in self._next(UNEVEN) if one.leader not in staying]

    def _next(self, tolerance: float) -> list[LeaderTransfer]:
        table = self.group.assignments
        return next_transfers(
            table,
            table.nodes,
            leader=self.leaders.leader,
            alive=self.able,
            tolerance=tolerance,
        )

    async def _transfer(self, transfers: list[LeaderTransfer]) -> int:
        done = 0
        for one in transfers:
            try:
                await self.rpc.call(one.leader, "stream transfer", _encode((one.group, one.to)))
                done += 1
            except (CallFailed, RaftError) as refused:
                logger.debug("transfer of group %d: %s", one.group, refused)
        return done

    async def _serve_rebalance(self, _peer: NodeId, _body: bytes) -> bytes:
        if not self.group.knows_all:
            raise CallRefused("not the meta leader")
        return _encode(await self._transfer(self._next(EVEN)))

    async def _serve_transfer(self, _peer: NodeId, body: bytes) -> bytes:
        group, to = _transfer.decode(body)
        host = self.group.host
        try:
            if to not in host.status(GroupId(group)).core.voters:
                raise CallRefused("not a voter of the group")
            host.transfer(GroupId(group), NodeId(to))
        except RaftError as error:
            raise CallRefused(str(error)) from error
        return b""
