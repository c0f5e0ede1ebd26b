"""The jetraft command in the process of the test, and as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from click.testing import CliRunner

from broker.cli.main import cli


def jetraft(url: str, *words: str, code: int = 0, given: bytes | None = None) -> str:
    """What it prints, errors included."""
    result = CliRunner().invoke(cli, [*words, "-s", url], input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def as_json(url: str, *words: str) -> Any:
    return json.loads(jetraft(url, *words, "--json"))


def as_json_lines(url: str, *words: str) -> list[Any]:
    result = CliRunner().invoke(cli, [*words, "--json", "-s", url])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@contextmanager
def started(url: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on; it is killed at the end."""
    child = subprocess.Popen(
        [sys.executable, "-m", "broker", *words, "-s", url],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        yield child
    finally:
        child.kill()
        child.communicate()
