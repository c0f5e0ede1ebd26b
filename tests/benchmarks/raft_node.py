"""Shared by the Raft benchmarks: nodes as separate processes, and the functions that query them.

A node runs the benchmark's own script with `--node`. It answers each line on its stdin with one
line of JSON, and exits when its stdin is closed."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from raft.core.messages import Entry
from raft.host.host import Host, HostLimits
from raft.store.log_store import LogStore
from raft.transport.transport import Transport
from raft.types import Index, NodeId, SnapshotMeta, Term, node_id

NAMES = ("a", "b", "c")
VOTERS = [node_id(name) for name in NAMES]
ROOT = Path(__file__).parents[2]


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


# -- one node, in a separate process


class CountingMachine:
    """A machine that only knows its applied index. It has no state, so the log may be cut."""

    __slots__ = ("applied",)

    def __init__(self) -> None:
        self.applied = Index(0)

    def apply(self, entries: Sequence[Entry]) -> None:
        self.applied = entries[-1].index

    def leader_changed(self, *, leader: NodeId | None, term: Term, ours: bool) -> None: ...

    def snapshot(self) -> tuple[Index, Iterable[bytes]]:
        return self.applied, []

    def restore(self, meta: SnapshotMeta, chunks: Sequence[bytes]) -> None:
        self.applied = meta.index

    def durable_index(self) -> Index:
        return self.applied


async def open_host(
    name: str, directory: str, ports: Sequence[int], limits: HostLimits | None = None
) -> tuple[Host, Transport]:
    """A host that is connected to the others but does not run yet. The first three ports are those
    of the nodes, in the order of NAMES."""
    store = LogStore.open(directory, node_name=name, cluster_name="bench")
    mine, *others = sorted(ports[:3], key=lambda port: port != ports[NAMES.index(name)])
    transport = Transport(
        node=node_id(name),
        name=name,
        cluster="bench",
        listen_host="127.0.0.1",
        listen_port=mine,
        routes=[("127.0.0.1", port) for port in others],
    )
    await transport.start()
    limits = limits or HostLimits()
    return Host(node=node_id(name), store=store, transport=transport, limits=limits), transport


async def requests() -> AsyncIterator[str]:
    """The lines on stdin."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := (await reader.readline()).decode():
        yield line.strip()


# -- the benchmark itself


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def start_nodes(
    script: str, directory: str | Path, ports: Sequence[int], *flags: str
) -> list[subprocess.Popen[str]]:
    command = [sys.executable, script, *flags, "--ports", *map(str, ports)]
    return [
        subprocess.Popen(
            [*command, "--node", name, "--directory", f"{directory}/{name}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for name in NAMES
    ]


def ask(process: subprocess.Popen[str], line: str = "") -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    facts: dict[str, Any] = json.loads(process.stdout.readline())
    return facts


def leader_of(processes: Sequence[subprocess.Popen[str]]) -> int:
    """The number of the leader. Exits when there is none after a while."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for number, process in enumerate(processes):
            if ask(process)["leads"]:
                return number
        time.sleep(0.1)
    kill(processes)
    sys.exit("the nodes did not elect a leader")


def cpu_of(processes: Sequence[subprocess.Popen[str]]) -> float:
    """CPU seconds of all of them so far."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def kill(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
