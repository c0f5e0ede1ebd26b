"""docs/cli.md: its tables of commands run as they stand, and it names every command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from broker.cli.main import COMMANDS, cli
from tests.support.jetraft_command import as_json, jetraft

TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def rows(title: str) -> list[str]:
    """Our commands of the table under this heading."""
    section = TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    found = re.findall(r"\| `jetraft (.+)` \|$", section, re.MULTILINE)
    assert found
    return found


@pytest.mark.parametrize("title", ["For users of the tech preview", "For users of `nats`"])
def test_every_row_runs(url: str, title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in as_json(url, "stream", "ls", "--names"):
        jetraft(url, "stream", "rm", name)
    monkeypatch.setenv("NATS_URL", url)
    for row in rows(title):
        result = CliRunner().invoke(cli, shlex.split(row))
        assert result.exit_code == 0, f"{row}: {result.output}"


def test_every_command_is_in_the_document() -> None:
    section = TEXT.split("\n## Commands\n")[1].split("\n## ")[0]
    words = set(re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`]+)`", section))))
    assert not set(COMMANDS) - words
    context = click.Context(cli)
    for name in ("stream", "consumer", "server", "account", "bench", "context", "scan", "migrate"):
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            assert not set(command.list_commands(context)) - words, name
