"""`jetraft chaos`: inject real or simulated failures and check the result.

Owns: the options. The runs are in the chaos package.
May not touch: processes that the runs did not start."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from broker.cli.end_by_signal import end_by_signal, run_to_end
from broker.cli.lazy import CommandGroup
from broker.cli.output.progress import progress_told

if TYPE_CHECKING:
    from chaos.campaign.campaign import CampaignSettings

T = TypeVar("T")
RATE_MAX = 200  # of publishes in a run by plan: there is other work, too
NODES_LEAST = 3
LOGIN = re.compile(r"//[^@/,]*@")  # of a URL
SHRUNK_MAX = 3  # failing seeds that are shrunk and told; the others are only named


@click.group(cls=CommandGroup)
def chaos() -> None:
    """Kill and pause nodes under load, and check that no acknowledged message is lost."""


@chaos.command("run", short_help="Inject faults under load, and check every ack afterwards.")
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
    help="Number of nodes, for `all`, single faults and kill-rounds (1: a single server).",
)  # fmt: skip
@click.option("--seed", type=int, help="Determines faults, nodes and times. Random if not given.")
@click.option(
    "--storage", default="file", show_default=True, type=click.Choice(["file", "memory"]),
    help="Storage of the stream; a memory stream does not survive all-kill. Not for kill-rounds.",
)  # fmt: skip
@click.option(
    "--minutes", default=1.0, show_default=True, type=click.FloatRange(0.1),
    help="For `all` and single faults: how long to inject faults.",
)  # fmt: skip
@click.option(
    "--report", type=click.Path(path_type=Path, file_okay=False),
    help="For `all` and single faults: write report.html, report.json and junit.xml here.",
)  # fmt: skip
@click.option(
    "--servers", help="For `all` and single faults: test this running cluster (URLs, with commas)."
)
@click.option("--kube", help="With --servers: delete pods in this namespace as faults.")
@click.option(
    "--fault-command",
    help="With --servers: a command that restarts a node, with {node} for its name.",
)
@click.option(
    "--previous", type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="For `all` and upgrade: a directory with the packages of the previous version.",
)  # fmt: skip
@click.option(
    "--peer", type=click.Choice(["nats-server"]), help="Run it against nats-server instead."
)
@click.option("--nats-server", is_flag=True, help="The same as --peer nats-server.")
@click.option(
    "--standby", default=3, show_default=True, type=click.IntRange(0, 5),
    help="Number of nodes in a second cluster that holds a mirror; 0: none.",
)  # fmt: skip
@click.option(
    "--journal",
    type=click.Path(path_type=Path),
    help="Write every operation and its result to this file.",
)
def chaos_run(
    *, scenario: str, rate: int, rounds: int, seconds: float, nodes: int, seed: int | None,
    storage: str, minutes: float, report: Path | None, nats_server: bool, journal: Path | None,
    servers: str | None, kube: str | None, fault_command: str | None, previous: Path | None,
    peer: str | None, standby: int,
) -> None:  # fmt: skip
    """Run SCENARIO: leader-kill, follower-kill, pause, all-kill, power-cut or kill-rounds; or `all`
    kinds of faults by a seeded plan, or some of them, with commas (an unknown name lists them)."""
    from broker.bench.peers import nats_server_command
    from chaos import disks
    from chaos.campaign.plan import KINDS
    from chaos.checker import Verdict
    from chaos.kill_rounds import KillReport, run_kill_rounds
    from chaos.scenarios import SCENARIOS, Settings, run_scenario

    described = {name: text for name, (_, text) in SCENARIOS.items()}
    described["kill-rounds"] = "kill -9 one, two or all nodes at random moments, --rounds times"
    described["all"] = "faults of all kinds below, by a plan that follows from --seed"
    described |= {kind.name: kind.text for kind in KINDS.values()}
    by_plan = scenario == "all" or all(name in KINDS for name in scenario.split(","))
    if scenario not in described and not by_plan:
        known = "\n".join(f"  {name:18} {text}" for name, text in described.items())
        raise click.UsageError(f'no scenario "{scenario}"; choose from\n{known}')
    if by_plan:
        run_by_plan(
            PlanOptions(
                scenario, minutes=minutes, nodes=nodes, seed=seed, rate=min(rate, RATE_MAX),
                previous=previous, peer=nats_server or peer is not None, servers=servers,
                kube=kube, fault_command=fault_command, standby=standby,
            ),
            report,
        )  # fmt: skip
        return
    if servers:
        raise click.UsageError("--servers goes with `all` and with faults by plan")
    if scenario == "power-cut" and (reason := disks.missing()):
        raise click.ClickException(f"power-cut {reason}")
    settings = Settings(
        scenario, rate=rate, rounds=rounds, fault_seconds=seconds, report=journal,
        nodes=nodes, seed=seed, storage=storage,
        command=tuple(nats_server_command()) if nats_server or peer else None,
    )  # fmt: skip
    verdict: KillReport | Verdict
    if scenario == "kill-rounds":
        verdict = _to_end(run_kill_rounds(settings, click.echo))
    else:
        verdict = _to_end(run_scenario(settings, click.echo))
    for line in verdict.lines():
        click.echo(line)
    if not verdict.ok:
        raise SystemExit(1)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """As given on the command line."""

    scenario: str
    minutes: float
    nodes: int
    seed: int | None
    rate: int
    previous: Path | None
    peer: bool  # nats-server
    servers: str | None
    kube: str | None
    fault_command: str | None
    standby: int = 0

    def command(self, seed: int) -> str:
        """That repeats the run."""
        words = [f"jetraft chaos run {self.scenario} --minutes {self.minutes:g} --seed {seed}"]
        if self.servers is None:
            words.append(f"--nodes {self.nodes}")
            words += [f"--standby {self.standby}"] * (not self.peer)
        words.append(f"--rate {self.rate}")
        words += ["--peer nats-server"] * self.peer
        for name in ("servers", "kube", "fault_command", "previous"):
            if (value := getattr(self, name)) is not None:
                shown = LOGIN.sub("//...@", str(value))  # the report is shown to others
                words.append(f"--{name.replace('_', '-')} {shlex.quote(shown)}")
        return " ".join(words)


def run_by_plan(options: PlanOptions, report: Path | None) -> None:
    from broker.bench.peers import nats_server_command
    from chaos.campaign.campaign import (
        CampaignSettings,
        kinds_of,
        random_seed,
        replicas_for,
    )
    from chaos.campaign.foreign_target import ForeignSettings
    from chaos.campaign.local_target import LocalSettings
    from chaos.campaign.plan import KINDS

    foreign = None
    if options.servers is not None:
        if (options.kube is None) == (options.fault_command is None):
            raise click.UsageError("--servers needs --kube or --fault-command, one of them")
        urls = tuple(one.strip() for one in options.servers.split(",") if one.strip())
        foreign = ForeignSettings(urls, options.kube, options.fault_command)
    elif options.kube is not None or options.fault_command is not None:
        raise click.UsageError("--kube and --fault-command go with --servers")
    if options.nodes < NODES_LEAST:
        raise click.UsageError(f"faults by plan need --nodes {NODES_LEAST} or more")
    if options.previous is not None and not (options.previous / "broker" / "__init__.py").exists():
        raise click.UsageError(f"--previous: there is no package broker in {options.previous}")
    seed = random_seed() if options.seed is None else options.seed
    kinds = kinds_of(options.scenario)
    second = not options.peer and any(KINDS[kind].standby for kind in kinds)
    local = LocalSettings(
        options.nodes, previous=options.previous, standby=options.standby if second else 0,
        peer=tuple(nats_server_command()) if options.peer else None,
    )  # fmt: skip
    settings = CampaignSettings(
        kinds, seconds=60 * options.minutes, limit_s=60 * options.minutes, seed=seed,
        rate=options.rate, replicas=replicas_for(options.nodes), local=local, foreign=foreign,
        command=options.command(seed),
    )  # fmt: skip
    _campaign(settings, report)


@contextmanager
def errors_only() -> Iterator[None]:
    """Readers that try the next replica log a warning; here this is the purpose."""
    logger = logging.getLogger("jetraft")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _to_end(run: Coroutine[Any, Any, T]) -> T:
    """A run to its end, or to a signal; what it cannot do is told in a sentence."""
    from broker.local import NodeFailed
    from chaos.campaign.machines.network import NetworkFailed

    try:
        with errors_only(), end_by_signal():
            return run_to_end(run)
    except (NodeFailed, NetworkFailed, OSError) as error:
        raise click.ClickException(str(error) or type(error).__name__) from error


def _campaign(settings: CampaignSettings, report: Path | None) -> None:
    from chaos.campaign.campaign import run_campaign
    from chaos.campaign.report import write_report

    record = _to_end(run_campaign(settings, click.echo))
    for line in record.verdict.lines():
        click.echo(line)
    for line in record.not_tried:
        click.echo(f"not tried: {line}")
    if report is not None:
        click.echo(f"report: {write_report(record, report)}")
    click.echo(f"repeat it: {record.command}")
    if not record.ok:
        raise SystemExit(1)


@chaos.command("self-test")
@click.argument("bugs", nargs=-1)
@click.option("--verbose", is_flag=True, help="Print the output of the runs.")
def chaos_self_test(*, bugs: tuple[str, ...], verbose: bool) -> None:
    """Plant BUGS (default: all known ones) in the brokers of a run, one at a time, and check that
    the run reports each of them."""
    from chaos.campaign.self_test import PLANTED, find, not_possible

    known = {planted.bug: planted for planted in PLANTED}
    for name in bugs:
        if name not in known:
            raise click.UsageError(f'no bug "{name}"; choose from: {", ".join(known)}')
    missed = 0
    for name in bugs or known:
        planted = known[name]
        if reason := not_possible(planted):
            click.echo(f"not tried: {name}: {reason}")
            continue
        record = _to_end(find(planted, click.echo if verbose else lambda _: None))
        if record is None:
            missed += 1
            click.echo(f"NOT FOUND: {name} (faults: {planted.fault})")
        else:
            found = next(iter(record.verdict.anomalies.items()))
            click.echo(f"found: {name} (faults: {planted.fault}): {found[0]}: {found[1][0]}")
    if missed:
        raise SystemExit(1)


@chaos.command("damage")
@click.option(
    "--rounds",
    default=50,
    show_default=True,
    type=click.IntRange(1),
    help="How many times to damage a file.",
)
@click.option("--seed", type=int, help="Determines nodes, files and offsets. Random if not given.")
def chaos_damage(*, rounds: int, seed: int | None) -> None:
    """Damage random files of one node of three, and check that it heals by itself."""
    import random

    from chaos.damage_rounds import run_damage_rounds

    chosen = seed if seed is not None else random.randrange(10**6)
    report = _to_end(run_damage_rounds(seed=chosen, rounds=rounds, say=click.echo))
    for line in report.lines():
        click.echo(line)
    if not report.ok:
        raise SystemExit(1)


@chaos.command("sim")
@click.option(
    "--seeds", default=200, show_default=True, type=click.IntRange(1),
    help="How many seeds to run; each is one simulated cluster.",
)  # fmt: skip
@click.option("--first", default=1, show_default=True, help="The first seed.")
@click.option(
    "--seed", type=int, default=None, help="Replay one seed and print what happens, step by step."
)
@click.option(
    "--faults", default=None, help="With --seed: inject only these faults, by number (0,3,7)."
)
@click.option("--workload", multiple=True, help="Run only this workload; may be repeated.")
@click.option("--bug", default=None, help="With --seed: plant this bug in the broker.")
@click.option(
    "--shrink", is_flag=True, help="With --seed: find the smallest set of faults that still fails."
)
@click.option(
    "--jobs", default=2, show_default=True, type=click.IntRange(1, 64), help="Number of processes."
)
@click.option(
    "--raft", is_flag=True, help="Simulate Raft alone, with messages lost, repeated and reordered."
)
def chaos_sim(
    *, seeds: int, first: int, seed: int | None, faults: str | None, workload: tuple[str, ...],
    bug: str | None, shrink: bool, jobs: int, raft: bool,
) -> None:  # fmt: skip
    """Run whole clusters of brokers on virtual time, with faults, and check every promise."""
    if raft and workload:
        raise click.UsageError("--workload is work of whole brokers; --raft runs Raft alone")
    if (raft or seed is None) and (faults is not None or bug is not None or shrink):
        raise click.UsageError("--faults, --bug and --shrink belong to one run: add --seed")
    _known_workloads(workload)
    if raft:
        _simulate_raft(seeds, first, seed, jobs)
    elif seed is None:
        _simulate_brokers(seeds, first, jobs, workload or None)
    else:
        _replay(seed, faults=faults, workloads=workload, bug=bug, shrink=shrink)


def _known_workloads(names: tuple[str, ...]) -> None:
    from chaos.sim.broker.workloads import WORKLOADS

    for name in names:
        if name not in WORKLOADS:
            raise click.UsageError(f'no workload "{name}"; choose from: {", ".join(WORKLOADS)}')


def _replay(
    seed: int, *, faults: str | None, workloads: tuple[str, ...], bug: str | None, shrink: bool
) -> None:
    from chaos.sim.broker.planted_bugs import BROKER_BUGS
    from chaos.sim.broker.report import Replay, replay_report, shrunk_report

    if bug is not None and bug not in BROKER_BUGS:
        raise click.UsageError(f'no bug "{bug}"; choose from: {", ".join(BROKER_BUGS)}')
    kept = None if faults is None else tuple(int(one) for one in faults.split(",") if one.isdigit())
    replay = Replay(seed, kept, workloads or None, bug)
    ok, text = replay_report(replay)
    click.echo(shrunk_report(replay) if shrink and not ok else text)
    raise SystemExit(0 if ok else 1)


def _simulate_brokers(seeds: int, first: int, jobs: int, workloads: tuple[str, ...] | None) -> None:
    from chaos.sim.broker.report import Replay, shrunk_report
    from chaos.sim.broker.run import survey_brokers

    with progress_told("simulated", seeds) as tell:
        survey = survey_brokers(range(first, first + seeds), jobs, tell, workloads=workloads)
    for failure in survey.failures[:SHRUNK_MAX]:
        click.echo(shrunk_report(Replay(failure.seed, workloads=workloads)))
    for failure in survey.failures[SHRUNK_MAX:]:
        click.echo(f"seed {failure.seed}: {failure.violation}")
    reached = sorted(survey.counters.items())
    click.echo("reached: " + ", ".join(f"{name} ({count})" for name, count in reached))
    click.echo("not reached by any seed:")
    for mark in survey.unreached():
        click.echo(f"  {mark}")
    clean = seeds - len(survey.failures)
    click.echo(f"{clean} of {seeds} seeds clean (from {first}), {survey.virtual_seconds:.0f} "
               "simulated seconds")  # fmt: skip
    if survey.failures:
        raise SystemExit(1)


def _simulate_raft(seeds: int, first: int, seed: int | None, jobs: int) -> None:
    from chaos.sim.consensus.run import run_seed, run_seeds

    if seed is not None:
        outcome = run_seed(seed, trace=True)
        click.echo(outcome.report())
        raise SystemExit(0 if outcome.ok else 1)
    with progress_told("simulated", seeds) as tell:
        failures = run_seeds(first, seeds, jobs, tell)
    for failure in failures:
        click.echo(failure.report())
    click.echo(f"{seeds - len(failures)} of {seeds} seeds clean (from {first})")
    if failures:
        raise SystemExit(1)
