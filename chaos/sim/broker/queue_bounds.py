"""Checks the queues of every node against their bounds.

Owns: which queues are checked, and the small bounds with which some seeds run.
May not touch: the queues; their bounds are constants of the broker, replaced while a run lasts.
Spec: every queue has a bound and a policy when it is reached. With the bounds of real nodes no
simulated run would reach any, so some seeds run with bounds of a few kilobytes: there publishers
are paused, proposals and requests refused, frames dropped, and every other promise holds."""
# ruff: noqa: SLF001 - the broker shows some of these numbers to nobody

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

from broker.cluster.consumer_requests import waiting_for_leader, waiting_pulls
from broker.cluster.peers import rpc
from broker.cluster.publish import outbox_core, outbox_shell
from broker.cluster.stream_node import StreamNode
from chaos.sim.world import links
from chaos.sim.world.node import BrokerNode
from chaos.sim.world.node_loop import NodeLoop
from chaos.sim.world.replacement import Replacement
from raft.host import inbound
from raft.host.host import Host

LOOK_EVERY: Final = 16  # steps
READ_BYTES: Final = 4 << 10  # upper bound of one read from a client
CLIENTS_MAX: Final = 16  # clients that publish to one stream through one node
HELD_BYTES: Final = 16 << 10
BATCH_BYTES: Final = 8 << 10


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


class QueueBounds:
    """The nodes of one run. Only a node itself fills its queues, so a node that had no turn since
    the last check is not checked again."""

    def __init__(self, nodes: Sequence[BrokerNode]) -> None:
        self._nodes = nodes
        self._seen: dict[str, tuple[NodeLoop | None, int]] = {}  # by node: its loop, and turns

    def over_bound(self) -> str:
        """The first queue that exceeds its bound; empty: none does."""
        for node in self._nodes:
            loop = node.loop
            turns = (loop, 0 if loop is None else loop.turns)
            if self._seen.get(node.name) == turns:
                continue
            self._seen[node.name] = turns
            jetstream = node.runtime.jetstream if node.runtime is not None else None
            if jetstream is not None:
                one = jetstream._node
                full = _publishing(one) or _delivery(one) or _requests(one) or _clients(one)
                if full:
                    return f"{node.name}: {full}"
        return ""


def _full(what: str, held: int, most: int) -> str:
    return f"{what} holds {held}, its bound is {most}"


def _requests(node: StreamNode) -> str:
    requests, calls = node.requests, node.mesh.rpc
    most = waiting_for_leader.HELD_BYTES_MAX
    for held in (requests._held, requests._held_acks):
        if held._bytes > most:
            return _full("requests that wait for a leader", held._bytes, most)
    for waiting in requests._pulls._waiting.values():
        if len(waiting) > waiting_pulls.WAITING_MAX:
            most = waiting_pulls.WAITING_MAX
            return _full("pull requests at another node", len(waiting), most)
    if len(calls._calls) > rpc.CALLS_MAX:
        return _full("calls without an answer", len(calls._calls), rpc.CALLS_MAX)
    if calls._served > rpc.SERVED_MAX:
        return _full("calls being served", calls._served, rpc.SERVED_MAX)
    early = len(node.host._inbound._early._requests)
    if early > inbound.EARLY_MAX:
        return _full("early requests of groups", early, inbound.EARLY_MAX)
    return ""


def _clients(node: StreamNode) -> str:
    for connection in node.server.connections.values():
        outbound = cast(Any, connection).outbound
        if outbound.queued_bytes > outbound.max_pending:
            what = f"output of client {cast(Any, connection).cid}"
            return _full(what, outbound.queued_bytes, outbound.max_pending)
    return ""


def _publishing(node: StreamNode) -> str:
    """Publishers are paused when an outbox is over its bound: each may exceed it by one read."""
    batch = outbox_shell.BATCH_BYTES_MAX
    for outbox in node.outboxes._outboxes.values():
        core = outbox.core
        most = core._held_bytes_max + batch + CLIENTS_MAX * READ_BYTES
        if core.held_bytes > most:
            return _full("an outbox", core.held_bytes, most)
        if len(core.in_flight) > outbox_core.IN_FLIGHT_MAX:
            return _full("batches in flight", len(core.in_flight), outbox_core.IN_FLIGHT_MAX)
        if outbox._builder.nbytes > batch + READ_BYTES:
            return _full("a batch being built", outbox._builder.nbytes, batch + READ_BYTES)
    most = max(node.host._limits.waiting_bytes_max, batch + READ_BYTES)
    for group in node.host._groups.values():
        if group.waiting_bytes > most:
            return _full(f"proposals of group {group.id}", group.waiting_bytes, most)
    return ""


def _delivery(node: StreamNode) -> str:
    for replica in node.replicas:
        leading = replica.leading
        for engine in leading.engines.values() if leading is not None else ():
            pull = engine._pull
            if pull is not None and len(pull.waiting) > engine.consumer.config.max_waiting:
                most = engine.consumer.config.max_waiting
                return _full(f"pulls of {engine.consumer.name}", len(pull.waiting), most)
    return ""
