"""The target of a campaign: a cluster that it starts, or an existing one.

Owns: the interface of a target, and queries that any cluster answers to its clients.
May not touch: how faults are injected (local_target.py, foreign_target.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

import nats.errors
import nats.js.errors

from chaos.campaign.plan import PlannedFault
from chaos.workload import connect

LEADER_WITHIN_S = 60.0
ASK_WITHIN_S = 5.0
NO_ANSWER = (nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError)


class Target(Protocol):
    """`urls` are for clients. `own_reads`: each of them serves scans of its own replica."""

    @property
    def urls(self) -> Sequence[str]: ...
    @property
    def standby_urls(self) -> Sequence[str]:
        """Of a second cluster that mirrors this one; empty: there is none."""

    @property
    def names(self) -> Sequence[str]:
        """Of the nodes, as far as they are known."""

    @property
    def own_reads(self) -> bool: ...
    async def begin(self) -> None:
        """The stream of the publishers has been created."""

    async def inject(self, fault: PlannedFault) -> list[str]:
        """Inject the fault and undo it. Returns the names of the nodes it hit. Raises NodeFailed or
        TimeoutError if the cluster does not recover."""

    async def states(self) -> dict[str, str]:
        """The state of every node: leader (of the stream of the publishers), follower, unhealthy,
        no answer or down."""

    def facts(self) -> list[tuple[str, str]]:
        """For the report, at the end."""


async def stream_info(url: str, stream: str) -> Any:
    """Raises one of NO_ANSWER."""
    async with asyncio.timeout(ASK_WITHIN_S):
        client = await connect([url])
        try:
            return await client.jetstream(timeout=ASK_WITHIN_S).stream_info(stream)
        finally:
            await client.close()


def told(error: Exception) -> str:
    """An error of the client library in words."""
    if description := getattr(error, "description", None):
        return str(description)
    if isinstance(error, nats.js.errors.ServiceUnavailableError):
        return "JetStream is not enabled there, or has no leader"
    return str(error) or type(error).__name__


async def leader_of(urls: Sequence[str], stream: str) -> str:
    """From any node that answers. Raises TimeoutError."""
    deadline = time.monotonic() + LEADER_WITHIN_S
    while time.monotonic() < deadline:
        for url in urls:
            try:
                info = await stream_info(url, stream)
            except NO_ANSWER:
                continue
            if info.cluster and info.cluster.leader:
                return str(info.cluster.leader)
        await asyncio.sleep(0.1)
    raise TimeoutError(f"no leader of {stream} within {LEADER_WITHIN_S:.0f} s")


async def roles(client: Any, stream: str) -> dict[str, str]:
    """The states of the replicas of a stream, as its leader sees them; {} without an answer."""
    try:
        info = await client.jetstream(timeout=1).stream_info(stream)
    except NO_ANSWER:
        return {}
    if info.cluster is None:
        return {}
    found = {str(info.cluster.leader): "leader"} if info.cluster.leader else {}
    for peer in info.cluster.replicas or ():
        found[peer.name] = "down" if peer.offline else "follower" if peer.current else "unhealthy"
    return found
