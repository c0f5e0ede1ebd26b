"""Our Raft beside etcd: three nodes each on this machine, real fsync, the same client for both.

    python tests/benchmarks/raft_vs_etcd.py [--seconds 10] [--repeat 3] [--directory DIR]

Measured in turns, ours and etcd's: writes per second of 64 clients with 256 B values, each with one
write under way, and the median latency of one client. Then, for ours alone, one busy group: CPU per
proposed entry and per byte, and the throughput of 64 KB entries. Clients are connections of one
process that writes ready-made requests and waits for the first bytes of each answer: to etcd's
leader by its JSON gateway on kept-alive connections, to our leader by frames of 256 B that are
answered by one byte when they are committed. Needs etcd (Debian: etcd-server).

Wanted: 5 times etcd's writes per second, a median no worse, 100 MB/s."""

from __future__ import annotations

import argparse
import asyncio
import base64
import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = ("a", "b", "c")
VALUE = b"v" * 256
ENTRY_64K = b"e" * (64 << 10)
ROOT = Path(__file__).parents[2]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


# -- one of our nodes, as a process of its own


def serve(name: str, directory: str, ports: list[int]) -> None:
    """Clients connect to the last port given; lines on stdin ask for facts and bulk runs."""
    import uvloop

    from raft.host import GroupBusy, Host, HostLimits
    from raft.messages import Entry
    from raft.store import LogStore
    from raft.transport import Transport
    from raft.types import GroupId, Index, NodeId, SnapshotMeta, Term, node_id

    group = GroupId(1)

    class Answering:
        """The machine: answers the connection whose proposal was applied."""

        def __init__(self) -> None:
            self.applied = Index(0)
            self.waiting: dict[int, asyncio.Transport] = {}

        def apply(self, entries: Sequence[Entry]) -> None:
            waiting = self.waiting
            for entry in entries:
                connection = waiting.pop(entry.index, None)
                if connection is not None and not connection.is_closing():
                    connection.write(b"\x01")
            self.applied = entries[-1].index

        def leader_changed(self, *, leader: NodeId | None, term: Term, ours: bool) -> None: ...

        def snapshot(self) -> tuple[Index, Iterable[bytes]]:
            return self.applied, []

        def restore(self, meta: SnapshotMeta, chunks: Sequence[bytes]) -> None:
            self.applied = meta.index

        def durable_index(self) -> Index:
            return self.applied  # there is no state: the log may be cut

    async def run() -> None:
        mine = NAMES.index(name)
        store = LogStore.open(directory, node_name=name, cluster_name="bench")
        transport = Transport(
            node=node_id(name),
            name=name,
            cluster="bench",
            listen_host="127.0.0.1",
            listen_port=ports[mine],
            routes=[("127.0.0.1", port) for port in ports[:3] if port != ports[mine]],
        )
        await transport.start()
        limits = HostLimits(waiting_bytes_max=16 << 20)
        host = Host(node=node_id(name), store=store, transport=transport, limits=limits)
        machine = Answering()
        voters = [node_id(n) for n in NAMES]
        host.add_group(group, voters=voters, machine=machine, applied=Index(0))

        class Client(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.connection: Any = transport
                self.pending = b""

            def data_received(self, data: bytes) -> None:
                self.pending += data
                while len(self.pending) >= len(VALUE):
                    value, self.pending = self.pending[: len(VALUE)], self.pending[len(VALUE) :]
                    _, index = host.propose(group, value)
                    machine.waiting[index] = self.connection

        async def bulk(seconds: float) -> dict[str, float]:
            loop = asyncio.get_running_loop()
            start, cpu, first = loop.time(), time.process_time(), machine.applied
            while loop.time() - start < seconds:
                try:
                    host.propose(group, ENTRY_64K)
                except GroupBusy:
                    await asyncio.sleep(0.001)
            passed, count = loop.time() - start, machine.applied - first
            return {
                "mb_per_s": count * len(ENTRY_64K) / passed / 1e6,
                "cpu_ns_per_byte": (time.process_time() - cpu) / max(1, count * 65536) * 1e9,
            }

        loop = asyncio.get_running_loop()
        clients = await loop.create_server(Client, "127.0.0.1", ports[3 + mine])
        task = asyncio.create_task(host.run())
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := (await reader.readline()).decode():
            facts: dict[str, Any] = {"leads": host.leader(group) == host.node}
            facts |= {"cpu": time.process_time(), "flushes": host.statistics().flushes}
            if line.startswith("bulk"):
                facts |= await bulk(float(line.split()[1]))
            say(json.dumps(facts))
        clients.close()
        await host.stop()
        await task

    uvloop.run(run())


@dataclass
class Cluster:
    """Three processes, and where and how to write to their leader."""

    processes: list[subprocess.Popen[str]]
    port: int
    request: bytes
    answered: Callable[[bytes], bool]  # whether these bytes are a whole answer
    leader: int = 0

    def ask(self, line: str = "") -> dict[str, Any]:
        process = self.processes[self.leader]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        facts: dict[str, Any] = json.loads(process.stdout.readline())
        return facts

    def cpu(self) -> float:
        """CPU seconds of all three so far."""
        ticks = 0
        for process in self.processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def start_ours(directory: Path) -> Cluster:
    ports = free_ports(6)
    command = [sys.executable, __file__, "--ports", *map(str, ports)]
    processes = [
        subprocess.Popen(
            [*command, "--node", name, "--directory", str(directory / name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for name in NAMES
    ]
    cluster = Cluster(processes, 0, VALUE, lambda data: len(data) >= 1)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for cluster.leader in range(3):
            if cluster.ask()["leads"]:
                cluster.port = ports[3 + cluster.leader]
                return cluster
        time.sleep(0.1)
    cluster.stop()
    sys.exit("our nodes elect no leader")


def start_etcd(directory: Path) -> Cluster:
    ports = free_ports(6)
    peers = ",".join(f"{n}=http://127.0.0.1:{p}" for n, p in zip(NAMES, ports[:3], strict=True))
    processes = []
    for number, name in enumerate(NAMES):
        peer, client = (f"http://127.0.0.1:{ports[number + k]}" for k in (0, 3))
        flags = {
            "name": name,
            "data-dir": str(directory / name),
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "initial-cluster": peers,
            "log-level": "error",
        }
        arguments = [f"--{key}={value}" for key, value in flags.items()]
        processes.append(
            subprocess.Popen(
                ["etcd", *arguments],
                text=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
    body = json.dumps(
        {"key": base64.b64encode(b"k").decode(), "value": base64.b64encode(VALUE).decode()}
    )
    head = f"POST /v3/kv/put HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    cluster = Cluster(processes, 0, (head + body).encode(), _whole_http_answer)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for port in ports[3:]:
            status = _post(port, "/v3/maintenance/status")
            if status and status.get("leader") == status["header"]["member_id"]:
                cluster.port = port
                return cluster
        time.sleep(0.1)
    cluster.stop()
    sys.exit("etcd elects no leader")


def _post(port: int, path: str) -> dict[str, Any] | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("POST", path, "{}")
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
    except OSError:
        return None
    finally:
        connection.close()
    return answer


def _whole_http_answer(data: bytes) -> bool:
    if not data.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"etcd answers {data[:200]!r}")
    return data.endswith(b"}\n") or data.endswith(b"}}") or data.endswith(b"0\r\n\r\n")


# -- the clients


class Writer(asyncio.Protocol):
    """One client: the next request goes out when the last one is answered."""

    def __init__(self, cluster: Cluster, latencies: list[float]) -> None:
        self._cluster = cluster
        self._latencies = latencies
        self._data = b""
        self._sent_at = 0.0
        self._connection: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection = transport
        self._write()

    def _write(self) -> None:
        self._sent_at = time.perf_counter()
        self._connection.write(self._cluster.request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._cluster.answered(self._data):
            self._latencies.append(time.perf_counter() - self._sent_at)
            self._data = b""
            self._write()

    def close(self) -> None:
        self._connection.abort()


@dataclass
class Run:
    per_second: float
    median_ms: float
    cpu_us: float  # of all three nodes, per write


def drive(cluster: Cluster, *, clients: int, seconds: float) -> Run:
    import uvloop

    latencies: list[float] = []

    async def run() -> float:
        loop = asyncio.get_running_loop()
        writers = []
        for _ in range(clients):
            writer = Writer(cluster, latencies)
            await loop.create_connection(lambda w=writer: w, "127.0.0.1", cluster.port)  # type: ignore[misc]
            writers.append(writer)
        await asyncio.sleep(min(1.0, seconds / 4))  # warm up
        latencies.clear()
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        passed = time.perf_counter() - began
        for writer in writers:
            writer.close()
        return passed

    cpu = cluster.cpu()
    passed = uvloop.run(run())
    count = max(1, len(latencies))
    median_ms = statistics.median(latencies) * 1000 if latencies else float("inf")
    return Run(len(latencies) / passed, median_ms, (cluster.cpu() - cpu) / count * 1e6)


def measure(seconds: float, repeat: int, directory: str | None) -> None:
    if shutil.which("etcd") is None:
        sys.exit("etcd is not here: apt-get install etcd-server")
    runs: dict[str, list[tuple[Run, Run]]] = {"raft": [], "etcd": []}
    bulk: dict[str, Any] = {}
    for turn in range(repeat):
        for name, start in (("raft", start_ours), ("etcd", start_etcd)):
            with tempfile.TemporaryDirectory(dir=directory) as path:
                cluster = start(Path(path))
                try:
                    many = drive(cluster, clients=64, seconds=seconds)
                    one = drive(cluster, clients=1, seconds=seconds / 2)
                    if name == "raft" and turn == repeat - 1:
                        bulk = cluster.ask(f"bulk {seconds}")
                finally:
                    cluster.stop()
            runs[name].append((many, one))
            say(
                f"{name}: {many.per_second:8.0f} writes/s by 64 clients "
                f"(median {many.median_ms:.2f} ms, {many.cpu_us:.0f} us CPU each), "
                f"one client: median {one.median_ms:.2f} ms"
            )
    rate = {n: statistics.median(m.per_second for m, _ in r) for n, r in runs.items()}
    latency = {n: statistics.median(o.median_ms for _, o in r) for n, r in runs.items()}
    say(f"64 clients: {rate['raft'] / rate['etcd']:.1f} times etcd (wanted: 5)")
    say(f"one client: median {latency['raft']:.2f} ms, etcd {latency['etcd']:.2f} ms")
    say(
        f"64 KB entries: {bulk['mb_per_s']:.0f} MB/s (wanted: 100), leader's CPU "
        f"{bulk['cpu_ns_per_byte']:.1f} ns per byte"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--directory", help="on the disk to measure")
    parser.add_argument("--node")
    parser.add_argument("--ports", type=int, nargs="*", default=[])
    options = parser.parse_args()
    if options.node:
        serve(options.node, options.directory, options.ports)
    else:
        measure(options.seconds, options.repeat, options.directory)


if __name__ == "__main__":
    main()
