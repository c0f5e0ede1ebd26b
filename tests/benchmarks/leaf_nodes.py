"""Messages per second over a leaf node connection, with ours on either side, and between two
nats-servers: `python -m tests.benchmarks.leaf_nodes [mode]`. CPU is that of both servers. A mode is
one of compression: off, s2_fast, ...; s2_auto if none is given, which does not compress here."""

from __future__ import annotations

import socket
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from broker.local import free_ports
from tests.support.clusters import nats_server
from tests.support.server import Process

OURS = [sys.executable, "-m", "broker", "serve"]
LOADS = ((128, 300_000), (1024, 100_000))  # bytes, messages
ROUNDS = 3
CHUNK = 65_536
TICKS_PER_S = 100


class Pair:
    """A hub and its leaf node, without JetStream."""

    def __init__(self, place: Path, hub: list[str], leaf: list[str], stack: ExitStack) -> None:
        [port] = free_ports(1)
        mode = f"compression: {sys.argv[1] if len(sys.argv) > 1 else 's2_auto'}"
        listen = f'listen: "127.0.0.1:{port}", {mode}'
        remote = f'remotes: [ {{ url: "nats://127.0.0.1:{port}", {mode} }} ]'
        self.hub = self._start(place / "hub.conf", hub, listen, stack)
        self.leaf = self._start(place / "leaf.conf", leaf, remote, stack)

    @staticmethod
    def _start(path: Path, command: list[str], leafs: str, stack: ExitStack) -> Process:
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f'listen: "127.0.0.1:-1"\nserver_name: {path.stem}\nleafnodes {{ {leafs} }}\n'
        )
        return stack.enter_context(Process("-c", str(path), command=command))

    def cpu_s(self) -> float:
        return sum(_cpu_s(process.child.pid) for process in (self.hub, self.leaf))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _client(port: int, lines: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port))
    client.recv(CHUNK)
    client.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\n' + lines + b"PING\r\n")
    got = b""
    while b"PONG" not in got:
        got += client.recv(CHUNK)
    return client


def _crossed(publisher: socket.socket, subscriber: socket.socket) -> None:
    """Interest has crossed when a first message arrives."""
    subscriber.settimeout(0.05)
    while True:
        publisher.sendall(b"PUB bench 0\r\n\r\n")
        try:
            if subscriber.recv(CHUNK):
                break
        except TimeoutError:
            continue
    time.sleep(0.5)  # the others arrive
    try:
        while subscriber.recv(CHUNK):
            pass
    except TimeoutError:
        subscriber.settimeout(60)


def messages_per_s(source: int, target: int, size: int, count: int) -> float:
    with _client(target, b"SUB bench 1\r\n") as subscriber, _client(source) as publisher:
        _crossed(publisher, subscriber)
        message = b"PUB bench %d\r\n" % size + b"x" * size + b"\r\n"
        wanted = (len(b"MSG bench 1 %d\r\n" % size) + size + 2) * count
        share = CHUNK // len(message) + 1
        chunk = message * share

        def publish() -> None:
            for sent in range(0, count, share):
                publisher.sendall(chunk[: min(share, count - sent) * len(message)])

        thread = threading.Thread(target=publish)
        began = time.perf_counter()
        thread.start()
        got = 0
        while got < wanted:
            part = subscriber.recv(1 << 20)
            if not part:
                raise ConnectionError("the subscriber was closed")
            got += len(part)
        took_s = time.perf_counter() - began
        thread.join()
        return count / took_s


def main() -> None:
    commands = {"jetraft": OURS, "nats-server": nats_server()}
    names = (("nats-server", "nats-server"), ("jetraft", "nats-server"), ("nats-server", "jetraft"))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        pairs = {
            name: Pair(Path(folder) / str(number), commands[name[0]], commands[name[1]], stack)
            for number, name in enumerate(names)
        }
        for size, count in LOADS:
            for down in (True, False):
                rates: dict[tuple[str, str], list[float]] = {name: [] for name in names}
                cpus: dict[tuple[str, str], list[float]] = {name: [] for name in names}
                for _ in range(ROUNDS):
                    for name, pair in pairs.items():
                        ends = (pair.hub.port, pair.leaf.port)
                        before = pair.cpu_s()
                        source, target = ends if down else ends[::-1]
                        rates[name].append(messages_per_s(source, target, size, count))
                        cpus[name].append((pair.cpu_s() - before) / count * 1e6)
                for name in names:
                    way = "hub to leaf" if down else "leaf to hub"
                    rate, cpu = median(rates[name]), median(cpus[name])
                    sys.stdout.write(
                        f"{size} B, {way}: hub {name[0]}, leaf {name[1]}: {rate:,.0f}/s, "
                        f"CPU {cpu:.2f} s/million\n"
                    )


if __name__ == "__main__":
    main()
