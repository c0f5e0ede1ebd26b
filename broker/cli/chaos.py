"""`jetraft chaos`: inject real or simulated failures and check the result.

Owns: the options. The runs are in the chaos package.
May not touch: processes that the runs did not start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from broker.cli.end_by_signal import end_by_signal


@click.group()
def chaos() -> None:
    """Kill and pause nodes under load, and check that no acknowledged message is lost."""


@chaos.command("run")
@click.argument("scenario")
@click.option(
    "--rate", default=1000, show_default=True, type=click.IntRange(1), help="Publishes per second."
)
@click.option(
    "--rounds", default=1, show_default=True, type=click.IntRange(1), help="Faults injected."
)
@click.option(
    "--seconds", default=3.0, show_default=True, type=click.FloatRange(0.0),
    help="How long the fault lasts.",
)  # fmt: skip
@click.option(
    "--nodes", default=3, show_default=True, type=click.IntRange(1, 9),
    help="kill-rounds: how many nodes; 1 is a single server.",
)  # fmt: skip
@click.option(
    "--seed", type=int, help="kill-rounds: chooses victims and moments. Random if not given."
)
@click.option(
    "--storage", default="file", show_default=True, type=click.Choice(["file", "memory"]),
    help="Storage of the stream; a memory stream does not survive all-kill. Not for kill-rounds.",
)  # fmt: skip
@click.option("--nats-server", is_flag=True, help="Run it against nats-server instead.")
@click.option("--journal", type=click.Path(path_type=Path), help="Write every promise to a file.")
def chaos_run(
    *, scenario: str, rate: int, rounds: int, seconds: float, nodes: int, seed: int | None,
    storage: str, nats_server: bool, journal: Path | None,
) -> None:  # fmt: skip
    """Run SCENARIO: leader-kill, follower-kill, pause, all-kill, power-cut or kill-rounds."""
    from broker.bench.peers import nats_server_command
    from chaos import disks
    from chaos.checker import Verdict
    from chaos.kill_rounds import KillReport, run_kill_rounds
    from chaos.scenarios import SCENARIOS, Settings, run_scenario

    described = {name: text for name, (_, text) in SCENARIOS.items()}
    described["kill-rounds"] = "kill -9 one, two or all nodes at random moments, --rounds times"
    if scenario not in described:
        known = "\n".join(f"  {name:14} {text}" for name, text in described.items())
        raise click.UsageError(f'no scenario "{scenario}"; choose from\n{known}')
    if scenario == "power-cut" and (reason := disks.missing()):
        raise click.ClickException(f"power-cut {reason}")
    settings = Settings(
        scenario, rate=rate, rounds=rounds, fault_seconds=seconds, report=journal,
        nodes=nodes, seed=seed, storage=storage,
        command=tuple(nats_server_command()) if nats_server else None,
    )  # fmt: skip
    verdict: KillReport | Verdict
    with end_by_signal():
        if scenario == "kill-rounds":
            verdict = asyncio.run(run_kill_rounds(settings, click.echo))
        else:
            verdict = asyncio.run(run_scenario(settings, click.echo))
    for line in verdict.lines():
        click.echo(line)
    if not verdict.ok:
        raise SystemExit(1)


@chaos.command("sim")
@click.option(
    "--seeds", default=200, show_default=True, type=click.IntRange(1),
    help="How many seeds; each is one simulated cluster.",
)  # fmt: skip
@click.option("--first", default=1, show_default=True, help="The first seed.")
@click.option("--seed", type=int, default=None, help="Replay one seed with a readable trace.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1, 64), help="Processes.")
def chaos_sim(*, seeds: int, first: int, seed: int | None, jobs: int) -> None:
    """Run whole Raft clusters on virtual time with crashes, lost messages and partitions."""
    from chaos.sim.run import run_seed, run_seeds

    if seed is not None:
        outcome = run_seed(seed, trace=True)
        click.echo(outcome.report())
        raise SystemExit(0 if outcome.ok else 1)
    from rich.progress import Progress

    with Progress() as progress:
        task = progress.add_task("simulating", total=seeds)
        failures = run_seeds(first, seeds, jobs, lambda done: progress.update(task, completed=done))
    for failure in failures:
        click.echo(failure.report())
    click.echo(f"{seeds - len(failures)} of {seeds} seeds clean (from {first})")
    if failures:
        raise SystemExit(1)
