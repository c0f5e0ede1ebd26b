"""An existing cluster: faults by deleting pods, or by a command of the user.

Owns: how its nodes are found and hit, and the wait until all replicas are current again.
May not touch: anything but the given pods. It creates its own streams, refuses to run if their
names are taken, and deletes them at the end."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from broker.local import NodeFailed
from chaos.campaign.plan import PlannedFault
from chaos.campaign.target import NO_ANSWER, leader_of, roles, told
from chaos.workload import connect

KUBE_KINDS = ("kill-leader", "kill", "kill-minority", "kill-all", "restart", "rolling-restart")
COMMAND_KINDS = ("kill-leader", "kill", "restart", "rolling-restart")
HEAL_WITHIN_S = 300.0
CONNECT_WITHIN_S = 10.0
COMMAND_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class ForeignSettings:
    urls: tuple[str, ...]
    kube: str | None = None  # a namespace
    command: str | None = None  # {node} is the name of the node


def foreign_usable(kinds: Sequence[str], settings: ForeignSettings) -> tuple[list[str], list[str]]:
    """The kinds of faults that are possible there, and the others, each with the reason."""
    known = KUBE_KINDS if settings.kube is not None else COMMAND_KINDS
    how = "deleting pods" if settings.kube is not None else "a command"
    found = [name for name in kinds if name in known]
    return found, [f"{name}: not by {how}" for name in kinds if name not in known]


@dataclass(slots=True)
class ForeignTarget:
    settings: ForeignSettings
    streams: Sequence[str]  # a fault of the kind `leader` hits the leader of one of these
    _names: list[str] = field(default_factory=list)
    _ours: bool = False
    _client: Any = None

    async def open(self) -> None:
        """Raises NodeFailed: it cannot be reached, or we may not do what is needed."""
        for url in self.settings.urls:
            try:
                async with asyncio.timeout(CONNECT_WITHIN_S):
                    client = await connect([url])
            except NO_ANSWER as error:
                raise NodeFailed(f"{url} does not answer: {error or 'no connection'}") from error
            # JetRaft has its Python version in the field in which nats-server has its Go version.
            self._ours = client._server_info.get("go", "").startswith("python")  # noqa: SLF001
            await client.close()
        self._client = await connect(self.settings.urls)
        if self.settings.kube is not None:
            await asyncio.to_thread(_may_delete_pods, self.settings.kube)

    async def free_of(self, streams: Sequence[str]) -> None:
        """Raises NodeFailed if one of these streams exists."""
        js = self._client.jetstream(timeout=30)
        try:
            there = {info.config.name for info in await js.streams_info()}
        except NO_ANSWER as error:
            raise NodeFailed(f"the cluster does not list its streams: {told(error)}") from error
        taken = sorted(there & set(streams))
        if taken:
            raise NodeFailed(
                f"there are streams with the names of the test: {', '.join(taken)}; remove them if "
                "they are left from a run before"
            )

    async def begin(self) -> None:
        """The nodes are those that hold the stream of the publishers."""
        seen = await self._level()
        self._names = sorted(seen)

    async def close(self, streams: Sequence[str]) -> None:
        """Delete these streams."""
        if self._client is None:
            return
        for stream in streams:
            try:
                await self._client.jetstream(timeout=30).delete_stream(stream)
            except NO_ANSWER:
                continue  # it may never have been created
        await self._client.close()

    @property
    def urls(self) -> Sequence[str]:
        return self.settings.urls

    @property
    def standby_urls(self) -> Sequence[str]:
        return ()

    @property
    def names(self) -> Sequence[str]:
        return self._names

    @property
    def own_reads(self) -> bool:
        return self._ours

    def facts(self) -> list[tuple[str, str]]:
        return []

    async def states(self) -> dict[str, str]:
        seen = await roles(self._client, self.streams[0])
        return {name: seen.get(name, "unhealthy") for name in self._names}

    async def inject(self, fault: PlannedFault) -> list[str]:
        if fault.kind.leader:
            stream = self.streams[fault.salt % len(self.streams)]
            names = [await leader_of(self.urls, stream)]
        elif fault.kind.name == "rolling-restart":
            names = list(self._names)
        else:
            names = [self._names[position] for position in fault.victims]
        if fault.kind.name == "rolling-restart":
            for name in names:
                await asyncio.to_thread(self._hit, [name], gently=True)
                await self._level()
        else:
            gently = fault.kind.name == "restart"
            await asyncio.to_thread(self._hit, names, gently=gently)
        await self._level()
        return names

    def _hit(self, names: Sequence[str], *, gently: bool) -> None:
        if self.settings.kube is None:
            for name in names:
                assert self.settings.command is not None
                _run(shlex.split(self.settings.command.replace("{node}", name)))
            return
        how = [] if gently else ["--grace-period=0", "--force"]
        _run(["kubectl", "-n", self.settings.kube, "delete", "pod", *names, "--wait=false", *how])

    async def _level(self) -> dict[str, str]:
        """Wait until every replica is connected and current. Returns the states of the nodes."""
        deadline = time.monotonic() + HEAL_WITHIN_S
        while time.monotonic() < deadline:
            await asyncio.sleep(0.5)  # first of all, let the cluster notice the fault
            seen = await roles(self._client, self.streams[0])
            level = sorted(seen.values())
            if set(self._names) <= set(seen) and level[-1:] == ["leader"] and not (
                {"down", "unhealthy"} & set(level)
            ):  # fmt: skip
                return seen
        raise NodeFailed(f"not all replicas are current within {HEAL_WITHIN_S:.0f} s: {seen}")


def _may_delete_pods(namespace: str) -> None:
    if shutil.which("kubectl") is None:
        raise NodeFailed("--kube needs kubectl")
    asked = subprocess.run(
        ["kubectl", "-n", namespace, "auth", "can-i", "delete", "pods"],
        capture_output=True, text=True, timeout=COMMAND_WITHIN_S, check=False,
    )  # fmt: skip
    if asked.stdout.strip() != "yes":
        why = (asked.stderr or asked.stdout).strip().splitlines()
        raise NodeFailed(
            f"pods in the namespace {namespace} cannot be deleted (kubectl auth can-i delete "
            f"pods): {why[-1] if why else 'no answer'}"
        )


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeFailed(f"{shlex.join(command)}: {error}") from error
    if done.returncode != 0:
        raise NodeFailed(f"{shlex.join(command)}: {(done.stderr or done.stdout).strip()}")
