"""Founding a cluster: how its first nodes agree on the members of the meta group.

Owns: the founding record (members by name and incarnation), which is on disk before anything
depends on it, the rule for which node founds, and the calls by which nodes learn of each other.
May not touch: Raft; it only says with which members the meta group starts.
A node adopts one founding record and never another. When the number of nodes that the configuration
expects is connected, the one with the smallest id founds the cluster, and the others adopt its
record. With fewer nodes the cluster waits. A node whose data directory was replaced is not a
member.
Spec: docs/decisions/0002-founding-a-cluster.md."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from broker.cluster.meta.members import ClusterMembers
from broker.cluster.node_files import NodeFiles
from broker.cluster.peers.rpc import CallFailed, Rpc
from raft import NodeId, node_id
from raft.transport.transport import Peer

logger = logging.getLogger("jetraft.cluster")

ASK_EVERY_S = 0.05
FOUNDING_FILE = "founding.json"
SESSION_FILE = "session"


class Founding(msgspec.Struct, frozen=True):
    """The members the meta group began with: server name -> incarnation of its data."""

    cluster: str
    members: dict[str, str]

    def voters(self) -> list[NodeId]:
        return sorted(node_id(name) for name in self.members)


class Candidate(msgspec.Struct, frozen=True):
    """A node's answer when a peer asks which cluster it belongs to."""

    name: str
    incarnation: str
    founding: Founding | None = None


@dataclass(slots=True)
class Founders:
    """The decision: wait for enough peers, then found or follow. `on_formed` is called once."""

    files: NodeFiles
    cluster: str
    name: str
    incarnation: str
    expected: Callable[[], int]
    on_formed: Callable[[Founding], None]
    founding: Founding | None = None
    _seen: dict[str, Candidate] = field(default_factory=dict)
    _refused: Founding | None = None  # this node is not a member of it, which was logged

    def load(self) -> None:
        record = self.files.read(FOUNDING_FILE)
        if record is not None:
            self.founding = msgspec.json.decode(record, type=Founding)

    def start(self) -> None:
        if self.founding is not None:
            self.on_formed(self.founding)
        else:
            self.consider()

    def candidate(self) -> Candidate:
        return Candidate(self.name, self.incarnation, self.founding)

    def peer_seen(self, peer: Candidate) -> None:
        self._seen[peer.name] = peer
        if self.founding is None:
            self.consider()
        elif peer.founding is not None and peer.founding != self.founding:
            logger.error(
                "node %s belongs to a cluster founded by %s, not to ours founded by %s: "
                "stop one of them or clear its store directory",
                peer.name, sorted(peer.founding.members), sorted(self.founding.members),
            )  # fmt: skip

    def peer_lost(self, name: str) -> None:
        self._seen.pop(name, None)

    def consider(self) -> None:
        """Found or follow, if the conditions are met."""
        if self.founding is None:
            self._consider()

    def _consider(self) -> None:
        foundings = [peer.founding for peer in self._seen.values() if peer.founding is not None]
        if foundings:
            # A stray node may report another founding: prefer one that names this node.
            self._follow(next((f for f in foundings if self._is_member(f)), foundings[0]))
            return
        names = sorted([self.name, *self._seen], key=node_id)
        if len(names) >= self.expected() and names[0] == self.name:
            members = {peer.name: peer.incarnation for peer in self._seen.values()}
            members[self.name] = self.incarnation
            self._adopt(Founding(self.cluster, members))

    def _is_member(self, founding: Founding) -> bool:
        return founding.members.get(self.name) == self.incarnation

    def _follow(self, founding: Founding) -> None:
        if self._is_member(founding):
            self._adopt(founding)
        elif founding != self._refused:  # peers are asked repeatedly: log it once
            self._refused = founding
            logger.error(
                "this node is not one of the founders %s (or its data was replaced): it serves "
                "clients, but holds no streams; adding members is not supported yet",
                sorted(founding.members),
            )

    def _adopt(self, founding: Founding) -> None:
        self.files.write(FOUNDING_FILE, msgspec.json.encode(founding))
        self.founding = founding
        self.on_formed(founding)


@dataclass(slots=True)
class FoundingCalls:
    """The calls around it: asks connected peers for their candidacy until this node belongs to a
    cluster, and once more whenever a peer connects, to detect a node of another cluster."""

    founders: Founders
    members: ClusterMembers
    rpc: Rpc
    peers: Callable[[], list[Peer]]
    spawn: Callable[[Awaitable[None], str], object]

    def start(self) -> None:
        self.rpc.register("candidate", self._serve)
        self.spawn(self._ask_until_founded(), "founding")
        self.founders.start()

    def peer_changed(self, peer: Peer, connected: bool) -> None:  # noqa: FBT001
        if not connected:
            self.founders.peer_lost(peer.name)
        elif self.members.founded.is_set():
            self.spawn(self._ask(peer.node), "founding check")

    async def _ask_until_founded(self) -> None:
        while not self.members.founded.is_set():
            for peer in self.peers():
                if peer.connected:
                    await self._ask(peer.node)
            self.founders.consider()
            await asyncio.sleep(ASK_EVERY_S)

    async def _ask(self, peer: NodeId) -> None:
        try:
            answer = await self.rpc.call(peer, "candidate", b"", timeout_s=1.0)
        except CallFailed:
            return  # it is asked again, unless it has disconnected
        self.founders.peer_seen(_candidate.decode(answer))

    async def _serve(self, _peer: NodeId, _body: bytes) -> bytes:
        return msgspec.json.encode(self.founders.candidate())


_candidate = msgspec.json.Decoder(Candidate)


def next_session(files: NodeFiles) -> int:
    """The session number of this run, greater than that of every earlier run of this node, and on
    disk before it is used.

    The clock makes it grow even when the data directory was replaced; the file makes it grow even
    when the clock stepped back."""
    earlier = int(files.read(SESSION_FILE) or b"0")
    session = max(earlier + 1, time.time_ns() // 1_000_000)
    files.write(SESSION_FILE, str(session).encode())
    return session
