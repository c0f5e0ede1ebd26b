"""Scenarios with the official `nats` tool as the client: the first benchmark of many users.

Owns: the command lines, and reading the rates from what the tool prints.
May not touch: which servers run it, how often, what is printed.
The tool is not part of this project: without it on the PATH these scenarios raise ToolMissing."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence

from broker.bench.load import Load
from broker.bench.scenarios import Figures, Run, measured
from broker.local import LocalCluster

WITHIN_S = 300.0
FILL = "bench js pub async fill --create --clients 4 --msgs 100000 --stream FILLED --no-progress"
_RATE = re.compile(r"([\d,]+) msgs/sec")


class ToolMissing(FileNotFoundError):
    """The `nats` command is not installed."""


def is_installed() -> bool:
    return shutil.which("nats") is not None


def tool(cluster: LocalCluster, *arguments: str) -> str:
    """What the tool prints. Raises RuntimeError if it fails."""
    found = shutil.which("nats")
    if found is None:
        raise ToolMissing("the official `nats` tool is not on the PATH")
    command = [found, "--no-context", "-s", cluster.nodes[0].url, *arguments]
    done = subprocess.run(  # noqa: S603 - a fixed command line
        command, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"nats {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def rate_of(printed: str) -> float:
    """The rate of all clients together: the line that says so, or the only one."""
    lines = [line for line in printed.splitlines() if _RATE.search(line)]
    chosen = [line for line in lines if "aggregated" in line.lower()] or lines
    found = _RATE.search(chosen[0]) if chosen else None
    if found is None:
        raise RuntimeError(f"the tool printed no rate: {printed}")
    return float(found.group(1).replace(",", ""))


def bench(command: str, *, messages: int, before: Sequence[str] = ()) -> Run:
    """`nats bench COMMAND`, after these commands. `messages`: how many the CPU time is for."""

    def run(cluster: LocalCluster) -> Figures:
        for line in before:
            tool(cluster, *line.split())
        rates: list[float] = []

        def work() -> Load:
            rates.append(rate_of(tool(cluster, "bench", *command.split(), "--no-progress")))
            return Load(messages, messages / rates[0])

        return measured(cluster, work)

    return run
