"""Simulated links between nodes: ordered, delayed, cut, and lost with their node.

Owns: which node is linked to which, the frames in flight, partitions and other active faults.
May not touch: what frames mean.
Spec: raft/transport/transport.py, which `SimTransport` replaces: every node has two links to every
other (control and bulk); a link keeps the order of its frames and may end at any time, and frames
in flight are then lost. While one direction is cut, frames wait, as TCP retransmits; a link that
gets no answer for `LINK_TIMEOUT_NS` is closed. Frames of Raft's own channels may also be lost,
repeated and reordered one by one: TCP never does that, but Raft tolerates it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from chaos.sim.world.node_loop import NodeLoop
from chaos.sim.world.virtual_time import MS, NS, US, WorldTime
from raft.transport.transport import RAFT_BULK, RAFT_CONTROL, Peer
from raft.types import NodeId

LINK_TIMEOUT_NS: Final = 6 * NS
RETRY_FIRST_NS: Final = 50 * MS
RETRY_LAST_NS: Final = 1 * NS
QUEUE_BYTES_MAX: Final = 64 << 20
_LINKS_OF_A_PAIR: Final = 2


@dataclass(slots=True)
class LinkPair:
    """The two outgoing links of one node to another."""

    number: int
    source: SimTransport
    target: SimTransport
    open: bool = True
    pending_bytes: int = 0
    last_ns: list[int] = field(default_factory=lambda: [0] * _LINKS_OF_A_PAIR)
    waiting: list[tuple[int, int, bytes]] = field(default_factory=list)  # while cut off
    silent_since_ns: int | None = None  # since when no answer could have arrived


@dataclass(frozen=True, slots=True)
class NetworkFault:
    """A fault of the network, until it is ended. Pairs are names of nodes, in one direction."""

    cut: frozenset[tuple[str, str]] = frozenset()
    slow: frozenset[tuple[str, str]] = frozenset()
    delay_ns: int = 0  # additional delay of slow pairs
    loses: float = 0.0  # probabilities, for every frame of Raft's own channels
    repeats: float = 0.0
    reorders: float = 0.0


class Fabric:
    """The network of one cluster."""

    def __init__(self, world: WorldTime, rng: Random) -> None:
        self.latency_ns = 200 * US
        self.jitter_ns = 300 * US
        self.active: dict[object, NetworkFault] = {}
        self.transports: dict[NodeId, SimTransport] = {}
        self.on_exception: Callable[[str, BaseException], None] = _reraise
        self._world = world
        self._rng = rng
        self._cut: set[tuple[str, str]] = set()  # names of nodes, in one direction
        self._slow: dict[tuple[str, str], int] = {}
        self._rough: list[NetworkFault] = []
        self._numbers = 0

    # -- faults

    def begin(self, fault: object, network: NetworkFault) -> None:
        """Active until `end`, together with other faults. `fault` identifies it."""
        self.active[fault] = network
        self._changed()

    def end(self, fault: object) -> None:
        if self.active.pop(fault, None) is not None:
            self._changed()

    def end_all(self) -> None:
        self.active.clear()
        self._changed()

    def reset_links(self, name: str) -> None:
        """The links from and to this node end; all can be reopened immediately."""
        for transport in list(self.transports.values()):
            for pair in list(transport.pairs.values()):
                if name in (pair.source.name, pair.target.name):
                    self.close(pair)

    def _changed(self) -> None:
        everything = self.active.values()
        self._cut = {pair for one in everything for pair in one.cut}
        self._slow = {}
        for one in everything:
            for pair in one.slow:
                self._slow[pair] = max(one.delay_ns, self._slow.get(pair, 0))
        self._rough = [one for one in everything if one.loses or one.repeats or one.reorders]
        self.changed()

    def is_cut(self, source: SimTransport, target: SimTransport) -> bool:
        return (source.name, target.name) in self._cut

    def changed(self) -> None:
        """A partition or a pause began or ended: deliver waiting frames, or start the timeout."""
        for transport in self.transports.values():
            for pair in list(transport.pairs.values()):
                self._look_at(pair)

    def _answers(self, pair: LinkPair) -> bool:
        return not (
            self.is_cut(pair.source, pair.target)
            or self.is_cut(pair.target, pair.source)
            or pair.target.loop.paused
            or not pair.target.loop.alive
        )

    def _look_at(self, pair: LinkPair) -> None:
        if self._answers(pair):
            pair.silent_since_ns = None
        elif pair.silent_since_ns is None:
            pair.silent_since_ns = self._world.now_ns
            self._world.after(LINK_TIMEOUT_NS, self._time_out, pair, self._world.now_ns)
        if pair.waiting and not self.is_cut(pair.source, pair.target):
            waiting, pair.waiting = pair.waiting, []
            for link, channel, payload in waiting:
                self._dispatch(pair, link, channel, payload)

    def _time_out(self, pair: LinkPair, since_ns: int) -> None:
        if pair.open and pair.silent_since_ns == since_ns:
            self.close(pair)

    # -- links

    def join(self, transport: SimTransport) -> None:
        self.transports[transport.node] = transport
        for other in list(self.transports.values()):
            if other is not transport:
                self._dial(transport, other.node, RETRY_FIRST_NS)
                self._dial(other, transport.node, RETRY_FIRST_NS)

    def leave(self, transport: SimTransport, *, silently: bool) -> None:
        """The node is gone. `silently`: so is its machine, so that peers are not told that links
        ended."""
        if self.transports.get(transport.node) is transport:
            del self.transports[transport.node]
        for pair in list(transport.pairs.values()):
            pair.open = False
        transport.pairs.clear()
        for other in list(self.transports.values()):
            pair = other.pairs.get(transport.node)  # type: ignore[assignment]
            if pair is None or pair.target is not transport:
                continue
            if silently:
                self._look_at(pair)
            else:
                self._world.after(self.delay_ns(), self.close, pair)

    def _dial(self, source: SimTransport, target: NodeId, retry_ns: int) -> None:
        """Try until it works or the dialing node is gone."""
        if target in source.dialing:
            return
        source.dialing.add(target)
        delay = self.delay_ns() * 3
        self._world.after(delay, self._connect, source, target, retry_ns)

    def _connect(self, source: SimTransport, target: NodeId, retry_ns: int) -> None:
        if not source.loop.alive or target in source.pairs or not source.running:
            source.dialing.discard(target)
            return
        other = self.transports.get(target)
        reachable = (
            other is not None
            and other.running
            and other.loop.alive
            and not other.loop.paused
            and not source.loop.paused
            and not self.is_cut(source, other)
            and not self.is_cut(other, source)
        )
        if not reachable:
            pause = retry_ns + self._rng.randrange(RETRY_FIRST_NS)
            retry_ns = min(2 * retry_ns, RETRY_LAST_NS)
            self._world.after(pause, self._connect, source, target, retry_ns)
            return
        assert other is not None
        source.dialing.discard(target)
        self._numbers += 1
        source.pairs[target] = LinkPair(self._numbers, source, other)
        source.loop.call_soon(source.link_up, target)

    def close(self, pair: LinkPair) -> None:
        """The links of this pair end; frames in flight are lost."""
        if not pair.open:
            return
        pair.open = False
        source = pair.source
        if source.pairs.get(pair.target.node) is pair:
            del source.pairs[pair.target.node]
            if source.loop.alive:
                source.loop.call_soon(source.link_down, pair.target.node)
                self._dial(source, pair.target.node, RETRY_FIRST_NS)

    def delay_ns(self) -> int:
        return self.latency_ns + _below(self._rng.getrandbits, self.jitter_ns + 1)

    def tell_later(self, transport: SimTransport, node: NodeId, hello: dict[str, Any]) -> None:
        self._world.after(self.delay_ns(), transport.hello_changed, node, hello)

    # -- frames

    def send(self, pair: LinkPair, link: int, channel: int, payload: bytes) -> None:
        pair.pending_bytes += len(payload)
        if pair.waiting or self.is_cut(pair.source, pair.target):
            pair.waiting.append((link, channel, payload))
        else:
            self._dispatch(pair, link, channel, payload)

    def _dispatch(self, pair: LinkPair, link: int, channel: int, payload: bytes) -> None:
        if self._rough and channel in (RAFT_CONTROL, RAFT_BULK):
            self._dispatch_roughly(pair, link, channel, payload)
            return
        arrives = max(self._world.now_ns + self._delay_of(pair), pair.last_ns[link] + 1)
        pair.last_ns[link] = arrives
        self._world.at(arrives, self._arrive, pair, link, channel, payload)

    def _delay_of(self, pair: LinkPair) -> int:
        delay = self.delay_ns()
        slow = self._slow and self._slow.get((pair.source.name, pair.target.name), 0)
        return delay + self._rng.randint(slow // 2, slow) if slow else delay

    def _dispatch_roughly(self, pair: LinkPair, link: int, channel: int, payload: bytes) -> None:
        rng, rough = self._rng, self._rough[0]
        copies = 1
        if rng.random() < rough.loses:
            copies = 0
            pair.pending_bytes -= len(payload)
        elif rng.random() < rough.repeats:
            copies = 2
            pair.pending_bytes += len(payload)
        for _ in range(copies):
            arrives = self._world.now_ns + self._delay_of(pair)
            if rng.random() < rough.reorders:
                arrives += rng.randrange(20 * MS)
            else:
                arrives = max(arrives, pair.last_ns[link] + 1)
                pair.last_ns[link] = arrives
            self._world.at(arrives, self._arrive, pair, link, channel, payload)

    def _arrive(self, pair: LinkPair, link: int, channel: int, payload: bytes) -> None:
        if not pair.open:
            return
        pair.pending_bytes -= len(payload)
        target = pair.target
        if not target.loop.alive:
            return
        target.loop.call_soon(target.received, pair, channel, payload)


def _joined(payload: bytes | Sequence[bytes]) -> bytes:
    return bytes(payload) if isinstance(payload, bytes | memoryview) else b"".join(payload)


def _below(getrandbits: Callable[[int], int], bound: int) -> int:
    """Like Random.randrange, at a third of its cost: it is called for every frame."""
    bits = bound.bit_length()
    drawn = getrandbits(bits)
    while drawn >= bound:
        drawn = getrandbits(bits)
    return drawn


def _reraise(_where: str, error: BaseException) -> None:
    raise error


class SimTransport:
    """Stands in for raft.transport.Transport on one run of one node."""

    def __init__(
        self,
        fabric: Fabric,
        loop: NodeLoop,
        *,
        node: NodeId,
        name: str,
        routes: Sequence[tuple[str, int]],
        hello: Callable[[], dict[str, Any]] = dict,
        on_peer: Callable[[Peer, bool], None] | None = None,
        **_settings: Any,
    ) -> None:
        self.node = node
        self.name = name
        self.loop = loop
        self.port = 6222
        self.running = False
        self.hello = hello
        self.pairs: dict[NodeId, LinkPair] = {}
        self.dialing: set[NodeId] = set()
        self._fabric = fabric
        self._routes = [host for host, _ in routes]
        self._on_peer = on_peer
        self._peers: dict[NodeId, Peer] = {}
        self._channels: dict[int, tuple[Callable[[NodeId, Any], None], bool]] = {}
        self._heard: dict[NodeId, float] = {}

    async def start(self) -> None:
        self.running = True
        self._fabric.join(self)

    async def stop(self) -> None:
        self.running = False
        self._fabric.leave(self, silently=False)

    def register(
        self, channel: int, on_frame: Callable[[NodeId, Any], None], *, borrowed: bool = False
    ) -> None:
        self._channels[channel] = (on_frame, borrowed)

    def send(
        self, to: NodeId, channel: int, payload: bytes | Sequence[bytes], *, control: bool = False
    ) -> bool:
        pair = self.pairs.get(to)
        peer = self._peers.get(to)
        if pair is None or peer is None or not peer.connected:
            return False
        if pair.pending_bytes > QUEUE_BYTES_MAX:
            return False
        whole = payload if type(payload) is bytes else _joined(payload)
        self._fabric.send(pair, 0 if control else 1, channel, whole)
        return True

    def seed_nodes(self) -> set[NodeId] | None:
        found = {peer.name: node for node, peer in self._peers.items()}
        if not found.keys() >= set(self._routes):
            return None
        return {found[name] for name in self._routes}

    def unreachable(self) -> list[str]:
        return []

    def peers(self) -> dict[NodeId, Peer]:
        return dict(self._peers)

    def connected_peers(self) -> set[NodeId]:
        return {node for node in self._peers if self.connected(node)}

    def connected(self, node: NodeId) -> bool:
        return node in self.pairs and self._peers[node].connected

    def heard_at(self, node: NodeId) -> float:
        return self._heard.get(node, 0.0)

    def link_pair_number(self, node: NodeId) -> int:
        return self.pairs[node].number if self.connected(node) else 0

    def pending_bytes(self, node: NodeId) -> int:
        pair = self.pairs.get(node)
        return 0 if pair is None else pair.pending_bytes

    def update_hello(self) -> None:
        for node, other in self._fabric.transports.items():
            if node != self.node and node in self.pairs:
                self._fabric.tell_later(other, self.node, dict(self.hello()))

    def forget(self, node: NodeId) -> None:
        pair = self.pairs.get(node)
        if pair is not None:
            self._fabric.close(pair)
        self._peers.pop(node, None)

    # -- called by the fabric, on the loop of this node

    def link_up(self, node: NodeId) -> None:
        pair = self.pairs.get(node)
        if pair is None:
            return
        other = pair.target
        peer = self._peers.get(node)
        if peer is None:
            peer = self._peers[node] = Peer(node, other.name, other.name, other.port, {})
        peer.hello = dict(other.hello())
        peer.connected = True
        self._heard[node] = self.loop.time()
        if self._on_peer is not None:
            self._on_peer(peer, True)  # noqa: FBT003

    def link_down(self, node: NodeId) -> None:
        peer = self._peers.get(node)
        if peer is not None and peer.connected:
            peer.connected = False
            if self._on_peer is not None:
                self._on_peer(peer, False)  # noqa: FBT003

    def hello_changed(self, node: NodeId, hello: dict[str, Any]) -> None:
        self.loop.call_soon(self._hello_changed, node, hello)

    def _hello_changed(self, node: NodeId, hello: dict[str, Any]) -> None:
        peer = self._peers.get(node)
        if peer is not None and peer.connected:
            peer.hello = hello
            if self._on_peer is not None:
                self._on_peer(peer, True)  # noqa: FBT003

    def received(self, pair: LinkPair, channel: int, payload: bytes) -> None:
        handler = self._channels.get(channel)
        sender = pair.source.node
        if handler is None or not pair.open or not self.running:
            return
        self._heard[sender] = self.loop.time()
        on_frame, borrowed = handler
        try:
            on_frame(sender, memoryview(payload) if borrowed else payload)
        except Exception as error:  # noqa: BLE001 - the code under test has failed
            self._fabric.on_exception(f"{self.name}: frame on channel {channel}", error)
