"""What a quiet client notices while a client of another account attacks the server.

    python tests/benchmarks/neighbours.py [--seconds 10] [--settle 30] [--only TEXT ...]
        [--ours-only] [--nodes 3] [--steps]

A well-behaved client sends a PING, a publish with ack and a get, each 50 times a second on its own
connection, at fixed times: an answer that is late delays nothing, and its delay counts from the
time it was due. Beside it one attack of attacks.py runs in another process and another account. The
same is done with nats-server, in turns. Memory is the resident set of the server: before, its peak,
and after the attack has ended: at most `--settle` seconds later, and as soon as it is back (within
BACK_MB of before). A second line names the figures that miss their goal. With `--nodes 3` all
streams have three replicas, and both clients are connected to the first of three nodes, whose
memory is shown. With `--steps` our server runs under long_steps.py, and a line tells the longest
steps of its event loop in CPU time, which says something on a busy machine, too.

Goals: p99 below 50 ms and worst below 250 ms for all three, or three times nats-server where that
is better; memory grows by less than 200 MB and returns."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from attack import HASHED, LEAF, MONITOR, SYSTEM, USER, WEBSOCKET
from attacks import ATTACKS
from attacks import main as attack_main
from login_attacks import CONFIGS
from plain_client import PlainClient

from broker.local import our_command

OURS, PEER = "jetraft", "nats-server"
QUIET = "quiet"
EVERY_S = 0.02
ANSWERS_WITHIN_S = 60.0
P99_MS, WORST_MS, GROWTH_MB, BACK_MB = 50.0, 250.0, 200.0, 30.0
PEER_FACTOR = 3.0
CONFIG = """
server_name: {name}
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{directory}" }}
max_connections: 4096
http: "127.0.0.1:{http}"
websocket {{ listen: "127.0.0.1:{websocket}", no_tls: true, compression: true }}
leafnodes {{ listen: "127.0.0.1:{leafnodes}" }}
system_account: SYS
accounts {{
  SYS {{ users: [{{ user: {system}, password: {system} }}] }}
  HASHED {{ users: [{{ user: {hashed}, password: "{secret}" }}] }}
  ATTACK {{ jetstream: enabled, users: [{{ user: {attacker}, password: {attacker} }}] }}
  QUIET {{ jetstream: enabled, users: [{{ user: {quiet}, password: {quiet} }}] }}
}}
"""
SECRET = "$2a$11$SjxpZh3K8DNy1FpQG4AXsu3W/erKQCAKJZWbG.VD6VWwVVFgI6mPS"  # bcrypt, cost 11
STEPS = "steps.jsonl"  # in the directory of a server: what long_steps.py tells
DOORS = (MONITOR, WEBSOCKET, LEAF)
CLUSTER = """
cluster {{ name: neighbours, listen: "127.0.0.1:{own}", routes: [{routes}] }}
"""


@dataclass(slots=True)
class Probe:
    """One kind of request, sent at fixed times; answers arrive in order."""

    client: PlainClient
    line: bytes
    delays_s: list[float] = field(default_factory=list)
    due: deque[float] = field(default_factory=deque)

    def answered(self) -> None:
        self.delays_s.append(time.perf_counter() - self.due.popleft())

    async def run(self, until: float) -> None:
        at = time.perf_counter()
        while at < until:
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            self.due.append(at)
            self.client.send(self.line)
            at += EVERY_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                while self.due:
                    await asyncio.sleep(0.01)
        while self.due:  # never answered: as bad as what was waited for
            self.answered()

    def figures(self) -> tuple[float, float, float]:
        """p50, p99 and the worst, in milliseconds."""
        ordered = sorted(self.delays_s)
        return tuple(
            1000 * ordered[min(len(ordered) - 1, int(len(ordered) * part))]
            for part in (0.5, 0.99, 1.0)
        )  # type: ignore[return-value]


def memory_mb(pid: int, field_name: str = "VmRSS") -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field_name):
            return int(line.split()[1]) / 1024
    return 0.0


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def start_servers(
    kind: str, directory: Path, nodes: int, steps: bool, extra: str
) -> tuple[list[subprocess.Popen[bytes]], int, dict[str, int]]:
    """Returns the servers, the client port of the first one and the ports of its other doors."""
    count = 2 + len(DOORS)
    free = free_ports(count * nodes)
    ports, routes, *others = (free[at::count] for at in range(count))
    doors = [dict(zip(DOORS, found, strict=True)) for found in zip(*others, strict=True)]
    servers = []
    for at in range(nodes):
        place = directory / str(at)
        place.mkdir()
        text = CONFIG.format(
            name=f"n{at}", port=ports[at], directory=place / "data", attacker=USER, quiet=QUIET,
            system=SYSTEM, hashed=HASHED, secret=SECRET, **doors[at],
        )  # fmt: skip
        if nodes > 1:
            urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
            text += CLUSTER.format(own=routes[at], routes=urls)
        (place / "server.conf").write_text(text + extra)
        command = our_command() if kind == OURS else ["nats-server"]
        if steps and kind == OURS:
            command = [sys.executable, str(Path(__file__).with_name("long_steps.py"))]
        log = (place / "log").open("wb")
        started = [*command, "-c", str(place / "server.conf")]
        environment = os.environ | {"JETRAFT_STEPS": str(place / STEPS)}
        servers.append(subprocess.Popen(started, stdout=log, stderr=log, env=environment))
    return servers, ports[0], doors[0]


async def connected(port: int, user: str) -> PlainClient:
    deadline = time.monotonic() + 20
    while True:
        try:
            return await PlainClient.open(port, user)
        except OSError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


async def quiet_probes(port: int, nodes: int) -> dict[str, Probe]:
    setup = await connected(port, QUIET)
    config = {"name": "Q", "subjects": ["q"], "allow_direct": True, "num_replicas": nodes}
    deadline = time.monotonic() + 30
    while "error" in (answer := await answered(setup, config)):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the cluster is not ready: {answer}")
        await asyncio.sleep(0.2)
    await setup.request(b"q", b"x" * 100)
    await setup.close()
    probes: dict[str, Probe] = {}
    for name, line in (
        ("ping", b"PING\r\n"),
        ("publish", b"PUB q %s.p 100\r\n" + b"x" * 100 + b"\r\n"),
        ("get", b"PUB $JS.API.DIRECT.GET.Q %s.g 9\r\n" + b'{"seq":1}\r\n'),
    ):
        client = await connected(port, QUIET)
        probe = Probe(client, line % client.inbox if b"%s" in line else line)
        client.on_answer = lambda _subject, _payload, p=probe: p.answered()
        client.on_pong = probe.answered
        probes[name] = probe
    return probes


async def answered(client: PlainClient, config: dict[str, object]) -> dict[str, object]:
    """A server that has no leader yet may not answer."""
    try:
        async with asyncio.timeout(6):
            return await client.api("STREAM.CREATE.Q", config)
    except TimeoutError:
        return {"error": "no answer"}


@dataclass(frozen=True, slots=True)
class Row:
    attack: str
    server: str
    figures: dict[str, tuple[float, float, float]]
    memory_mb: tuple[float, float, float]
    note: str
    steps: str = ""

    def text(self) -> str:
        cells = [f"{one:.1f}/{two:.0f}/{three:.0f}" for one, two, three in self.figures.values()]
        memory = "/".join(f"{mb:.0f}" for mb in self.memory_mb)
        return f"| {self.attack} | {self.server} | {' | '.join(cells)} | {memory} | {self.note} |"


def told_steps(path: Path, skipped: int) -> str:
    """The longest steps and turns that the first server told after so many lines."""
    if not path.exists():
        return ""
    lines = [json.loads(line) for line in path.read_text().splitlines()[skipped:]]
    words = []
    for kind in ("turn", "step"):
        found = sorted((one for one in lines if one["kind"] == kind), key=lambda one: -one["ms"])
        words.append(f"{len(found)} long {kind}s" + (f", {found[0]['ms']} ms" if found else ""))
        seen: dict[str, float] = {}
        for one in found:
            for place in one["where"][:1]:
                seen.setdefault(place, one["ms"])
        words += [f"\n    {ms} ms {place}" for place, ms in list(seen.items())[:6]]
    return "; ".join(words)


async def measure(kind: str, attack: str, options: argparse.Namespace) -> Row:
    seconds, nodes = options.seconds, options.nodes
    settle_s = options.settle if kind == OURS else 0.0
    directory = Path(tempfile.mkdtemp(prefix="neighbours"))
    servers, port, doors = start_servers(
        kind, directory, nodes, options.steps, CONFIGS.get(attack, "")
    )
    told = directory / "0" / STEPS
    server = servers[0]
    attacker: asyncio.subprocess.Process | None = None
    try:
        probes = await quiet_probes(port, nodes)
        attacker = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--attack", attack, "--port", str(port),
            "--seconds", str(seconds), "--nodes", str(nodes), "--doors", json.dumps(doors),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert attacker.stdout is not None
        assert attacker.stdin is not None
        if not (await attacker.stdout.readline()).startswith(b"ready"):
            raise RuntimeError(f"the attack {attack} could not be prepared")
        before, peak = memory_mb(server.pid), 0.0
        skipped = len(told.read_text().splitlines()) if told.exists() else 0
        attacker.stdin.write(b"go\n")
        until = time.perf_counter() + seconds
        tasks = [asyncio.create_task(probe.run(until)) for probe in probes.values()]
        while not all(task.done() for task in tasks):
            peak = max(peak, memory_mb(server.pid))
            await asyncio.sleep(0.05)
        note = (await attacker.stdout.readline()).decode().strip()
        settled = time.perf_counter() + settle_s
        while memory_mb(server.pid) > before + BACK_MB and time.perf_counter() < settled:
            await asyncio.sleep(0.2)
        memory = (before, peak, memory_mb(server.pid))
        figures = {name: probe.figures() for name, probe in probes.items()}
        for probe in probes.values():
            await probe.client.close()
        return Row(attack, kind, figures, memory, note, told_steps(told, skipped))
    finally:
        if attacker is not None and attacker.returncode is None:
            attacker.kill()
        for one in servers:
            one.kill()
            one.wait()
        shutil.rmtree(directory, ignore_errors=True)


def missed(ours: Row, peer: Row | None) -> list[str]:
    """The figures that miss their goal, as sentences of a few words."""
    found = []
    for name, (_, p99, worst) in ours.figures.items():
        theirs = peer.figures[name] if peer is not None else (P99_MS, P99_MS, WORST_MS)
        for what, figure, bound, other in (
            ("p99", p99, P99_MS, theirs[1]),
            ("worst", worst, WORST_MS, theirs[2]),
        ):
            if figure > bound:
                found.append(f"{name} {what} {figure:.0f} ms, bound {bound:.0f}")
            elif figure > PEER_FACTOR * other:
                found.append(f"{name} {what} {figure:.1f} ms, nats-server {other:.1f}")
    before, peak, after = ours.memory_mb
    if peak - before > GROWTH_MB:
        found.append(f"memory grew by {peak - before:.0f} MB")
    if after - before > BACK_MB:
        found.append(f"memory {after - before:.0f} MB above the start")
    return found


async def compare(options: argparse.Namespace) -> None:
    names = [name for name in ATTACKS if any(text in name for text in options.only or [""])]
    print("ms: p50/p99/worst; MB: before/peak/after")
    print("| attack | server | PING | publish | get | MB | attacker |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    kinds = (OURS,) if options.ours_only else (OURS, PEER)
    for name in names:
        rows: dict[str, Row] = {}
        for kind in kinds:
            try:
                row = await measure(kind, name, options)
            except (RuntimeError, OSError, TimeoutError) as problem:
                print(f"| {name} | {kind} | failed: {problem!r} |", flush=True)
            else:
                print(row.text(), flush=True)
                if row.steps:
                    print(f"  {row.steps}", flush=True)
                rows[kind] = row
        if OURS in rows and (found := missed(rows[OURS], rows.get(PEER))):
            print(f"  misses: {'; '.join(found)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--settle", type=float, default=30.0)
    parser.add_argument("--only", action="append")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--attack")
    parser.add_argument("--port", type=int)
    parser.add_argument("--doors", type=json.loads)
    options = parser.parse_args()
    if options.attack:
        attack_main(options.attack, options.port, options.seconds, options.nodes, options.doors)
    else:
        asyncio.run(compare(options))


if __name__ == "__main__":
    main()
