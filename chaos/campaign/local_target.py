"""A cluster that the campaign starts itself, of JetRaft servers or of nats-servers.

Owns: its machines and their faults.
May not touch: anything else on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import urllib.error
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.local import LocalNode
from chaos import disks
from chaos.campaign.faults.injector import FaultInjector
from chaos.campaign.faults.versions import held_back
from chaos.campaign.machines import network
from chaos.campaign.machines.machine import Machines
from chaos.campaign.machines.network import Namespaces
from chaos.campaign.machines.standby import Standby
from chaos.campaign.plan import KINDS, Kind, Needs, PlannedFault
from chaos.campaign.target import leader_of, roles
from chaos.campaign.work.copies import HOME
from chaos.workload import connect

LOOK_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class LocalSettings:
    nodes: int = 3
    standby: int = 0  # nodes of a second cluster, which has a mirror
    bugs: tuple[str, ...] = ()  # planted (altered_node.py)
    previous: Path | None = None  # the packages of the previous version, for upgrades
    peer: tuple[str, ...] | None = None  # the command of another server
    environment: dict[str, str] = field(default_factory=dict)  # of the nodes


def usable(kinds: Sequence[str], settings: LocalSettings) -> tuple[list[str], list[str]]:
    """The kinds of faults that are possible here, and the others, each with the reason."""
    no_network, no_disks = network.missing(), disks.missing()
    found, not_tried = [], []
    for name in kinds:
        kind = KINDS[name]
        reason = None
        if settings.peer is not None and not kind.peer:
            reason = "only for our own server"
        elif kind.standby and not settings.standby:
            reason = "needs a second cluster (--standby)"
        elif kind.needs is Needs.NETWORK:
            reason = no_network or _unusable_link(kind)
        elif kind.needs is Needs.DISK:
            reason = no_disks
        elif kind.needs is Needs.PREVIOUS and settings.previous is None:
            reason = "needs the version before (--previous)"
        if reason is None:
            found.append(name)
        else:
            not_tried.append(f"{name}: {reason}")
    return found, not_tried


def _unusable_link(kind: Kind) -> str | None:
    if kind.quality is not None:
        return network.cannot_degrade()
    return network.cannot_shape(kind.shape) if kind.shape else None


class LocalTarget:
    """Created by `make`, which does not start it."""

    def __init__(
        self, settings: LocalSettings, machines: Machines, streams: Sequence[str],
        say: Callable[[str], None], standby: Standby | None = None,
    ) -> None:  # fmt: skip
        """`streams`: a fault of the kind `leader` hits the leader of one of these."""
        self._settings = settings
        self._machines = machines
        self._streams = streams
        self._names = [machine.node.name for machine in machines.all[:-1]]
        self._standby = standby
        self._faults = FaultInjector(machines, self._leader, say, settings.previous, standby)
        self._client: Any = None  # for nats-server, whose monitoring port does not show the leader

    @classmethod
    def make(
        cls, settings: LocalSettings, place: Path, kinds: Sequence[str], *,
        cleanup: contextlib.ExitStack, streams: Sequence[str], say: Callable[[str], None],
    ) -> LocalTarget:  # fmt: skip
        spaces = None
        if network.missing() is None:
            spaces = Namespaces(settings.nodes + 1 + settings.standby)
            cleanup.callback(spaces.remove)
            spaces.make()
        machines = Machines(
            place, settings.nodes, bugs=settings.bugs, peer=settings.peer, spaces=spaces,
            disks=any(KINDS[kind].needs is Needs.DISK for kind in kinds),
            jetstream=held_back(settings.previous),
        )  # fmt: skip
        machines.make(cleanup)
        for machine in machines.all:
            machine.node.environment.update(settings.environment)
        standby = None
        if settings.standby:
            standby = Standby.make(
                place, settings.standby, home=HOME, urls=machines.cluster.urls, spaces=spaces,
                first=settings.nodes + 1, cleanup=cleanup,
            )  # fmt: skip
        where = "in namespaces" if spaces is not None else "on this host"
        with_disks = ", each with a disk" if machines.disks else ""
        second = f", and {settings.standby} of a second cluster" if settings.standby else ""
        say(f"starting {settings.nodes} nodes {where}{with_disks}{second}")
        return cls(settings, machines, streams, say, standby)

    async def start(self) -> None:
        """Raises NodeFailed. If there is a previous version, it founds the cluster."""
        members = self._faults.members
        if self._settings.previous is not None:
            members.begin_with_previous()
        await asyncio.to_thread(self._machines.cluster.start)
        if self._settings.previous is not None:
            await members.upgrade_all()
        if self._standby is not None:
            await asyncio.to_thread(self._standby.cluster.start)

    @property
    def urls(self) -> Sequence[str]:
        return [machine.node.url for machine in self._machines.all[:-1]]

    @property
    def standby_urls(self) -> Sequence[str]:
        return () if self._standby is None else self._standby.cluster.urls

    @property
    def names(self) -> Sequence[str]:
        return self._names

    @property
    def own_reads(self) -> bool:
        return self._settings.peer is None

    async def begin(self) -> None:
        """All nodes are known."""

    async def inject(self, fault: PlannedFault) -> list[str]:
        return await self._faults.inject(fault)

    async def _leader(self, salt: int) -> str:
        return await leader_of(self.urls, self._streams[salt % len(self._streams)])

    async def states(self) -> dict[str, str]:
        nodes = [machine.node for machine in self._machines.all[:-1]]
        if self._settings.peer is None:
            asked = (asyncio.to_thread(_state, one, self._streams[0]) for one in nodes)
            found = await asyncio.gather(*asked)
            return {node.name: state for node, state in zip(nodes, found, strict=True)}
        if self._client is None:
            self._client = await connect(self.urls)
        seen = await roles(self._client, self._streams[0])
        running = {node.name: node.process is not None for node in nodes}
        return {name: seen.get(name, "unhealthy") if up else "down" for name, up in running.items()}

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    def facts(self) -> list[tuple[str, str]]:
        count = 0
        nodes = [machine.node for machine in self._machines.all]
        nodes += self._standby.cluster.nodes if self._standby is not None else ()
        for node in nodes:
            if node.log_path.exists():
                count += node.log_path.read_bytes().count(b"Traceback (most recent")
        return [("tracebacks in logs", str(count))] if count else []


def _state(node: LocalNode, stream: str) -> str:
    if node.process is None:
        return "down"
    try:
        accounts: Any = node.http("/jsz?streams=1", timeout_s=LOOK_WITHIN_S)["account_details"]
        streams = [one for account in accounts for one in account["stream_detail"]]
        if any(one["name"] == stream and one.get("leads") for one in streams):
            return "leader"
        return "follower" if node.http("/healthz", timeout_s=LOOK_WITHIN_S) else "unhealthy"
    except urllib.error.HTTPError:
        return "unhealthy"
    except (OSError, ValueError, KeyError, http.client.HTTPException):
        return "no answer"
