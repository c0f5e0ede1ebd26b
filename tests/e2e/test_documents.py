"""Runs the blocks of the documents for users, in order, on three nodes.

The ports of the documents are replaced by ports of this test (see test_readme.py)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clusters import port_for_up

DOCS = Path(__file__).parent.parent.parent / "docs"
BIN = Path(sys.executable).parent
FIRST_PORT = port_for_up()
EXPECTED = {
    "getting-started.md": ["good morning", "still here", "blue", "letter.txt"],
    "python.md": ["1 1 True", "2000 stored", "sent to: ada", "value is 9", "1 ['seq'"],
    "operations.md": ["entry 3"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("documents")
    shell(directory, [f"jetraft up --detach --port {FIRST_PORT}"])
    yield directory
    shell(directory, ["jetraft down"])


def shell(directory: Path, lines: list[str]) -> str:
    script = "\n".join(["set -e", *lines])
    environ = {
        **os.environ, "NATS_URL": f"nats://127.0.0.1:{FIRST_PORT}",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", script], cwd=directory, env=environ, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("name", EXPECTED)
def test_every_block_runs(place: Path, name: str) -> None:
    text = (DOCS / name).read_text()
    text = re.sub(r"\b422([234])\b", lambda port: str(FIRST_PORT + int(port[1]) - 2), text)
    exports: list[str] = []
    output = ""
    for kind, block in re.findall(r"```(console|python)\n(.*?)```", text, flags=re.DOTALL):
        if kind == "console":
            lines = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
            output += shell(place, [*exports, *lines])
            exports += [line for line in lines if line.startswith("export ")]
        else:
            (place / "block.py").write_text(block)
            output += shell(place, [f"{sys.executable} block.py"])
    for expected in EXPECTED[name]:
        assert expected in output, f"no {expected!r} in\n{output}"
