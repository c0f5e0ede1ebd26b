"""One busy group on three nodes of this machine, real fsync: throughput and what it costs.

    python tests/benchmarks/raft_throughput.py [--seconds 5] [--directory DIR]
        [--sizes 256 4096 65536] [--profile LEADER.pstats]

Three processes; the leader proposes as fast as back-pressure allows. Reported per entry size:
MB/s of proposals applied on the leader, from the first to the last of the run; CPU of all three
nodes per entry and per byte, and of the leader alone. Beside them what this disk gives to one
process that appends and flushes 8 MB at a time: three nodes on one disk write everything three
times, at least.

Wanted: 100 MB/s with 64 KB entries."""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from raft.host import GroupBusy, Host, HostLimits
from raft.messages import Entry
from raft.store import LogStore
from raft.transport import Transport
from raft.types import GroupId, Index, NodeId, SnapshotMeta, Term, node_id

NAMES = ("a", "b", "c")
SIZES = (256, 4096, 65536)
GROUP = GroupId(1)
WAITING_MAX = 32 << 20
PER_TURN_BYTES = 1 << 20  # proposed in one turn of the loop, then others have theirs
ROOT = Path(__file__).parents[2]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


# -- one node, as a process of its own


class Counting:
    """The machine: knows how far it is."""

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
        return self.applied  # there is no state: the log may be cut


async def propose(host: Host, machine: Counting, size: int, seconds: float) -> dict[str, float]:
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
    while machine.applied < last:  # what is under way belongs to this run
        await asyncio.sleep(0.001)
    passed, count = loop.time() - start, machine.applied - first
    after = host.statistics()
    flushes = after.flushes - before.flushes
    return {
        "entries": count,
        "seconds": passed,
        "leader_cpu": time.process_time() - cpu,
        "flushes": flushes,
        "flush_ms": (after.flush_seconds_total - before.flush_seconds_total)
        / max(1, flushes)
        * 1e3,
    }


async def serve(name: str, directory: str, ports: list[int], profile: str | None) -> None:
    """Lines on stdin: `size seconds` runs, an empty one asks who leads."""
    mine = NAMES.index(name)
    store = LogStore.open(directory, node_name=name, cluster_name="bench")
    transport = Transport(
        node=node_id(name),
        name=name,
        cluster="bench",
        listen_host="127.0.0.1",
        listen_port=ports[mine],
        routes=[("127.0.0.1", port) for port in ports if port != ports[mine]],
    )
    await transport.start()
    limits = HostLimits(waiting_bytes_max=WAITING_MAX)
    host = Host(node=node_id(name), store=store, transport=transport, limits=limits)
    machine = Counting()
    voters = [node_id(each) for each in NAMES]
    host.add_group(GROUP, voters=voters, machine=machine, applied=Index(0))
    task = asyncio.create_task(host.run())
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    watch = cProfile.Profile()
    while line := (await reader.readline()).decode():
        facts: dict[str, Any] = {"leads": host.leader(GROUP) == host.node}
        if line.strip():
            size, seconds = line.split()
            if profile:
                watch.enable()
            facts |= await propose(host, machine, int(size), float(seconds))
            watch.disable()
        say(json.dumps(facts))
    if profile and host.leader(GROUP) == host.node:
        watch.dump_stats(profile)
    await host.stop()
    await task


# -- who asks them


def ask(process: subprocess.Popen[str], line: str = "") -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    facts: dict[str, Any] = json.loads(process.stdout.readline())
    return facts


def cpu_of(processes: Sequence[subprocess.Popen[str]]) -> float:
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def leader_of(processes: Sequence[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for process in processes:
            if ask(process)["leads"]:
                return process
        time.sleep(0.1)
    sys.exit("the nodes elect no leader")


def disk_rate(directory: Path) -> float:
    """MB/s of one process that appends 8 MB and flushes, 16 times."""
    block = os.urandom(8 << 20)
    with (directory / "disk").open("wb", buffering=0) as file:
        began = time.monotonic()
        for _ in range(16):
            file.write(block)
            os.fdatasync(file.fileno())
        passed = time.monotonic() - began
    (directory / "disk").unlink()
    return 16 * len(block) / passed / 1e6


def measure(
    seconds: float, directory: str | None, sizes: Sequence[int], profile: str | None
) -> None:
    import socket

    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in NAMES]
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    with tempfile.TemporaryDirectory(dir=directory) as path:
        say(f"this disk, one process, 8 MB at a time: {disk_rate(Path(path)):.0f} MB/s flushed")
        command = [sys.executable, __file__, "--ports", *ports]
        if profile:
            command += ["--profile", profile]
        processes = [
            subprocess.Popen(
                [*command, "--node", name, "--directory", f"{path}/{name}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            for name in NAMES
        ]
        try:
            for size in sizes:
                leader = leader_of(processes)
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
    say(
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
