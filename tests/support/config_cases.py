"""Reads the tables of refused requests in tests/jetstream/config/cases.

A case is a line with the request; indented below it are the error code and description."""

from __future__ import annotations

from pathlib import Path

CASES = Path(__file__).parents[1] / "jetstream" / "config" / "cases"


def refusals(file_name: str) -> list[tuple[str, int, str]]:
    cases: list[tuple[str, int, str]] = []
    request = ""
    for line in (CASES / file_name).read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            request = line
            continue
        code, description = line.strip().split(" ", 1)
        cases.append((request, int(code), description))
    return cases
