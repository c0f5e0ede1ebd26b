"""The table of promises in ARCHITECTURE.md: it names every planted bug, and files that exist."""

from __future__ import annotations

import re
from pathlib import Path

from chaos.sim.broker.planted_bugs import BROKER_BUGS
from chaos.sim.consensus.planted_bugs import PLANTED_BUGS

ROOT = Path(__file__).resolve().parents[2]
HOMES = ("", "chaos/sim/promises")


def _rows() -> list[list[str]]:
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    table = text.partition("## Invariants\n")[2].partition("\n## ")[0]
    rows = [line[1:-1].split("|") for line in table.splitlines() if line.startswith("| ")]
    assert {len(row) for row in rows} == {3}
    return rows[2:]


def test_every_planted_bug_guards_a_promise() -> None:
    named = " ".join(row[2] for row in _rows())
    broker, raft = set(re.findall(r'"([^"]+)"', named)), set(re.findall(r"`([^`]+)`", named))
    assert broker == BROKER_BUGS.keys(), "docs/ARCHITECTURE.md, the table of promises"
    assert raft == PLANTED_BUGS.keys(), "docs/ARCHITECTURE.md, the table of promises"


def test_the_checks_of_the_promises_exist() -> None:
    for row in _rows():
        for name in re.findall(r"`([a-z_/]+\.py)`", row[1]):
            assert any((ROOT / home / name).exists() for home in HOMES), name
