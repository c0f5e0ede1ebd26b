"""Runs the official command-line tool `nats`, which must be on the PATH or named by NATS_CLI."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import IO, Any

import pytest

WITHIN_S = 30.0
TOOL = os.environ.get("NATS_CLI") or shutil.which("nats")

needs_the_tool = pytest.mark.skipif(
    TOOL is None, reason="the nats command-line tool is not installed"
)


@dataclass(slots=True)
class Cli:
    """The tool, connected to one server, with its own home directory."""

    url: str
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        own = {"HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home), "NATS_URL": self.url}
        return {**os.environ, **own}

    def command(self, *arguments: str) -> list[str]:
        assert TOOL is not None
        return [TOOL, *arguments]

    def __call__(self, *arguments: str, text: str | None = None) -> str:
        """Run it and return its output; fails the test if the command fails."""
        done = subprocess.run(
            self.command(*arguments),
            env=self.environment,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, f"nats {' '.join(arguments)}: {done.stdout}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    @contextmanager
    def running(self, *arguments: str) -> Iterator[IO[str]]:
        """Its output while it runs; it is killed at the end, or after WITHIN_S."""
        with subprocess.Popen(
            self.command(*arguments),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            limit = Timer(WITHIN_S, process.kill)
            limit.start()
            try:
                yield process.stdout
            finally:
                limit.cancel()
                process.kill()

    def on_a_terminal(self, *arguments: str) -> str:
        """For commands that need a terminal."""
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            self.command(*arguments),
            env={**self.environment, "TERM": "dumb"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        ) as process:
            os.close(theirs)
            shown = _read_all(ours)
            assert process.wait(WITHIN_S) == 0, shown
        return shown.decode()


def _read_all(terminal: int) -> bytes:
    shown = b""
    while select.select([terminal], [], [], WITHIN_S)[0]:
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # the command has ended
            break
    os.close(terminal)
    return shown
