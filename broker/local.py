"""Real server processes on this machine: the cluster of `jetraft up`, chaos runs and benchmarks.

Owns: the processes it started, their directories and configuration files.
May not touch: other processes; it stops only what it started, by process id.
The same configuration file starts our server and nats-server, so both can run the same tests."""

from __future__ import annotations

import errno
import http.client
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

READY_WITHIN_S = 30.0
FATAL = "[FTL] "  # of a line in the log
STOP_WITHIN_S = 10.0
# Below the range that Linux uses for outgoing connections and for port 0, so that a node which is
# down for a moment finds its ports free when it starts again.
PORTS = range(20_000, 32_000)
PORTS_PER_PROCESS = 240


class NodeFailed(RuntimeError):
    """A node did not become ready; str() contains the end of its log."""


class PortBlock:
    """Consecutive ports that no other process on this machine hands out.

    A block is claimed by binding a UDP socket to its first port number. Binding it a second time
    fails, and the kernel releases it whenever the process ends."""

    def __init__(self, ports: range, size: int) -> None:
        blocks = list(ports[::size])
        random.shuffle(blocks)
        first = next(filter(_claim, blocks), None)
        if first is None:
            raise OSError(errno.EADDRINUSE, "every block of ports is claimed by another process")
        self.ports = range(first, first + size)
        self._in_turn = itertools.cycle(self.ports)

    def free(self, count: int) -> list[int]:
        """The next `count` ports that no process listens on."""
        once = itertools.islice(self._in_turn, len(self.ports))
        found = list(itertools.islice((port for port in once if not is_taken(port)), count))
        if len(found) < count:
            raise OSError(errno.EADDRINUSE, f"fewer than {count} ports of this process are free")
        return found


def _claim(first: int) -> bool:
    claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        claim.bind(("127.0.0.1", first))
    except OSError:
        claim.close()
        return False
    claim.detach()  # held until this process ends
    return True


@cache
def _ports_of_this_process() -> PortBlock:
    return PortBlock(PORTS, PORTS_PER_PROCESS)


def free_ports(count: int) -> list[int]:
    """Ports that no process listens on and that no other test or benchmark process will use."""
    return _ports_of_this_process().free(count)


def is_taken(port: int) -> bool:
    """Whether a process listens on the port now."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return True
        raise
    return False


def our_command() -> list[str]:
    """-P: a folder "broker" in the current directory must not be imported instead of ours."""
    return [sys.executable, "-P", "-m", "broker", "serve"]


@contextmanager
def _signals_delayed() -> Iterator[None]:
    """Delay SIGTERM and SIGINT: one that arrives after a process was started, but before it was
    recorded, would leave it running. Python runs signal handlers in the main thread only."""
    received: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            if callable(signal.getsignal(number)):
                before[number] = signal.signal(number, lambda caught, _: received.append(caught))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for caught in received:
        signal.raise_signal(caught)


@dataclass(slots=True)
class LocalNode:
    """One server process: its directory, its ports, and how to start and stop it."""

    name: str
    directory: Path
    client_port: int
    http_port: int
    route_port: int
    command: Sequence[str]
    host: str = "127.0.0.1"
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    log_begins: int = 0  # offset in the log of the last start

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.client_port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    @property
    def config_path(self) -> Path:
        return self.directory / "server.conf"

    @property
    def log_path(self) -> Path:
        return self.directory / "server.log"

    def write_config(
        self,
        *,
        cluster: str | None,
        routes: Sequence[int] | Sequence[str],
        jetstream: str = "",
        more: str = "",
    ) -> None:
        """`routes` are ports of this host, or addresses. `jetstream` is added to the jetstream
        block, `more` to the end of the file."""
        self.directory.mkdir(parents=True, exist_ok=True)
        lines = [
            f"server_name: {self.name}",
            f'listen: "{self.host}:{self.client_port}"',
            f'http: "{self.host}:{self.http_port}"',
            f'jetstream {{ store_dir: "{self.directory / "data"}", {jetstream} }}',
        ]
        if cluster is not None:
            places = [one if isinstance(one, str) else f"{self.host}:{one}" for one in routes]
            urls = ", ".join(f'"nats://{place}"' for place in places)
            listen = f'listen: "{self.host}:{self.route_port}"'
            lines.append(f"cluster {{ name: {cluster}, {listen}, routes: [{urls}] }}")
        self.config_path.write_text("\n".join([*lines, more, ""]))

    def start(self) -> None:
        assert self.process is None, f"{self.name} is already running"
        with self.log_path.open("ab") as log, _signals_delayed():
            self.log_begins = log.tell()
            self.process = subprocess.Popen(  # noqa: S603 - our own command line
                [*self.command, "-c", str(self.config_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )

    def http(self, path: str, *, timeout_s: float = 2.0) -> dict[str, object]:
        """A monitoring document; OSError when the node does not answer with 200."""
        url = f"http://{self.host}:{self.http_port}{path}"
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            document: dict[str, object] = json.load(answer)
            return document

    def healthy(self) -> bool:
        try:
            return self.http("/healthz").get("status") == "ok"
        except (OSError, ValueError, http.client.HTTPException):
            return False

    def _answers_itself(self) -> bool:
        """False if another server has our port. Ours exits then, and the caller notices that."""
        try:
            return self.http("/varz").get("server_name") == self.name
        except (OSError, ValueError):
            return False

    def wait_healthy(self, *, timeout_s: float = READY_WITHIN_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.healthy() or not self._answers_itself():
            if self.process is None:  # stopped by another thread during the wait
                raise NodeFailed(f"{self.name} was stopped")
            if self.process.poll() is not None:
                raise NodeFailed(f"{self.name} exited: {self.why_ended()}")
            if time.monotonic() > deadline:
                raise NodeFailed(f"{self.name} is not healthy in {timeout_s} s: {self.log_tail()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL, like a crash of this process, then reap it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Popen sends nothing to a process that has ended, whose id may be in use again."""
        assert self.process is not None, f"{self.name} was not started"
        self.process.send_signal(number)

    def log_tail(self, lines: int = 15) -> str:
        """The last lines it logged since its last start."""
        if not self.log_path.exists():
            return "(no log)"
        text = self.log_path.read_bytes()[self.log_begins :].decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def why_ended(self) -> str:
        """The error that ended it if it logged one, otherwise the end of its log."""
        tail = self.log_tail()
        fatal = [line for line in tail.splitlines() if FATAL in line]
        return fatal[-1].partition(FATAL)[2] if fatal else tail


@dataclass(slots=True)
class LocalCluster:
    """A cluster of `size` nodes. As a context manager it stops them all on exit."""

    directory: Path
    size: int = 3
    name: str = "local"
    command: Sequence[str] = field(default_factory=our_command)
    ports: Sequence[int] | None = None  # client, http, route port per node, in turn
    jetstream: str = ""  # added to the jetstream block of every node
    more: str = ""  # added to the configuration of every node
    nodes: list[LocalNode] = field(default_factory=list)

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def prepare(self, *, keep: bool = False) -> None:
        """Create directories and configuration files; start nothing. `keep`: leave existing
        configuration files unchanged."""
        ports = list(self.ports) if self.ports is not None else free_ports(3 * self.size)
        for i in range(self.size):
            client, http, route = ports[3 * i : 3 * i + 3]
            name = f"{self.name}-{i + 1}"
            directory = self.directory / name
            self.nodes.append(LocalNode(name, directory, client, http, route, self.command))
        routes = [node.route_port for node in self.nodes]
        for node in self.nodes:
            if keep and node.config_path.exists():
                continue
            node.write_config(
                cluster=self.name if self.size > 1 else None,
                routes=routes,
                jetstream=self.jetstream,
                more=self.more,
            )

    def add(self, *, routes: Sequence[int] | None = None) -> LocalNode:
        """Prepare one more node, with a route to the first one or these routes. It is not started,
        and stopped with the others."""
        client, http, route = free_ports(3)
        name = f"{self.name}-{len(self.nodes) + 1}"
        node = LocalNode(name, self.directory / name, client, http, route, self.command)
        known = [self.nodes[0].route_port] if routes is None else routes
        node.write_config(cluster=self.name, routes=known, jetstream=self.jetstream, more=self.more)
        self.nodes.append(node)
        return node

    def start(self) -> None:
        if not self.nodes:
            self.prepare()
        try:
            for node in self.nodes:
                node.start()
            for node in self.nodes:
                node.wait_healthy()
        except BaseException:  # Ctrl-C too: the nodes are in sessions of their own and keep running
            self.stop()
            raise

    def stop(self) -> None:
        for node in self.nodes:
            if node.process is not None:
                node.resume()
                node.process.terminate()
        for node in self.nodes:
            node.stop()

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]
