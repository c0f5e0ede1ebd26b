"""A network of namespaces on this machine: one per node, all on one bridge.

Owns: the namespaces, the bridge and the routes it made; `remove` takes all of it away by name.
May not touch: any other interface or address of the machine.
A cut is a blackhole route: packets from one node to another are dropped before they leave, in one
direction or in both. Clients are on the bridge and reach every node all the time. A link that
delays or loses packets is a process between the node and the bridge (lossy_link.py).
The addresses are of the range that is reserved for tests of devices (RFC 2544)."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

NETWORK = "198.18"  # 198.18.0.0/15, RFC 2544
BRIDGE_HOST = 254
COMMAND_WITHIN_S = 20


@dataclass(frozen=True, slots=True)
class Quality:
    """Of the link of a node, for what it sends."""

    delay_ms: int = 0
    jitter_ms: int = 0
    loss: float = 0.0


class NetworkFailed(Exception):
    """A namespace, a bridge or a route could not be made; str() says which command failed."""


def missing() -> str | None:
    """Why there can be no namespaces here; None: they work."""
    if os.geteuid() != 0:
        return "needs root (network namespaces)"
    for command in ("ip", "nsenter"):
        if shutil.which(command) is None:
            return f"needs the command {command}"
    name = f"jrtry{secrets.token_hex(2)}"
    try:
        _ip("netns", "add", name)
        _ip("netns", "delete", name)
    except NetworkFailed as error:
        return f"needs network namespaces: {error}"
    return None


@dataclass(slots=True)
class Namespaces:
    """`hosts[i]` is the address of node i, `prefix(i)` runs a command in its namespace."""

    count: int
    tag: str = field(default_factory=lambda: f"jr{secrets.token_hex(2)}")
    subnet: int = field(default_factory=lambda: secrets.randbelow(250) + 1)
    _made: list[tuple[str, ...]] = field(default_factory=list)  # how to undo it, in reverse
    cuts: set[tuple[int, int]] = field(default_factory=set)  # from, to
    shaped: set[int] = field(default_factory=set)
    _lossy: dict[int, subprocess.Popen[str]] = field(default_factory=dict)

    @property
    def hosts(self) -> list[str]:
        return [f"{NETWORK}.{self.subnet}.{number + 1}" for number in range(self.count)]

    def prefix(self, node: int) -> list[str]:
        # Not `ip netns exec`: that copies all mounts, and a disk that is unmounted stays in use.
        return ["nsenter", f"--net=/var/run/netns/{self._space(node)}"]

    def make(self) -> None:
        """Raises NetworkFailed; what was made until then is removed."""
        try:
            self._do(("link", "add", self.tag, "type", "bridge"), ("link", "delete", self.tag))
            _ip("address", "add", f"{NETWORK}.{self.subnet}.{BRIDGE_HOST}/24", "dev", self.tag)
            _ip("link", "set", self.tag, "up")
            for node, host in enumerate(self.hosts):
                self._make_node(node, host)
        except NetworkFailed:
            self.remove()
            raise

    def _make_node(self, node: int, host: str) -> None:
        space, outer, inner = self._space(node), f"{self.tag}o{node}", f"{self.tag}i{node}"
        self._do(("netns", "add", space), ("netns", "delete", space))
        pair = ("link", "add", outer, "type", "veth", "peer", "name", inner)
        self._do(pair, ("link", "delete", outer))
        _ip("link", "set", inner, "netns", space)
        _ip("link", "set", outer, "master", self.tag, "up")
        for command in (
            ("address", "add", f"{host}/24", "dev", inner),
            ("link", "set", inner, "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", space, *command)

    def cut(self, senders: Sequence[int], receivers: Sequence[int]) -> None:
        """Nothing that a sender sends reaches a receiver from now on."""
        for pair in itertools.product(senders, receivers):
            if pair[0] != pair[1] and pair not in self.cuts:
                host = self.hosts[pair[1]]
                _ip("-n", self._space(pair[0]), "route", "add", "blackhole", f"{host}/32")
                self.cuts.add(pair)

    def part(self, one: Sequence[int], other: Sequence[int]) -> None:
        """Cut both directions."""
        self.cut(one, other)
        self.cut(other, one)

    def shape(self, nodes: Sequence[int], discipline: str) -> None:
        """All that these nodes send, to clients too, goes through a queueing discipline of tc."""
        for node in nodes:
            self.shaped.add(node)
            _run_tool(
                "tc", "-n", self._space(node), "qdisc", "replace", "dev", f"{self.tag}i{node}",
                "root", *discipline.split(),
            )  # fmt: skip

    def degrade(self, nodes: Sequence[int], quality: Quality, seed: int) -> None:
        """All that these nodes send, to clients too, takes longer or is lost."""
        for node in nodes:
            outer, inserted, bridged = self._inserted(node)
            _ip("link", "add", inserted, "type", "veth", "peer", "name", bridged)
            process = self._lossy[node] = subprocess.Popen(
                [
                    sys.executable, "-P", "-m", "chaos.campaign.machines.lossy_link", outer,
                    inserted, str(quality.delay_ms), str(quality.jitter_ms), str(quality.loss),
                    str(seed),
                ],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
            _ip("link", "set", inserted, "up")
            _ip("link", "set", bridged, "master", self.tag, "up")
            assert process.stdin is not None
            assert process.stdout is not None
            if not process.stdout.readline():
                raise NetworkFailed(f"no link in user space: it ended with {process.wait()}")
            _ip("link", "set", outer, "nomaster")
            process.stdin.write("forward\n")
            process.stdin.flush()

    def _mend(self, node: int) -> None:
        """The node is on the bridge again, and the process and its interfaces are gone."""
        outer, inserted, _ = self._inserted(node)
        process = self._lossy.pop(node)
        process.kill()
        process.communicate()
        for undo in (("link", "set", outer, "master", self.tag), ("link", "delete", inserted)):
            subprocess.run(
                ["ip", *undo], capture_output=True, timeout=COMMAND_WITHIN_S, check=False
            )

    def _inserted(self, node: int) -> tuple[str, str, str]:
        """The end of the node's cable, and the two ends of another one, the last on the bridge."""
        return f"{self.tag}o{node}", f"{self.tag}x{node}", f"{self.tag}y{node}"

    def heal(self) -> None:
        for node in list(self._lossy):
            self._mend(node)
        for node in sorted(self.shaped):
            device = f"{self.tag}i{node}"
            _run_tool("tc", "-n", self._space(node), "qdisc", "delete", "dev", device, "root")
        self.shaped.clear()
        for sender, receiver in sorted(self.cuts):
            host = self.hosts[receiver]
            _ip("-n", self._space(sender), "route", "delete", "blackhole", f"{host}/32")
        self.cuts.clear()

    def remove(self) -> None:
        """May be called twice."""
        for node in list(self._lossy):
            self._mend(node)
        while self._made:
            undo = ["ip", *self._made.pop()]
            subprocess.run(undo, capture_output=True, timeout=COMMAND_WITHIN_S, check=False)
        self.cuts.clear()
        self.shaped.clear()

    def _space(self, node: int) -> str:
        return f"{self.tag}n{node}"

    def _do(self, command: tuple[str, ...], undo: tuple[str, ...]) -> None:
        _ip(*command)
        self._made.append(undo)


def cannot_degrade() -> str | None:
    """Why packets cannot be delayed and lost here; None: they can be."""
    if (reason := missing()) is not None:
        return reason
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
    except OSError as error:
        return f"needs packet sockets: {error}"
    return None


def cannot_shape(discipline: str) -> str | None:
    """Why packets cannot be slowed down here; None: they can be."""
    if (reason := missing()) is not None:
        return reason
    if shutil.which("tc") is None:
        return "needs the command tc (iproute2)"
    name = f"jrtry{secrets.token_hex(2)}"
    _ip("netns", "add", name)
    try:
        _run_tool("tc", "-n", name, "qdisc", "add", "dev", "lo", "root", *discipline.split())
    except NetworkFailed:
        return f"this kernel has no qdisc {discipline.split(maxsplit=1)[0]}"
    finally:
        _ip("netns", "delete", name)
    return None


def _ip(*arguments: str) -> None:
    _run_tool("ip", *arguments)


def _run_tool(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NetworkFailed(str(error)) from error
    if done.returncode != 0:
        raise NetworkFailed(f"{' '.join(command)}: {done.stderr.strip()}")
