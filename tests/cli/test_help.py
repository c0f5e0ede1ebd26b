"""The jetraft command: the help lists and explains every command and option."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from broker.cli.main import COMMANDS, cli, main
from chaos.sim.broker.plan import Plan
from chaos.sim.broker.run import RunOutcome


def commands(
    group: click.Group = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, f"{name} is listed but does not exist"
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


EVERYTHING = dict(commands())
ALL = pytest.mark.parametrize("path", EVERYTHING, ids=" ".join)


def run(*words: str) -> str:
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_help_lists_every_command() -> None:
    shown = run("--help")
    assert run("-h") == shown
    lines = [line.split() for line in shown.splitlines() if line.startswith("  ")]
    listed = [words[0] for words in lines if words and words[0] in COMMANDS]
    assert listed == list(COMMANDS)
    assert {path[0] for path in EVERYTHING} == set(COMMANDS)
    for name, (_, text) in COMMANDS.items():
        assert text.endswith("."), name
        assert " ".join(text.split()[:4]) in shown
    assert "jetraft stream add" in shown  # the first step
    assert "\nError" not in shown


def test_without_a_command_the_help_is_shown() -> None:
    result = CliRunner().invoke(cli, [])
    assert "Commands:" in result.output


@ALL
def test_every_command_says_what_it_does(path: tuple[str, ...]) -> None:
    command = EVERYTHING[path]
    assert command.help, "no help text"
    assert command.help.strip()[0].isupper()
    assert command.help.strip().endswith(".")
    assert not command.deprecated


@ALL
def test_every_option_says_what_it_means(path: tuple[str, ...]) -> None:
    for parameter in EVERYTHING[path].params:
        if isinstance(parameter, click.Option) and parameter.name != "help":
            assert parameter.help, f"{' '.join(path)} {parameter.opts[0]}"


@ALL
def test_every_help_can_be_shown(path: tuple[str, ...]) -> None:
    if path == ("serve",):
        return  # nats-server's own flags: below
    shown = run(*path, "--help")
    assert shown.startswith(f"Usage: cli {' '.join(path)}")
    command = EVERYTHING[path]
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            assert f"\n  {name} " in shown
        assert "..." not in shown.partition("\n")[2], "a sentence is cut"


@pytest.mark.parametrize("path", [("bench", "pub"), ("chaos",)])
def test_the_help_fits_a_narrow_terminal(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    command = EVERYTHING[path]
    shown = command.get_help(click.Context(command, info_name="jetraft"))
    assert max(map(len, shown.splitlines())) <= 40


def test_help_is_a_word_too() -> None:
    assert run("help") == run("--help")
    assert run("help", "stream", "add") == run("stream", "help", "add")
    assert run("help", "stream", "add") == run("stream", "add", "--help")


def test_ctrl_c_at_a_question_has_the_exit_code_of_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.cli.output.questions.can_ask", lambda: True)
    result = CliRunner().invoke(cli, ["stream", "add"], input="")
    assert "Name:" in result.output
    assert result.exit_code == 130


def test_groups_have_the_verbs_a_user_expects() -> None:
    verbs: dict[str, set[str]] = {}
    for path in EVERYTHING:
        if len(path) == 2:
            verbs.setdefault(path[0], set()).add(path[1])
    assert verbs["stream"] == {
        "add", "edit", "copy", "ls", "report", "find", "info", "purge", "seal", "rm", "view", "get",
        "rm-msg", "verify", "backup", "restore", "cluster",
    }  # fmt: skip
    assert verbs["consumer"] == {
        "add", "edit", "copy", "ls", "report", "info", "next", "sub", "pause", "resume", "rm",
    }  # fmt: skip
    assert verbs["chaos"] == {"damage", "run", "self-test", "sim"}
    assert {"pub", "peers"} <= verbs["bench"]


def test_serve_shows_the_flags_of_the_server(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["jetraft", "serve", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    direct = capfd.readouterr().out
    for flag in ("--jetstream", "--config", "--cluster", "--routes", "--store_dir"):
        assert flag in direct
    with pytest.raises(SystemExit):
        cli(["serve", "--help"])  # through the command tree it is the same
    assert capfd.readouterr().out == direct


def test_the_version_is_shown() -> None:
    assert run("--version").strip().split()[-1][0].isdigit()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nonsense"], "No such command"),
        (["strem", "ls"], "No such command 'strem'. Did you mean 'stream'?"),
        (["kv", "lst"], "No such command 'lst'. Did you mean 'ls'?"),
        (["help", "nonsense"], "No such command 'nonsense'"),
        (["stream", "add"], "Missing argument 'NAME'"),
        (["stream", "add", "S"], "Missing option '--subjects'"),
        (["stream", "get", "S", "first"], "not a valid integer"),
        (["consumer", "add", "S", "C", "--deliver", "sometime"], "is not one of"),
        (["chaos", "run", "earthquake"], 'no scenario "earthquake"'),
        (["pub", "a", "b", "--header", "nothing"], '"nothing" is not Name:value'),
        (["pub", "a.*", "b"], '"a.*" is not a valid subject to publish to'),
        (["pub", "a..b", "b"], '"a..b" is not a valid subject to publish to'),
        (["stream", "add", "S", "--subjects", "s", "--replicas", "0"], "0 is not in the range"),
        (["stream", "add", "S", "--subjects", "s", "--max-msgs", "-5"], "-5 is not in the range"),
        (["stream", "add", "S", "--subjects", "s", "--max-age", "-1"], '"-1" is not a duration'),
        (["stream", "add", "S", "--subjects", "s", "--max-bytes", "9x"], '"9x" is not a size'),
        (["stream", "get", "S"], "give SEQUENCE or --last"),
        (["stream", "purge", "S", "--seq", "1", "--keep", "1"], "exclude each other"),
        (["consumer", "add", "S"], "Missing argument 'NAME'"),
        (["consumer", "add", "S", "C", "--backoff", "1s,x"], '"x" is not a duration'),
        (["consumer", "pause", "S", "C", "soon"], "neither a time nor a duration"),
        (["reply", "a"], "give MESSAGE, --echo or --command"),
        (["stream", "get", "S", "0"], "0 is not in the range"),
        (["consumer", "next", "S", "C", "--count", "0"], "0 is not in the range"),
        (["consumer", "next", "S", "C", "--timeout", "-1"], '"-1" is not a duration'),
        (["consumer", "add", "S", "C", "--ack-wait", "0"], '"0" is no time at all'),
        (["pub", "a", "b", "--count", "-2"], "-2 is not in the range"),
        (["pub", "a", "b", "--count", "0"], "0 is not in the range"),
        (["sub", "a", "--count", "0"], "0 is not in the range"),
        (["bench", "pub", "--count", "0"], "0 is not in the range"),
        (["bench", "pub", "--window", "0"], "0 is not in the range"),
        (["bench", "peers", "--rounds", "0"], "0 is not in the range"),
        (["chaos", "sim", "--seeds", "0"], "0 is not in the range"),
        (["chaos", "sim", "--seeds", "9", "--workload", "rest"], 'no workload "rest"'),
        (["chaos", "sim", "--seeds", "9", "--bug", "any"], "belong to one run: add --seed"),
        (["chaos", "sim", "--raft", "--workload", "batches"], "--raft runs Raft alone"),
        (["chaos", "run", "kill-rounds", "--nodes", "0"], "0 is not in the range"),
        (["up", "--nodes", "0"], "0 is not in the range"),
    ],
)
def test_mistakes_are_reported_in_a_sentence(words: list[str], sentence: str) -> None:
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


@ALL
def test_the_help_names_the_environment_variable_of_the_server(path: tuple[str, ...]) -> None:
    command = EVERYTHING[path]
    if any("--server" in parameter.opts for parameter in command.params) and path[0] != "context":
        shown = run(*path, "--help")
        for variable in ("NATS_URL", "NATS_CREDS", "NATS_CONTEXT"):
            assert variable in shown


def test_an_unreachable_server_is_one_line_of_error() -> None:
    result = CliRunner().invoke(cli, ["stream", "ls", "-s", "nats://127.0.0.1:1"])
    assert result.exit_code == 3
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1
    assert "127.0.0.1:1" in result.output


def test_down_where_nothing_was_started(tmp_path: Path) -> None:
    assert run("down", "--dir", str(tmp_path)).strip() == "nothing was running"
    result = CliRunner().invoke(cli, ["down", "n1", "--dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "n1 is not running here" in result.output


def test_one_simulated_seed_is_reported() -> None:
    result = CliRunner().invoke(cli, ["chaos", "sim", "--seed", "1"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "verdict: every promise was kept" in result.output


def test_many_seeds_run_the_chosen_work_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []

    def run_broker_seed(seed: int, *, plan: Plan, tell: bool = False) -> RunOutcome:
        ran.append(plan.workloads)
        return RunOutcome(seed, plan, "", 1.0, 1, Counter())

    monkeypatch.setattr("chaos.sim.broker.run.run_broker_seed", run_broker_seed)
    words = ["chaos", "sim", "--seeds", "3", "--jobs", "1", "--workload", "batches"]
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert ran == [("batches",)] * 3


def test_one_simulated_seed_of_raft_alone_is_reported() -> None:
    arguments = ["chaos", "sim", "--seed", "1", "--raft"]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "seed 1: clean" in result.output
    assert "replay" not in result.output  # this run is the replay, and it found nothing


def test_the_command_imports_only_what_it_needs() -> None:
    """Every command must start fast: no client library, no event loop, no progress bars."""
    script = (
        "import sys, broker.cli.main\n"
        "from broker.cli.main import cli\n"
        "try: cli(['stream', 'ls', '-s', 'nats://127.0.0.1:1'])\n"
        "except SystemExit as end: assert end.code == 3, end.code\n"
        "heavy = {'nats', 'asyncio', 'ssl', 'rich', 'msgspec', 'rocksdict', 'broker.bench'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"
