"""Runs every block of the README, in order, on three nodes.

The ports of the README are replaced by ports of this test: a cluster that `make up` left running
must not make `make test` fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clusters import port_for_up

README = (Path(__file__).parent.parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```(console|python)\n(.*?)```", README, flags=re.DOTALL)
BIN = Path(sys.executable).parent
FIRST_PORT = port_for_up()


def with_own_ports(block: str) -> str:
    return re.sub(r"\b422([234])\b", lambda port: str(FIRST_PORT + int(port[1]) - 2), block)


def commands(block: str) -> list[str]:
    return [line[2:] for line in block.splitlines() if line.startswith("$ ")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("readme")
    shell(directory, [f"jetraft up --detach --port {FIRST_PORT}"], [])
    yield directory
    shell(directory, ["jetraft down"], [])


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "NATS_URL": f"nats://127.0.0.1:{FIRST_PORT}",  # in place of the default, port 4222
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
    }


def shell(directory: Path, lines: list[str], exports: list[str]) -> str:
    script = "\n".join(["set -e", *exports, *lines])
    done = subprocess.run(
        ["bash", "-c", script], cwd=directory, env=environment(), capture_output=True, text=True,
        timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_block_of_the_readme_runs(place: Path) -> None:
    assert len(BLOCKS) >= 5, "the README lost its blocks"
    exports: list[str] = []
    output: list[str] = []
    for kind, text in BLOCKS:
        block = with_own_ports(text)
        if kind == "console":
            lines = commands(block)
            output.append(shell(place, lines, exports))
            exports.extend(line for line in lines if line.startswith("export "))
        else:
            script = place / "block.py"
            script.write_text(block)
            output.append(shell(place, [f"{sys.executable} {script}"], exports))
    everything = "\n".join(output)
    assert "stored in ORDERS as 3" in everything
    assert "another order" in everything
    assert "published while a node is dead" in everything, "Spark shows that message"
    assert "verdict: every promise kept" in everything


def test_the_login_that_up_prints_is_that_of_an_operator(place: Path) -> None:
    said = shell(place, ["jetraft up --detach"], [])  # they are running: it says where
    line = next(line for line in said.splitlines() if line.startswith("operate with:"))
    shown = shell(place, [line.partition(":")[2]], [])
    assert "local-3" in shown
    assert "feature level" in shown
