"""One busy group on three nodes of this machine, real fsync: throughput and what it costs.

    python tests/benchmarks/raft_throughput.py [--seconds 5] [--directory DIR]
        [--sizes 256 4096 65536] [--profile LEADER.pstats]

Three processes; the leader proposes as fast as backpressure allows. Reported per entry size:
MB/s of proposals applied on the leader, from the first to the last of the run; CPU of all three
nodes per entry and per byte, and of the leader alone. For comparison: what this disk, warmed up,
gives one process that appends and flushes 8 MB at a time. Three nodes on one disk write everything
at least three times.

Goal: 100 MB/s with 64 KB entries."""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raft_node import (
    VOTERS,
    CountingMachine,
    ask,
    cpu_of,
    free_ports,
    leader_of,
    open_host,
    print_line,
    requests,
    start_nodes,
)

from broker.bench.warming import warm
from raft.host.host import GroupBusy, Host, HostLimits
from raft.types import GroupId, Index

SIZES = (256, 4096, 65536)
WARM_MB = 1500  # what three nodes write in a few seconds
GROUP = GroupId(1)
WAITING_MAX = 32 << 20
PER_TURN_BYTES = 1 << 20  # proposed in one turn of the loop, before other callbacks run


# -- one node, in a separate process


async def propose(
    host: Host, machine: CountingMachine, size: int, seconds: float
) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    data = os.urandom(size)
    start, cpu, first = loop.time(), time.process_time(), machine.applied
    before, last = host.statistics(), machine.applied
    while loop.time() - start < seconds:
        try:
            for _ in range(max(1, PER_TURN_BYTES // size)):
                last = host.propose(GROUP, data)[1]
        except GroupBusy:
            await asyncio.sleep(0.001)
        else:
            await asyncio.sleep(0)
    while machine.applied < last:  # what was proposed belongs to this run
        await asyncio.sleep(0.001)
    passed, count = loop.time() - start, machine.applied - first
    after = host.statistics()
    flushes = after.flushes - before.flushes
    return {
        "entries": count,
        "seconds": passed,
        "leader_cpu": time.process_time() - cpu,
        "flushes": flushes,
        "flush_ms": (after.flush_latency.seconds_total - before.flush_latency.seconds_total)
        / max(1, flushes)
        * 1e3,
    }


async def serve(name: str, directory: str, ports: list[int], profile: str | None) -> None:
    """Lines on stdin: `size seconds` runs, an empty one asks whether this node leads."""
    limits = HostLimits(waiting_bytes_max=WAITING_MAX)
    host, _ = await open_host(name, directory, ports, limits)
    machine = CountingMachine()
    host.add_group(GROUP, voters=VOTERS, machine=machine, applied=Index(0))
    task = asyncio.create_task(host.run())
    profiler = cProfile.Profile()
    async for line in requests():
        facts: dict[str, Any] = {"leads": host.leader(GROUP) == host.node}
        if line:
            size, seconds = line.split()
            if profile:
                profiler.enable()
            facts |= await propose(host, machine, int(size), float(seconds))
            profiler.disable()
        print_line(json.dumps(facts))
    if profile and host.leader(GROUP) == host.node:
        profiler.dump_stats(profile)
    await host.stop()
    await task


# -- the benchmark itself


def measure(
    seconds: float, directory: str | None, sizes: Sequence[int], profile: str | None
) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as path:
        flags = ["--profile", profile] if profile else []
        processes = start_nodes(__file__, path, free_ports(3), *flags)
        try:
            for size in sizes:
                rate = warm(Path(path), WARM_MB)
                print_line(f"this disk, one process, 8 MB at a time: {rate:.0f} MB/s flushed")
                leader = processes[leader_of(processes)]
                cpu = cpu_of(processes)
                run = ask(leader, f"{size} {seconds}")
                cpu = cpu_of(processes) - cpu
                report(size, run, cpu)
        finally:
            for process in processes:
                assert process.stdin is not None
                process.stdin.close()
            for process in processes:
                process.wait(30)


def report(size: int, run: dict[str, Any], cpu: float) -> None:
    entries = max(1, run["entries"])
    print_line(
        f"{size:6d} B: {entries * size / run['seconds'] / 1e6:6.1f} MB/s, "
        f"{entries / run['seconds']:8.0f} entries/s; "
        f"CPU of all nodes {cpu / entries * 1e6:6.1f} us per entry, "
        f"{cpu / entries / size * 1e9:6.2f} ns per byte, "
        f"of the leader {run['leader_cpu'] / entries * 1e6:6.1f} us per entry; "
        f"{run['flushes']:.0f} flushes of {run['flush_ms']:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--directory", help="on the disk to measure")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--profile", help="where the leader writes its profile")
    parser.add_argument("--node")
    parser.add_argument("--ports", type=int, nargs="*", default=[])
    options = parser.parse_args()
    if options.node:
        import uvloop

        uvloop.run(serve(options.node, options.directory, options.ports, options.profile))
    else:
        measure(options.seconds, options.directory, options.sizes, options.profile)


if __name__ == "__main__":
    main()
