"""Thousands of idle groups on three local nodes: what they cost, and how fast they fail over.

    python tests/benchmarks/raft_idle_groups.py --groups 5000 --seconds 20

Each node is a process of its own. Printed: CPU of each node while all groups sleep, memory per
group, and how long it takes until every group has a leader again after the node that leads a third
of them was killed. Wanted: under 3 % of a core, under 10 KB, within 3 s."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

NAMES = ("a", "b", "c")
FOUNDED_WITHIN_SECONDS = 180
WAVE = 250


def serve(name: str, directory: str, ports: list[int], groups: int) -> None:
    """One node: commands come as lines on stdin, answers go as lines of JSON to stdout."""
    import uvloop

    from raft.host import Host
    from raft.messages import Entry
    from raft.store import LogStore
    from raft.transport import Transport
    from raft.types import GroupId, Index, NodeId, SnapshotMeta, Term, node_id

    class Counter:
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
            return Index(0)

    async def run() -> None:
        store = LogStore.open(directory, node_name=name, cluster_name="idle")
        mine = NAMES.index(name)
        transport = Transport(
            node=node_id(name),
            name=name,
            cluster="idle",
            listen_host="127.0.0.1",
            listen_port=ports[mine],
            routes=[("127.0.0.1", port) for port in ports if port != ports[mine]],
        )
        await transport.start()
        host = Host(node=node_id(name), store=store, transport=transport)
        task = asyncio.create_task(host.run())
        while sum(peer.connected for peer in transport.peers().values()) < 2:
            await asyncio.sleep(0.02)
        before = _resident()
        voters = [node_id(n) for n in NAMES]
        # In waves, as streams are founded: the next when the last has come to rest.
        for first in range(1, groups + 1, WAVE):
            wave = [GroupId(n) for n in range(first, min(first + WAVE, groups + 1))]
            for group in wave:
                host.add_group(group, voters=voters, machine=Counter(), applied=Index(0))
            await asyncio.sleep(0.05)
            for group in wave:
                if group % 3 == mine and host.leader(group) is None:
                    host.campaign(group)
            while host.statistics().awake > WAVE // 2:
                await asyncio.sleep(0.02)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        while await reader.readline():
            statistics = host.statistics()
            leaders = [host.leader(group) for group in host.groups()]
            answer = {
                "leading": statistics.leading,
                "awake": statistics.awake,
                "led_by": {n: leaders.count(node_id(n)) for n in NAMES},
                "cpu": time.process_time(),
                "bytes_per_group": (_resident() - before) / groups,
                "lag_ms": statistics.loop_lag_seconds_max * 1000,
                "late": statistics.late_ticks,
            }
            say(json.dumps(answer))
        await host.stop()
        await task

    uvloop.run(run())


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _ask(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def _free_ports() -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in NAMES]
    ports = [s.getsockname()[1] for s in sockets]
    for each in sockets:
        each.close()
    return ports


def measure(groups: int, seconds: float) -> None:
    ports = _free_ports()
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--groups", str(groups), "--ports", *map(str, ports)]
        nodes = [
            subprocess.Popen(
                [*command, "--node", name, "--directory", f"{directory}/{name}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )
            for name in NAMES
        ]
        try:
            _measure(nodes, groups, seconds)
        finally:
            for node in nodes:
                node.kill()
                node.wait()


def _measure(nodes: list[subprocess.Popen[str]], groups: int, seconds: float) -> None:
    began = time.monotonic()
    while True:
        answers = [_ask(node) for node in nodes]
        if all(a["awake"] == 0 and sum(a["led_by"].values()) == groups for a in answers):
            break
        if time.monotonic() - began > FOUNDED_WITHIN_SECONDS:
            sys.exit(f"the groups do not come to rest: {answers}")
        time.sleep(1)
    say(f"{groups} groups founded and asleep after {time.monotonic() - began:.1f} s")
    before, at = answers, time.monotonic()
    time.sleep(seconds)
    answers, passed = [_ask(node) for node in nodes], time.monotonic() - at
    for name, old, new in zip(NAMES, before, answers, strict=True):
        share = (new["cpu"] - old["cpu"]) / passed
        say(
            f"node {name}: leads {new['leading']}, {share:.2%} of a core asleep, "
            f"{new['bytes_per_group'] / 1024:.1f} KB per group, most lag {new['lag_ms']:.0f} ms"
        )
    victim = max(range(3), key=lambda n: answers[n]["leading"])
    nodes[victim].kill()
    at = time.monotonic()
    living = [name for name in NAMES if name != NAMES[victim]]
    rest = [node for number, node in enumerate(nodes) if number != victim]
    while True:
        answers = [_ask(node) for node in rest]
        if all(sum(a["led_by"][n] for n in living) == groups for a in answers):
            break
        time.sleep(0.25)  # asking costs the nodes a walk over all groups
    say(f"node {NAMES[victim]} killed: all led again after {time.monotonic() - at:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--node")
    parser.add_argument("--directory", default="")
    parser.add_argument("--ports", type=int, nargs="*", default=[])
    options = parser.parse_args()
    if options.node:
        serve(options.node, options.directory, options.ports, options.groups)
    else:
        measure(options.groups, options.seconds)


if __name__ == "__main__":
    main()
