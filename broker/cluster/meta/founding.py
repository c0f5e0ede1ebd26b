"""Founding a cluster: how its first nodes agree on the members of the meta group.

Owns: the founding record (members by name and incarnation), which is on disk before anything
depends on it, the rule for which node founds, and the calls between the nodes.
May not touch: Raft; it only determines the members with which the meta group starts.
A data directory adopts one founding record and never another. When all nodes named by the routes
are connected, the one with the smallest id proposes the list of members. It founds the cluster when
every node of the list has promised to take part, and the others adopt its record. A node promises
only if the list contains every node it knows, and only to one proposer: so two foundings have no
member in common, and no route leads from one to the other.
Nodes without JetStream do not count. Until all nodes are connected, the cluster waits. A node that
is not one of the founders, for example because its data directory was replaced, asks to join
(joining.py) before it adopts the record.
Spec: docs/decisions/0002-founding-a-cluster.md, docs/decisions/0024-who-founds.md,
docs/decisions/0015-nodes-come-and-go.md."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

import msgspec
from isal.isal_zlib import crc32

from broker.cluster.meta.members import ClusterMembers
from broker.cluster.meta.node_table import Standing
from broker.cluster.node_files import NodeFiles
from broker.cluster.peers.rpc import CallFailed, Rpc
from raft import NodeId, node_id
from raft.transport.transport import Peer

logger = logging.getLogger("jetraft.cluster")

ASK_EVERY_S = 0.05
FOUNDING_FILE = "founding.json"
PROMISE_FILE = "founding-promise.json"
SESSION_FILE = "session"
JOIN_EVERY_S = 1.0  # after a refusal
STANDING_EVERY_S = 2.0
PROMISED = b"yes"


class Founding(msgspec.Struct, frozen=True):
    """The members the meta group began with: server name -> incarnation of its data."""

    cluster: str
    members: dict[str, str]
    nodes: dict[str, int] = {}  # server name -> node id; missing: the id that the name gives

    def names(self) -> dict[NodeId, str]:
        return {NodeId(self.nodes.get(name) or node_id(name)): name for name in self.members}

    def voters(self) -> list[NodeId]:
        return sorted(self.names())

    def digest(self) -> str:
        """Equal for equal records; nodes send it in their hellos."""
        facts = (self.cluster, sorted(self.members.items()), sorted(self.nodes.items()))
        return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:32]


class AdoptedFounding(msgspec.Struct, frozen=True):
    """The founding record as stored on disk: `by` is the incarnation that adopted it. A different
    incarnation that finds the file (the database was replaced, the file was not) must ignore it."""

    founding: Founding
    by: str


class FoundingPromise(msgspec.Struct, frozen=True):
    """The promise to take part in the founding that `to` has proposed, and in no other. On disk
    before it is sent to the proposer. Valid until the proposer has withdrawn the proposal."""

    by: str  # the incarnation that has promised
    to: str = ""  # name of the proposer; "": nobody
    to_incarnation: str = ""
    number: int = 0  # of the proposal
    proposed: int = 0  # the last proposal of this node itself


class FoundingProposal(msgspec.Struct, frozen=True):
    founding: Founding
    by: str  # name of the proposer
    number: int  # unique for the proposer, also across restarts


class BootstrapPeer(msgspec.Struct, frozen=True):
    """A node's answer when a peer asks which cluster it belongs to."""

    name: str
    incarnation: str
    founding: Founding | None = None
    node: int = 0
    you_are_removed: bool = False  # the asking incarnation is no longer a member
    promises: bool = False  # whether it supports promises; version 0.1 does not
    knows: list[int] | None = None  # nodes that must be founders; None: not all are known yet
    withdrawn: int = 0  # its proposals up to this number are withdrawn

    @property
    def id(self) -> NodeId:
        return NodeId(self.node or node_id(self.name))


@dataclass(slots=True)
class Bootstrap:
    """The decision: wait for enough peers, then found or follow. `on_formed` is called once."""

    files: NodeFiles
    cluster: str
    name: str
    incarnation: str
    expected: Callable[[], Collection[NodeId] | None]  # other nodes; None: not all are known yet
    on_formed: Callable[[Founding], None]
    node: int = 0
    founding: Founding | None = None
    # The cluster of our peers, if this node is not one of its founders: to be joined.
    foreign: Founding | None = None
    # The current proposal of this node. Not on disk: a proposal ends with its process.
    proposal: FoundingProposal | None = None
    _promise: FoundingPromise = field(init=False)
    _seen: dict[str, BootstrapPeer] = field(default_factory=dict)
    _reported: object = None  # what was logged last

    def __post_init__(self) -> None:
        self._promise = FoundingPromise(self.incarnation)

    def load(self) -> None:
        record = self.files.read(FOUNDING_FILE)
        if record is not None:
            self.founding = self._read(record)
        promise = self.files.read(PROMISE_FILE)
        if promise is not None:
            self._promise = self._read_promise(promise)

    def _read(self, content: bytes) -> Founding | None:
        """None if there is none, or if it is damaged: the peers have the same record."""
        try:
            return self._decode(_checked(content))
        except (ValueError, msgspec.DecodeError) as error:
            logger.warning("%s is damaged (%s): asking the peers again", FOUNDING_FILE, error)
            return None

    def _read_promise(self, content: bytes) -> FoundingPromise:
        try:
            promise = msgspec.json.decode(_checked(content), type=FoundingPromise)
        except (ValueError, msgspec.DecodeError) as error:
            logger.warning("%s is damaged (%s): waiting for a founding", PROMISE_FILE, error)
            # The promise may have been given to any node: keep it until a founding names this node.
            return FoundingPromise(self.incarnation, to="?", number=1 << 62)
        return promise if promise.by == self.incarnation else FoundingPromise(self.incarnation)

    def _decode(self, record: bytes) -> Founding | None:
        try:
            adopted = msgspec.json.decode(record, type=AdoptedFounding)
        except msgspec.ValidationError:  # of an earlier version: adopted by founders only
            founding = msgspec.json.decode(record, type=Founding)
            return founding if self._is_member(founding) else None
        return adopted.founding if adopted.by == self.incarnation else None

    def start(self) -> None:
        if self.founding is not None:
            self.on_formed(self.founding)
        else:
            self.consider()

    def as_peer(self) -> BootstrapPeer:
        known = self._known() if self.founding is None else None
        return BootstrapPeer(
            self.name,
            self.incarnation,
            self.founding,
            self.node,
            promises=True,
            knows=None if known is None else sorted(known),
            withdrawn=self._promise.proposed - (self.proposal is not None),
        )

    def peer_seen(self, peer: BootstrapPeer) -> None:
        self._seen[peer.name] = peer
        if self.founding is None:
            self._release(peer)
            self.consider()
        elif peer.founding is not None and peer.founding != self.founding:
            logger.error(
                "node %s belongs to a cluster founded by %s, not to ours founded by %s: "
                "stop one of them or clear its store directory",
                peer.name, sorted(peer.founding.members), sorted(self.founding.members),
            )  # fmt: skip

    def is_of(self, name: str, founding: Founding) -> bool:
        """Whether the peer has reported that it belongs to this cluster."""
        peer = self._seen.get(name)
        return peer is not None and peer.founding == founding

    def knows_promises(self, node: NodeId) -> bool:
        """False: a node of version 0.1. A disconnected node counts as one that does: it is asked,
        and cannot answer."""
        return all(peer.promises for peer in self._seen.values() if peer.id == node)

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
            ours = next((f for f in foundings if self._is_member(f)), None)
            if ours is not None:
                self.adopt(ours)
            elif not self._promise.to and self.proposal is None:
                self._join_one_of(foundings)
            return
        peers = [*self._seen.values(), self.as_peer()]
        smallest = sorted([self.name, *self._seen], key=node_id)[0] == self.name
        if not smallest or not self._sees_expected() or not self._is_free():
            return
        founding = Founding(
            self.cluster,
            {peer.name: peer.incarnation for peer in peers},
            {peer.name: peer.node for peer in peers if peer.node},
        )
        if not any(peer.promises for peer in self._seen.values()):
            self.adopt(founding)  # there is nobody to ask
        elif all(_takes_part(peer, founding) for peer in self._seen.values()):
            self._propose(founding)

    def _sees_expected(self) -> bool:
        """Whether all nodes named by the routes are connected. Some other connected node is no
        substitute: a missing one might found a cluster with others."""
        expected = self.expected()
        seen = {peer.id for peer in self._seen.values()}
        return expected is not None and seen.issuperset(expected)

    def _known(self) -> set[NodeId] | None:
        """The nodes that must take part in a founding: those named by the routes, and those that
        are connected. None: not all of the former are known."""
        expected = self.expected()
        return None if expected is None else {*expected, *(p.id for p in self._seen.values())}

    # -- promises -------------------------------------------------------------------------------

    def _propose(self, founding: Founding) -> None:
        number = self._promise.proposed + 1
        self._write_promise(FoundingPromise(self.incarnation, proposed=number))
        self.proposal = FoundingProposal(founding, self.name, number)

    def promise(self, proposal: FoundingProposal) -> bool:
        """Whether this node takes part in the founding. If so, it takes part in no other until the
        proposal is withdrawn."""
        founding = proposal.founding
        held = self._promise
        proposer = founding.members.get(proposal.by, "")
        if self.founding is not None or self.foreign is not None or self.proposal is not None:
            return False
        if any(peer.founding is not None for peer in self._seen.values()):
            return False  # a cluster exists already: this node will join it
        if held.to and (held.to, held.to_incarnation) != (proposal.by, proposer):
            return False
        known = self._known()
        if known is None or not self._is_member(founding) or not known <= {*founding.names()}:
            return False
        self._write_promise(
            FoundingPromise(self.incarnation, proposal.by, proposer, proposal.number, held.proposed)
        )
        return True

    def decide(self, proposal: FoundingProposal, *, promised: bool) -> None:
        """The proposal is over. `promised`: by every other node that it names."""
        if self.proposal is not proposal:
            return
        self.proposal = None
        if promised and self.founding is None:
            self.adopt(proposal.founding)

    def _release(self, peer: BootstrapPeer) -> None:
        """Void the promise to this peer if the peer has withdrawn its proposal, or has lost its
        disk, and with it the promises it got. A founding record that it has takes precedence."""
        held = self._promise
        if held.to != peer.name or (peer.founding and self._is_member(peer.founding)):
            return
        if peer.incarnation != held.to_incarnation or peer.withdrawn >= held.number:
            self._write_promise(FoundingPromise(self.incarnation, proposed=held.proposed))

    def _is_free(self) -> bool:
        """Whether this node may propose a founding, or join a cluster."""
        held = self._promise
        if held.to and self._reported != held:
            self._reported = held
            logger.warning(
                "this node has agreed to found a cluster with %s and waits for that node; if it "
                "never returns, clear the store directory of this node",
                held.to,
            )
        return not held.to and self.proposal is None and self.foreign is None

    def _write_promise(self, promise: FoundingPromise) -> None:
        self.files.write(PROMISE_FILE, _with_checksum(msgspec.json.encode(promise)))
        self._promise = promise

    def _is_member(self, founding: Founding) -> bool:
        return founding.members.get(self.name) == self.incarnation

    def _join_one_of(self, foundings: list[Founding]) -> None:
        first = foundings[0]
        if all(other == first for other in foundings):
            self.foreign = first
            return
        self.foreign = None
        clusters = sorted({", ".join(sorted(f.members)) for f in foundings})
        if clusters != self._reported:  # peers are asked repeatedly: log it once
            self._reported = clusters
            logger.error(
                "the peers belong to different clusters (founded by %s): this node joins none of "
                "them; correct its routes",
                " and by ".join(clusters),
            )

    def adopt(self, founding: Founding) -> None:
        """This node belongs to the cluster, from now on and for the life of its directory."""
        record = msgspec.json.encode(AdoptedFounding(founding, self.incarnation))
        self.files.write(FOUNDING_FILE, _with_checksum(record))
        self.founding, self.foreign = founding, None
        self.on_formed(founding)


def _takes_part(peer: BootstrapPeer, founding: Founding) -> bool:
    """Whether the peer would promise to take part, by what it has reported."""
    if not peer.promises:
        return True
    return peer.knows is not None and {*peer.knows} <= {*founding.names()}


def _with_checksum(record: bytes) -> bytes:
    return record + b"\n%08x" % crc32(record)


def _checked(content: bytes) -> bytes:
    """Raises ValueError."""
    record, _, check = content.partition(b"\n")
    if check and int(check, 16) != crc32(record):
        raise ValueError("the checksum does not match")
    return record


@dataclass(slots=True)
class FoundingCalls:
    """The calls between nodes: asks connected peers for their BootstrapPeer until this node belongs
    to a cluster, and again whenever a peer connects, to detect a node of another cluster."""

    bootstrap: Bootstrap
    members: ClusterMembers
    rpc: Rpc
    peers: Callable[[], list[Peer]]
    join: Callable[[NodeId], Awaitable[str | None]]  # ask a peer to let us in
    on_removed: Callable[[], None]  # a peer says that this node is no longer a member
    spawn: Callable[[Awaitable[None], str], object]
    _reason: str = ""  # the last logged reason why we could not join

    def start(self) -> None:
        self.rpc.register("candidate", self._serve)
        self.rpc.register("found", self._serve_promise)
        self.spawn(self._run(), "founding")
        self.bootstrap.start()

    def peer_changed(self, peer: Peer, connected: bool) -> None:  # noqa: FBT001
        if not connected:
            self.bootstrap.peer_lost(peer.name)
        elif self.members.founded.is_set():
            self.spawn(self._ask(peer.node), "founding check")

    async def _run(self) -> None:
        await self._ask_until_founded()
        while True:  # a node that was removed while it was away learns it from its peers
            await asyncio.sleep(STANDING_EVERY_S)
            for peer in self.peers():
                if peer.connected:
                    await self._ask(peer.node)

    async def _ask_until_founded(self) -> None:
        while self.bootstrap.founding is None:
            for peer in self.peers():
                if peer.connected:
                    await self._ask(peer.node)
            self.bootstrap.consider()
            if self.bootstrap.proposal is not None:
                await self._found(self.bootstrap.proposal)
            elif self.bootstrap.foreign is not None:
                await self._join(self.bootstrap.foreign)
            await asyncio.sleep(ASK_EVERY_S)

    async def _found(self, proposal: FoundingProposal) -> None:
        """Ask every other node of the list for its promise."""
        nodes = set(proposal.founding.names()) - {self.bootstrap.as_peer().id}
        body = msgspec.json.encode(proposal)
        promised = True
        for node in sorted(nodes):
            promised = promised and await self._promised(node, body)
        self.bootstrap.decide(proposal, promised=promised)

    async def _promised(self, node: NodeId, body: bytes) -> bool:
        if not self.bootstrap.knows_promises(node):
            return True
        try:
            return await self.rpc.call(node, "found", body, timeout_s=1.0) == PROMISED
        except CallFailed:
            return False

    async def _serve_promise(self, _peer: NodeId, body: bytes) -> bytes:
        return PROMISED if self.bootstrap.promise(_proposal.decode(body)) else b"no"

    async def _join(self, founding: Founding) -> None:
        """Get added to the table of nodes, then adopt the record. In this order, because a node
        that crashes in between asks again, and adding it twice changes nothing."""
        for peer in self.peers():
            if not peer.connected or not self.bootstrap.is_of(peer.name, founding):
                continue
            try:
                refused = await self.join(peer.node)
            except CallFailed:
                continue
            if refused is None:
                self.bootstrap.adopt(founding)
                return
            if refused != self._reason:
                self._reason = refused
                logger.error("this node cannot join the cluster: %s", refused)
            await asyncio.sleep(JOIN_EVERY_S)

    async def _ask(self, peer: NodeId) -> None:
        try:
            answer = await self.rpc.call(peer, "candidate", b"", timeout_s=1.0)
        except CallFailed:
            return  # retried while it is connected
        candidate = _candidate.decode(answer)
        self.bootstrap.peer_seen(candidate)
        if candidate.you_are_removed and candidate.founding == self.bootstrap.founding:
            self.on_removed()

    async def _serve(self, peer: NodeId, _body: bytes) -> bytes:
        removed = self.members.standing(peer) is Standing.REMOVED
        candidate = msgspec.structs.replace(self.bootstrap.as_peer(), you_are_removed=removed)
        return msgspec.json.encode(candidate)


_candidate = msgspec.json.Decoder(BootstrapPeer)
_proposal = msgspec.json.Decoder(FoundingProposal)


def next_session(files: NodeFiles) -> int:
    """The session number of this run, greater than that of every earlier run of this node, and on
    disk before it is used.

    The clock makes it grow even when the data directory was replaced; the file makes it grow even
    when the clock stepped back."""
    try:
        earlier = int(files.read(SESSION_FILE) or b"0")
    except ValueError:
        logger.warning("%s is damaged: the session number is taken from the clock", SESSION_FILE)
        earlier = 0
    session = max(earlier + 1, time.time_ns() // 1_000_000)
    files.write(SESSION_FILE, str(session).encode())
    return session
