"""Thousands of idle groups on three local nodes: what they cost, and how fast they fail over.

    python tests/benchmarks/raft_idle_groups.py --groups 5000 --seconds 20

Each node is a process of its own. Printed: CPU of each node while all groups sleep, memory per
group, and how long it takes until every group has a leader again after the node that leads a third
of them was killed. Goals: under 3 % of a core, under 10 KB per group, within 3 s."""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from raft_node import (
    NAMES,
    VOTERS,
    CountingMachine,
    ask,
    free_ports,
    kill,
    open_host,
    print_line,
    requests,
    start_nodes,
)

from raft.host.host import Host
from raft.types import GroupId, Index, node_id

CREATED_WITHIN_SECONDS = 180
WAVE = 250


class NeverDurable(CountingMachine):
    """Its log is never cut."""

    __slots__ = ()

    def durable_index(self) -> Index:
        return Index(0)


async def serve(name: str, directory: str, ports: list[int], groups: int) -> None:
    host, transport = await open_host(name, directory, ports)
    task = asyncio.create_task(host.run())
    while sum(peer.connected for peer in transport.peers().values()) < 2:
        await asyncio.sleep(0.02)
    before = _resident()
    await create_groups(host, groups, mine=NAMES.index(name))
    async for _ in requests():
        print_line(json.dumps(facts(host) | {"bytes_per_group": (_resident() - before) / groups}))
    await host.stop()
    await task


async def create_groups(host: Host, groups: int, *, mine: int) -> None:
    """In waves, as streams are created: each waits until most of the previous one is asleep."""
    for first in range(1, groups + 1, WAVE):
        wave = [GroupId(n) for n in range(first, min(first + WAVE, groups + 1))]
        for group in wave:
            host.add_group(group, voters=VOTERS, machine=NeverDurable(), applied=Index(0))
        await asyncio.sleep(0.05)
        for group in wave:
            if group % 3 == mine and host.leader(group) is None:
                host.campaign(group)
        while host.statistics().awake > WAVE // 2:
            await asyncio.sleep(0.02)


def facts(host: Host) -> dict[str, Any]:
    statistics = host.statistics()
    leaders = [host.leader(group) for group in host.groups()]
    return {
        "leading": statistics.leading,
        "awake": statistics.awake,
        "led_by": {n: leaders.count(node_id(n)) for n in NAMES},
        "cpu": time.process_time(),
        "lag_ms": statistics.loop_lag_seconds_max * 1000,
        "late": statistics.late_ticks,
    }


def _resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def measure(groups: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        nodes = start_nodes(__file__, directory, free_ports(3), "--groups", str(groups))
        try:
            _measure(nodes, groups, seconds)
        finally:
            kill(nodes)


def _measure(nodes: list[subprocess.Popen[str]], groups: int, seconds: float) -> None:
    began = time.monotonic()
    while True:
        answers = [ask(node) for node in nodes]
        if all(a["awake"] == 0 and sum(a["led_by"].values()) == groups for a in answers):
            break
        if time.monotonic() - began > CREATED_WITHIN_SECONDS:
            sys.exit(f"the groups did not fall asleep: {answers}")
        time.sleep(1)
    print_line(f"{groups} groups created and asleep after {time.monotonic() - began:.1f} s")
    before, at = answers, time.monotonic()
    time.sleep(seconds)
    answers, passed = [ask(node) for node in nodes], time.monotonic() - at
    for name, old, new in zip(NAMES, before, answers, strict=True):
        share = (new["cpu"] - old["cpu"]) / passed
        print_line(
            f"node {name}: leads {new['leading']}, {share:.2%} of a core asleep, "
            f"{new['bytes_per_group'] / 1024:.1f} KB per group, maximum lag {new['lag_ms']:.0f} ms"
        )
    victim = max(range(3), key=lambda n: answers[n]["leading"])
    nodes[victim].kill()
    at = time.monotonic()
    living = [name for name in NAMES if name != NAMES[victim]]
    rest = [node for number, node in enumerate(nodes) if number != victim]
    while True:
        answers = [ask(node) for node in rest]
        if all(sum(a["led_by"][n] for n in living) == groups for a in answers):
            break
        time.sleep(0.25)  # each question costs the nodes a walk over all groups
    passed = time.monotonic() - at
    print_line(f"node {NAMES[victim]} killed: all groups have leaders after {passed:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--node")
    parser.add_argument("--directory", default="")
    parser.add_argument("--ports", type=int, nargs="*", default=[])
    options = parser.parse_args()
    if options.node:
        import uvloop

        uvloop.run(serve(options.node, options.directory, options.ports, options.groups))
    else:
        measure(options.groups, options.seconds)


if __name__ == "__main__":
    main()
