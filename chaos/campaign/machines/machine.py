"""The machines of a campaign: nodes, each with its network, its disk and its conditions.

Owns: setting up the cluster, and removing all of it afterwards.
May not touch: anything else on this machine.
A node has its own network namespace, if namespaces are available, and its own file system (a loop
device) if a fault of the run needs one. A spare machine is prepared for changes of members."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broker.local import LocalCluster, LocalNode, free_ports
from chaos.campaign.machines.conditions import NORMAL, Conditions
from chaos.campaign.machines.network import Namespaces
from chaos.disks import LoopDisk

CLUSTER = "chaos"
SYSTEM_USER, SYSTEM_PASSWORD = "sys", "chaos"
SYSTEM = (
    f"accounts {{ $SYS {{ users: [{{ user: {SYSTEM_USER}, password: {SYSTEM_PASSWORD} }}] }} }}"
)
CLIENT_PORT, HTTP_PORT, ROUTE_PORT = 4222, 8222, 6222  # every namespace has its own


@dataclass(slots=True)
class Machine:
    """One node and what it runs on."""

    node: LocalNode
    place: Path  # of its data, its configuration and its log
    disk: LoopDisk | None = None
    conditions: Conditions = NORMAL

    @property
    def data(self) -> Path:
        return (self.disk.mountpoint if self.disk is not None else self.place) / "data"

    @property
    def conditions_path(self) -> Path:
        return self.place / "conditions.json"

    def set_conditions(self, conditions: Conditions) -> None:
        self.conditions = conditions
        conditions.save(self.conditions_path)

    def wipe(self) -> None:
        """Its node is down."""
        shutil.rmtree(self.data, ignore_errors=True)

    def after_power_cut(self) -> None:
        """Clean up after a power cut: the node is dead, its disk can be used again."""
        assert self.disk is not None
        if self.node.process is not None:
            self.node.kill()
        self.disk.unmount()
        self.disk.mount()


@dataclass(slots=True)
class Machines:
    """`cluster.nodes` are the members; `spare` is the machine that is not a member."""

    directory: Path
    size: int
    disks: bool = False
    bugs: Sequence[str] = ()
    peer: Sequence[str] | None = None  # the command of another server, as nats-server
    spaces: Namespaces | None = None
    jetstream: str = ""  # added to the jetstream block of every node
    all: list[Machine] = field(default_factory=list)
    cluster: LocalCluster = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = LocalCluster(self.directory, size=self.size, name=CLUSTER)

    @property
    def spare(self) -> Machine:
        return self.all[-1]

    def of(self, node: LocalNode) -> Machine:
        return next(one for one in self.all if one.node is node)

    def make(self, cleanup: contextlib.ExitStack) -> None:
        """Prepare everything, start nothing."""
        ports = free_ports(3 * (self.size + 1)) if self.spaces is None else []
        for number in range(self.size + 1):
            self._add(number, ports[3 * number : 3 * number + 3])
        if self.disks:
            for machine in self.all:
                machine.disk = LoopDisk.create(self.directory, f"disk-{machine.node.name}")
                cleanup.callback(machine.disk.remove)
        cleanup.callback(self.stop)  # before the disks go
        for machine in self.all:
            self._configure(machine)
        self.cluster.nodes = [machine.node for machine in self.all[:-1]]

    def _add(self, number: int, ports: list[int]) -> None:
        name = f"{CLUSTER}-{number + 1}"
        place = self.directory / name
        place.mkdir(parents=True, exist_ok=True)
        host = "127.0.0.1"
        if self.spaces is not None:
            host, ports = self.spaces.hosts[number], [CLIENT_PORT, HTTP_PORT, ROUTE_PORT]
        client, http, route = ports
        machine = Machine(LocalNode(name, place, client, http, route, (), host), place)
        self.all.append(machine)
        machine.node.command = [*self.prefix(machine.node), *self.command(machine)]
        machine.set_conditions(NORMAL)

    def prefix(self, node: LocalNode) -> list[str]:
        """Of its command: where it runs."""
        number = self.all.index(self.of(node))
        return [] if self.spaces is None else self.spaces.prefix(number)

    def command(self, machine: Machine) -> list[str]:
        if self.peer is not None:
            return list(self.peer)
        bugs = ",".join(self.bugs) or "-"
        launcher = [sys.executable, "-P", "-m", "chaos.campaign.machines.altered_node"]
        return [*launcher, str(machine.conditions_path), bugs, "serve"]

    def _configure(self, machine: Machine) -> None:
        members = [one.node for one in self.all[:-1]]
        routes = [f"{node.host}:{node.route_port}" for node in members]
        more = SYSTEM if self.peer is None else ""
        machine.node.write_config(
            cluster=CLUSTER, routes=routes, jetstream=self.jetstream, more=more
        )
        text = machine.node.config_path.read_text()
        machine.node.config_path.write_text(
            text.replace(str(machine.place / "data"), str(machine.data))
        )

    def stop(self) -> None:
        """May be called twice."""
        self.cluster.stop()
        for machine in self.all:
            machine.node.stop()
