"""Our Raft compared with etcd: three nodes each on this machine, real fsync, same client.

    python tests/benchmarks/raft_vs_etcd.py [--seconds 10] [--repeat 3] [--directory DIR]

Ours and etcd are measured in turns: writes per second of 64 clients with 256 B values, each with
one write in flight, and the median latency of one client. Clients are connections of one process
that sends prepared requests and parses as little of the answers as possible: gRPC Put calls to
etcd's leader, frames of 256 B to our leader, which answers with one byte when a value is committed.
etcd's revision shows afterwards that it has done what it answered. Needs etcd (Debian:
etcd-server). The throughput of one busy group is measured by raft_throughput.py.

Goals: 5 times etcd's writes per second, and a median latency no worse."""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raft_node import (
    NAMES,
    VOTERS,
    CountingMachine,
    cpu_of,
    free_ports,
    kill,
    leader_of,
    open_host,
    print_line,
    requests,
    start_nodes,
)

from raft.core.messages import Entry
from raft.host.host import Host, HostLimits
from raft.types import GroupId, Index

GROUP = GroupId(1)
KEY = b"k"
VALUE = b"v" * 256


# -- one of our nodes, in a separate process


class AnsweringMachine(CountingMachine):
    """A machine that answers the connection whose proposal was applied."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[int, asyncio.Transport] = {}

    def apply(self, entries: Sequence[Entry]) -> None:
        waiting = self.waiting
        for entry in entries:
            connection = waiting.pop(entry.index, None)
            if connection is not None and not connection.is_closing():
                connection.write(b"\x01")
        self.applied = entries[-1].index


class Client(asyncio.Protocol):
    """Proposes every value it receives."""

    def __init__(self, host: Host, machine: AnsweringMachine) -> None:
        self._host, self._machine = host, machine
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection: Any = transport

    def data_received(self, data: bytes) -> None:
        self._pending += data
        while len(self._pending) >= len(VALUE):
            value, self._pending = self._pending[: len(VALUE)], self._pending[len(VALUE) :]
            _, index = self._host.propose(GROUP, value)
            self._machine.waiting[index] = self._connection


async def serve(name: str, directory: str, ports: list[int]) -> None:
    """Clients connect to one of the last three ports; lines on stdin ask whether it leads."""
    limits = HostLimits(waiting_bytes_max=16 << 20)
    host, _ = await open_host(name, directory, ports, limits)
    machine = AnsweringMachine()
    host.add_group(GROUP, voters=VOTERS, machine=machine, applied=Index(0))
    clients = await asyncio.get_running_loop().create_server(
        lambda: Client(host, machine), "127.0.0.1", ports[3 + NAMES.index(name)]
    )
    task = asyncio.create_task(host.run())
    async for _ in requests():
        print_line(json.dumps({"leads": host.leader(GROUP) == host.node}))
    clients.close()
    await host.stop()
    await task


@dataclass
class Cluster:
    """Three processes, and where and how to write to their leader."""

    processes: list[subprocess.Popen[str]]
    port: int
    writer: type[Writer]

    def cpu(self) -> float:
        return cpu_of(self.processes)

    def revision(self) -> int:
        """Of etcd: it grows by one with every put."""
        status = _post(self.port, "/v3/maintenance/status") or {}
        return int(status.get("header", {}).get("revision", 0))

    def stop(self) -> None:
        kill(self.processes)


def start_ours(directory: Path) -> Cluster:
    ports = free_ports(6)
    processes = start_nodes(__file__, directory, ports)
    return Cluster(processes, ports[3 + leader_of(processes)], OurWriter)


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
    cluster = Cluster(processes, 0, EtcdWriter)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for port in ports[3:]:
            status = _post(port, "/v3/maintenance/status")
            if status and status.get("leader") == status["header"]["member_id"]:
                cluster.port = port
                return cluster
        time.sleep(0.1)
    cluster.stop()
    sys.exit("etcd did not elect a leader")


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


# -- the clients


class Writer(asyncio.Protocol):
    """One client: sends the next request when the previous one is answered."""

    def __init__(self, latencies: list[float]) -> None:
        self._latencies = latencies
        self._sent_at = 0.0
        self._connection: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection = transport
        self._connection.write(self.greeting())
        self._write()

    def greeting(self) -> bytes:
        return b""

    def request(self) -> bytes:
        raise NotImplementedError

    def _write(self) -> None:
        self._sent_at = time.perf_counter()
        self._connection.write(self.request())

    def answered(self) -> None:
        self._latencies.append(time.perf_counter() - self._sent_at)
        self._write()

    def close(self) -> None:
        self._connection.abort()


class OurWriter(Writer):
    def request(self) -> bytes:
        return VALUE

    def data_received(self, data: bytes) -> None:
        self.answered()


def _literal(text: bytes) -> bytes:
    return bytes([len(text)]) + text


class EtcdWriter(Writer):
    """Just enough of HTTP/2 (RFC 9113) and gRPC for one unary call after the other. Headers are
    constant because nothing is added to the compression table; answers are recognized by their
    frames; the window for answers is opened once."""

    _FRAME = struct.Struct(">BHBBI")  # length (24 bits), type, flags, stream
    _DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
    _ACK = _END_STREAM = 1
    _END_HEADERS = 4
    _HEAD = (
        b"\x83\x86"  # :method POST, :scheme http
        + (b"\x04" + _literal(b"/etcdserverpb.KV/Put") + b"\x01" + _literal(b"localhost"))
        + (b"\x0f\x10" + _literal(b"application/grpc"))
        + (b"\x00" + _literal(b"te") + _literal(b"trailers"))
    )
    _PUT = b"\x0a" + _literal(KEY) + b"\x12\x80\x02" + VALUE  # fields 1 and 2; 256 as a varint
    _BODY = b"\x00" + len(_PUT).to_bytes(4, "big") + _PUT

    def greeting(self) -> bytes:
        self._stream, self._pending, self._has_data = -1, b"", False
        opened = (2**31 - 1 - 65535).to_bytes(4, "big")
        return (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + self._frame(self._SETTINGS, 0, 0, b"")
            + self._frame(self._WINDOW, 0, 0, opened)
        )

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        size = len(payload)
        return self._FRAME.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload

    def request(self) -> bytes:
        self._stream += 2
        self._has_data = False
        return self._frame(
            self._HEADERS, self._END_HEADERS, self._stream, self._HEAD
        ) + self._frame(self._DATA, self._END_STREAM, self._stream, self._BODY)

    def data_received(self, data: bytes) -> None:
        data = self._pending + data
        position, head = 0, self._FRAME.size
        while len(data) - position >= head:
            high, low, kind, flags, _ = self._FRAME.unpack_from(data, position)
            end = position + head + (high << 16 | low)
            if end > len(data):
                break
            self._take(kind, flags, data[position + head : end])
            position = end
        self._pending = data[position:]

    def _take(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == self._DATA:
            self._has_data = True
        elif kind == self._HEADERS and flags & self._END_STREAM:
            if not self._has_data:
                raise RuntimeError(f"etcd refused a put: {payload!r}")
            self.answered()
        elif kind in (self._SETTINGS, self._PING) and not flags & self._ACK:
            answer = payload if kind == self._PING else b""
            self._connection.write(self._frame(kind, self._ACK, 0, answer))
        elif kind in (self._RST, self._GOAWAY):
            raise RuntimeError(f"etcd closed the stream: {payload!r}")


@dataclass
class Run:
    per_second: float
    median_ms: float
    cpu_us: float  # of all three nodes, per write


def drive(cluster: Cluster, *, clients: int, seconds: float) -> Run:
    import uvloop

    latencies: list[float] = []

    async def run() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        writers = []
        for _ in range(clients):
            writer = cluster.writer(latencies)
            await loop.create_connection(lambda w=writer: w, "127.0.0.1", cluster.port)  # type: ignore[misc]
            writers.append(writer)
        await asyncio.sleep(min(1.0, seconds / 4))  # warm up
        latencies.clear()
        began, cpu = time.perf_counter(), cluster.cpu()
        await asyncio.sleep(seconds)
        passed, cpu = time.perf_counter() - began, cluster.cpu() - cpu
        for writer in writers:
            writer.close()
        return passed, cpu

    revision = cluster.revision()
    passed, cpu = uvloop.run(run())
    if cluster.writer is EtcdWriter and cluster.revision() - revision < len(latencies):
        sys.exit("etcd has answered more puts than it has revisions")
    count = max(1, len(latencies))
    median_ms = statistics.median(latencies) * 1000 if latencies else float("inf")
    return Run(len(latencies) / passed, median_ms, cpu / count * 1e6)


def measure(seconds: float, repeat: int, directory: str | None) -> None:
    if shutil.which("etcd") is None:
        sys.exit("etcd is not installed: apt-get install etcd-server")
    runs: dict[str, list[tuple[Run, Run]]] = {"raft": [], "etcd": []}
    for _ in range(repeat):
        for name, start in (("raft", start_ours), ("etcd", start_etcd)):
            with tempfile.TemporaryDirectory(dir=directory) as path:
                cluster = start(Path(path))
                try:
                    many = drive(cluster, clients=64, seconds=seconds)
                    one = drive(cluster, clients=1, seconds=seconds / 2)
                finally:
                    cluster.stop()
            runs[name].append((many, one))
            print_line(
                f"{name}: {many.per_second:8.0f} writes/s by 64 clients "
                f"(median {many.median_ms:.2f} ms, {many.cpu_us:.0f} us CPU each), "
                f"one client: median {one.median_ms:.2f} ms"
            )
    rate = {n: statistics.median(m.per_second for m, _ in r) for n, r in runs.items()}
    latency = {n: statistics.median(o.median_ms for _, o in r) for n, r in runs.items()}
    print_line(f"64 clients: {rate['raft'] / rate['etcd']:.1f} times etcd (goal: 5)")
    print_line(f"one client: median {latency['raft']:.2f} ms, etcd {latency['etcd']:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--directory", help="on the disk to measure")
    parser.add_argument("--node")
    parser.add_argument("--ports", type=int, nargs="*", default=[])
    options = parser.parse_args()
    if options.node:
        import uvloop

        uvloop.run(serve(options.node, options.directory, options.ports))
    else:
        measure(options.seconds, options.repeat, options.directory)


if __name__ == "__main__":
    main()
