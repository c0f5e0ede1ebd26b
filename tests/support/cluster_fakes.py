"""Small fakes for tests of the cluster: clients, links between nodes, a clock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from broker.accounts import Account
from broker.cluster.peers.channels import CHANNEL_DELIVER, CHANNEL_INTEREST, CHANNEL_ROUTED
from broker.cluster.peers.interest import Interest
from broker.server.routing.router import Router
from broker.server.tracing.tracing import Tracing
from broker.subjects import PublishingConnection, Sink, SinkKind, Subscription
from broker.wire import PubRun
from raft import NodeId

Message = tuple[bytes, bytes, bytes, bytes]  # subject, reply, headers, payload


def run(test: Coroutine[Any, Any, None], *, seconds: float = 20.0) -> None:
    """Run the test on a loop of its own, with a timeout."""

    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await test

    asyncio.run(bounded())


async def turns(count: int = 3) -> None:
    """Run the next turns of the loop. No time passes."""
    for _ in range(count):
        await asyncio.sleep(0)


class ClockedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock the test advances; timers that are due then run."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s if hasattr(self, "ahead_s") else super().time()

    async def advance(self, seconds: float) -> None:
        self.ahead_s += seconds
        await turns()


def run_clocked(test: Callable[[ClockedLoop], Coroutine[Any, Any, None]]) -> None:
    loop: list[ClockedLoop] = []

    def factory() -> ClockedLoop:
        loop.append(ClockedLoop())
        return loop[0]

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.get_loop()
        runner.run(test(loop[0]))


class Client:
    """A connection, as the router, the sinks and the outbox see it. Records its deliveries."""

    kind = SinkKind.CLIENT
    watchful = False
    headers_ok = True
    no_responders = False
    guarded = False
    groups = None
    rules = None

    def __init__(self, account: Account, cid: int = 1, *, echo: bool = True) -> None:
        self.account = account
        self.cid = cid
        self.echo = echo
        self.got: list[tuple[bytes, Message]] = []  # sid, message
        self.encoded: list[tuple[bytes, bytes, int, int]] = []  # sid, bytes, messages, payload
        self.at_once = 0  # of the encoded ones
        self.pauses = 0
        self.gone = False

    def check_publish(self, subject: bytes, start: int, stop: int) -> int:
        return stop

    def skips(self, sink: Sink) -> bool:
        return sink is self and not self.echo

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        if self.gone:
            return False
        self.got.append((sub.sid, (subject, reply, headers, payload)))
        return True

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
    ) -> bool:
        return all(self.deliver(sub, *run.message(row)) for row in range(start, stop))

    def deliver_encoded(
        self, sub: Subscription, data: bytes, *, messages: int, payload_bytes: int
    ) -> bool:
        self.encoded.append((sub.sid, data, messages, payload_bytes))
        return not self.gone

    def deliver_answers(
        self, sub: Subscription, data: bytes, *, messages: int, payload_bytes: int
    ) -> bool:
        self.at_once += 1
        return self.deliver_encoded(sub, data, messages=messages, payload_bytes=payload_bytes)

    def pause_reading(self) -> None:
        self.pauses += 1

    def resume_reading(self) -> None:
        self.pauses -= 1

    def payloads(self, sid: bytes | None = None) -> list[bytes]:
        return [message[3] for at, message in self.got if sid is None or at == sid]


def pub_run(subject: bytes, *payloads: bytes, reply: bytes = b"") -> PubRun:
    return PubRun.of([(subject, reply, b"", payload) for payload in payloads])


@dataclass(slots=True)
class MeshNode:
    """One node: its accounts, router and interest. The test makes and breaks its links."""

    id: NodeId
    net: Net
    router: Router = field(default_factory=Router)
    accounts: dict[str, Account] = field(default_factory=dict)
    changes: list[tuple[str, bytes]] = field(default_factory=list)
    interest: Interest = field(init=False)

    def __post_init__(self) -> None:
        tracing = Tracing(
            self.router, self.account, system_account="$SYS", server=lambda seq: {"seq": seq}
        )
        self.interest = Interest(self.router, self._send, self.account, tracing)
        self.interest.on_change.append(
            lambda account, subject: self.changes.append((account, subject))
        )
        self.interest.start()

    def account(self, name: str = "$G") -> Account:
        return self.accounts.setdefault(name, Account(name))

    def client(self, account: str = "$G") -> Client:
        return Client(self.account(account), cid=len(self.net.log) + 1)

    def subscribe(
        self, client: Client, subject: bytes, sid: bytes = b"1", *, queue: bytes = b""
    ) -> Subscription:
        sub = Subscription(client, client.account, subject, queue, sid)
        self.router.subscribe(client.account, sub)
        return sub

    def unsubscribe(self, sub: Subscription) -> None:
        self.router.unsubscribe(self.account(sub.account.name), sub)

    def _send(self, to: NodeId, channel: int, frame: bytes) -> bool:
        return self.net.send(self.id, to, channel, frame)


class Net:
    """Ordered links between nodes. Each direction may break alone."""

    def __init__(self, count: int) -> None:
        self.log: list[tuple[NodeId, NodeId, int]] = []
        self.full: set[tuple[NodeId, NodeId]] = set()  # links with a full queue
        self._links: dict[tuple[NodeId, NodeId], deque[tuple[int, bytes]]] = {}
        self.nodes = [MeshNode(NodeId(i + 1), self) for i in range(count)]

    def connect(self) -> None:
        for one in self.nodes:
            for other in self.nodes:
                if one is not other:
                    self.link_up(one, other)

    def link_up(self, one: MeshNode, other: MeshNode) -> None:
        self._links[one.id, other.id] = deque()
        one.interest.peer_joined(other.id)

    def link_down(self, one: MeshNode, other: MeshNode) -> None:
        del self._links[one.id, other.id]
        one.interest.peer_left(other.id)

    def send(self, source: NodeId, to: NodeId, channel: int, frame: bytes) -> bool:
        link = self._links.get((source, to))
        if link is None or (source, to) in self.full:
            return False
        link.append((channel, frame))
        self.log.append((source, to, channel))
        return True

    async def settle(self) -> None:
        """Run until nothing is scheduled and no frame is on a link."""
        while True:
            await turns()
            busy = [(ends, link) for ends, link in self._links.items() if link]
            if not busy:
                return
            for (source, to), link in busy:
                node = next(n for n in self.nodes if n.id == to)
                while link:
                    self._arrive(node, source, *link.popleft())

    def _arrive(self, node: MeshNode, source: NodeId, channel: int, frame: bytes) -> None:
        receive = {
            CHANNEL_INTEREST: node.interest.received_interest,
            CHANNEL_ROUTED: node.interest.received_routed,
            CHANNEL_DELIVER: node.interest.received_deliver,
        }[channel]
        receive(source, frame)

    def crossed(self, channel: int = CHANNEL_ROUTED) -> int:
        return sum(1 for _, _, on in self.log if on == channel)


async def two() -> tuple[Net, MeshNode, MeshNode]:
    """Two connected nodes; the log of their links is empty."""
    net = Net(2)
    net.connect()
    await net.settle()
    net.log.clear()
    return net, net.nodes[0], net.nodes[1]
