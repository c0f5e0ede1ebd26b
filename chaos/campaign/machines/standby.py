"""A standby: a second cluster that mirrors the stream of the publishers.

Owns: its nodes, and which of them a fault hits.
May not touch: the first cluster, whose addresses it is given.
Spec: docs/disaster-recovery.md."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.local import LocalCluster, LocalNode, free_ports, our_command
from chaos.campaign.machines.machine import CLIENT_PORT, HTTP_PORT, ROUTE_PORT
from chaos.campaign.machines.network import Namespaces

CLUSTER = "standby"


@dataclass(slots=True)
class Standby:
    cluster: LocalCluster
    places: range  # of its nodes among the namespaces

    @classmethod
    def make(
        cls, directory: Path, size: int, *, home: str, urls: Sequence[str],
        spaces: Namespaces | None, first: int, cleanup: contextlib.ExitStack,
    ) -> Standby:  # fmt: skip
        """Prepared, not started. `home` is the name of the cluster at `urls` among its remotes;
        `first`: the number of its first namespace."""
        cluster = LocalCluster(directory, size=size, name=CLUSTER)
        ports = free_ports(3 * size) if spaces is None else []
        for number in range(size):
            name = f"{CLUSTER}-{number + 1}"
            host, chosen, command = "127.0.0.1", ports[3 * number : 3 * number + 3], our_command()
            if spaces is not None:
                host, chosen = spaces.hosts[first + number], [CLIENT_PORT, HTTP_PORT, ROUTE_PORT]
                command = [*spaces.prefix(first + number), *command]
            client, http, route = chosen
            cluster.nodes.append(
                LocalNode(name, directory / name, client, http, route, command, host)
            )
        routes = [f"{node.host}:{node.route_port}" for node in cluster.nodes]
        quoted = ", ".join(f'"{url}"' for url in urls)
        remotes = f"remotes {{ {home} {{ urls: [{quoted}] }} }}"
        for node in cluster.nodes:
            named = CLUSTER if size > 1 else None
            node.write_config(cluster=named, routes=routes, jetstream=remotes)
        cleanup.callback(cluster.stop)
        return cls(cluster, range(first, first + size))

    def victims(self, fault: str, salt: int) -> list[LocalNode]:
        """Half of the kills hit all nodes."""
        nodes = self.cluster.nodes
        if fault == "clusters-apart" or (fault == "standby-kill" and salt % 2):
            return list(nodes)
        return [nodes[salt // 2 % len(nodes)]]
