"""The queues of every node, against their bounds.

Owns: which queues are looked at, and the small bounds with which some seeds run.
May not touch: the queues; their bounds are constants of the broker, replaced while a run lasts.
Spec: every queue has a bound and a policy when it is reached. With the bounds of real nodes no
simulated run would reach any, so some seeds run with bounds of a few kilobytes: there publishers
are paused, proposals and requests refused, frames dropped, and every other promise holds."""
# ruff: noqa: SLF001 - the broker shows some of these numbers to nobody

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from broker.cluster.consumer_requests import waiting_for_leader, waiting_pulls
from broker.cluster.peers import rpc
from broker.cluster.publish import outbox_core, outbox_shell
from broker.cluster.stream_node import StreamNode
from chaos.sim.world import links
from chaos.sim.world.node import BrokerNode
from chaos.sim.world.replacement import Replacement
from raft.host import inbound
from raft.host.host import Host

LOOK_EVERY: Final = 16  # steps
READ_BYTES: Final = 4 << 10  # more than one read of a client brings
CLIENTS_MAX: Final = 16  # that publish to one stream through one node
HELD_BYTES: Final = 16 << 10
BATCH_BYTES: Final = 8 << 10

Queue = tuple[str, int, int]  # what, how much is in it, bound


def _small_outbox(original: Any) -> Any:
    def init(self: outbox_core.OutboxCore, session: int) -> None:
        original(self, session, held_bytes_max=HELD_BYTES)

    return init


def _small_host(original: Any) -> Any:
    def init(self: Host, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self._limits = replace(self._limits, waiting_bytes_max=HELD_BYTES)

    return init


SMALL_BOUNDS: Final = (
    Replacement(outbox_core.OutboxCore, "__init__", _small_outbox),
    Replacement(outbox_shell, "BATCH_BYTES_MAX", lambda _: BATCH_BYTES),
    Replacement(Host, "__init__", _small_host),
    Replacement(waiting_for_leader, "HELD_BYTES_MAX", lambda _: 1 << 10),
    Replacement(rpc, "CALLS_MAX", lambda _: 12),
    Replacement(rpc, "SERVED_MAX", lambda _: 12),
    Replacement(links, "QUEUE_BYTES_MAX", lambda _: 64 << 10),
)


def over_bound(nodes: Sequence[BrokerNode]) -> str:
    """The first queue that holds more than it may, or nothing."""
    for node in nodes:
        jetstream = node.runtime.jetstream if node.runtime is not None else None
        if jetstream is not None:
            for what, held, most in _queues(jetstream._node):
                if held > most:
                    return f"{node.name}: {what} holds {held}, its bound is {most}"
    return ""


def _queues(node: StreamNode) -> Iterator[Queue]:
    yield from _publishing(node)
    yield from _delivery(node)
    requests, calls = node.requests, node.mesh.rpc
    for held in (requests._held, requests._held_acks):
        yield "requests that wait for a leader", held._bytes, waiting_for_leader.HELD_BYTES_MAX
    for waiting in requests._pulls._waiting.values():
        yield "pull requests at another node", len(waiting), waiting_pulls.WAITING_MAX
    yield "calls without an answer", len(calls._calls), rpc.CALLS_MAX
    yield "calls being served", calls._served, rpc.SERVED_MAX
    yield "early requests of groups", len(node.host._inbound._early._requests), inbound.EARLY_MAX
    for connection in node.server.connections.values():
        client: Any = connection
        outbound = client.outbound
        yield f"output of client {client.cid}", outbound.queued_bytes, outbound.max_pending


def _publishing(node: StreamNode) -> Iterator[Queue]:
    """Publishers are paused when an outbox is over its bound: each may have sent one read more."""
    batch = outbox_shell.BATCH_BYTES_MAX
    for outbox in node.outboxes._outboxes.values():
        core = outbox.core
        most = core._held_bytes_max + batch + CLIENTS_MAX * READ_BYTES
        yield "batches in flight", len(core.in_flight), outbox_core.IN_FLIGHT_MAX
        yield "an outbox", core.held_bytes, most
        yield "a batch being built", outbox._builder.nbytes, batch + READ_BYTES
    for group in node.host._groups.values():
        most = max(node.host._limits.waiting_bytes_max, batch + READ_BYTES)
        yield f"proposals of group {group.id}", group.waiting_bytes, most


def _delivery(node: StreamNode) -> Iterator[Queue]:
    for replica in node.replicas:
        leading = replica.leading
        for engine in leading.engines.values() if leading is not None else ():
            if engine._pull is not None:
                most = engine.consumer.config.max_waiting
                yield f"pulls of {engine.consumer.name}", len(engine._pull.waiting), most
