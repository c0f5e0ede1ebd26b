"""A short run on real processes, and the network of namespaces under it."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack

import pytest
from nats.js.errors import ServerError, ServiceUnavailableError

from broker.cli.end_by_signal import run_to_end
from broker.local import NodeFailed
from chaos import disks
from chaos.campaign.campaign import Campaign, CampaignSettings, run_campaign
from chaos.campaign.foreign_target import ForeignSettings, ForeignTarget
from chaos.campaign.local_target import LocalSettings
from chaos.campaign.machines import network
from chaos.campaign.machines.machine import Machines
from chaos.campaign.machines.network import Namespaces, Quality
from chaos.campaign.plan import KINDS, PlannedFault
from chaos.campaign.self_test import PLANTED, find
from chaos.campaign.work.campaign_work import CampaignWork
from chaos.campaign.work.copies import StandbyMirror
from chaos.campaign.work.registers import STREAM, Registers
from chaos.campaign.work.spark_reads import SparkReads
from chaos.readers import OrderedReader, Worker
from chaos.sim.broker.planted_bugs import BROKER_BUGS
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.log_answers import READ, WRITE, check_log
from chaos.sim.promises.stored import StoredRow
from chaos.workload import Workload

needs_namespaces = pytest.mark.skipif(network.missing() is not None, reason=str(network.missing()))


@needs_namespaces
def test_cuts_stop_packets_and_leave_nothing_behind() -> None:
    spaces = Namespaces(2)
    spaces.make()
    try:
        assert pings(spaces, 0, 1)
        spaces.cut([0], [1])
        assert not pings(spaces, 0, 1)
        spaces.heal()
        assert pings(spaces, 0, 1)
    finally:
        spaces.remove()
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert spaces.tag not in left.stdout
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True)
    assert spaces.tag not in links.stdout


@needs_namespaces
def test_a_link_delays_packets_and_leaves_nothing_behind() -> None:
    spaces = Namespaces(2)
    spaces.make()
    try:
        spaces.degrade([0], Quality(delay_ms=300), seed=1)
        began = time.monotonic()
        assert pings(spaces, 0, 1)
        assert time.monotonic() - began >= 0.3
        spaces.heal()
        assert pings(spaces, 0, 1)
        spaces.degrade([0], Quality(loss=1.0), seed=1)
        assert not pings(spaces, 0, 1)
    finally:
        spaces.remove()
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True)
    assert spaces.tag not in links.stdout


def pings(spaces: Namespaces, sender: int, receiver: int) -> bool:
    """Whether a TCP connection is refused (it arrived) rather than unreachable."""
    script = (
        "import socket,sys\n"
        "s=socket.socket(); s.settimeout(5)\n"
        f"try: s.connect(('{spaces.hosts[receiver]}', 9))\n"
        "except ConnectionRefusedError: sys.exit(0)\n"
        "except OSError: sys.exit(1)\n"
    )
    command = [*spaces.prefix(sender), "python3", "-c", script]
    return subprocess.run(command, timeout=20, check=False).returncode == 0


@needs_namespaces
def test_a_leader_that_is_cut_off_breaks_no_promise() -> None:
    """With every workload at work. Of a plan for ten minutes, what begins within the time."""
    settings = CampaignSettings(("isolated-leader",), seconds=600, limit_s=0, seed=1, rate=50)
    record = asyncio.run(run_campaign(settings, lambda _: None))
    assert record.ok, record.verdict.lines()
    history = record.history
    assert record.verdict.acked == history.acks > 50
    assert history.highest_acked == max(one.seq for one in history.acked())
    assert len(record.faults) == 1
    assert record.faults[0].end_ns
    assert {one.state for one in record.seen} >= {"leader", "follower"}
    idle = [name for name, ok, _, _ in record.counts() if not ok]
    assert idle == ["push consumer", "mirror"], "they have no operations of their own"


@needs_namespaces
def test_two_clusters_that_do_not_reach_each_other_break_no_promise() -> None:
    settings = CampaignSettings(
        ("clusters-apart",), seconds=3, seed=1, rate=50, local=LocalSettings(standby=1),
        works=(StandbyMirror.name, SparkReads.name),
    )  # fmt: skip
    record = asyncio.run(run_campaign(settings, lambda _: None))
    assert record.ok, record.verdict.lines()
    assert record.faults[0].nodes == ["standby-1"]
    assert record.faults[0].end_ns
    assert {name for name, ok, _, _ in record.counts() if ok} == set(settings.works or ())


class BusyDisk(ForeignTarget):
    async def inject(self, fault: PlannedFault) -> list[str]:
        raise OSError("umount: target is busy")


def test_a_fault_that_fails_is_the_last_one_and_leaves_the_run_to_be_judged() -> None:
    target = BusyDisk(ForeignSettings(("nats://127.0.0.1:1",)), ["CHAOS"], ["n1", "n2", "n3"])
    campaign = Campaign(CampaignSettings(("kill",), pause_s=0), target, lambda _: None)
    asyncio.run(campaign._inject_all(["kill"]))
    assert [one.failed for one in campaign._injected] == ["umount: target is busy"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ServerError(code=500, description="replicas > 1 not supported"), "replicas > 1 not"),
        (ServiceUnavailableError(), "JetStream is not enabled there, or has no leader"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_a_cluster_that_refuses_the_streams_is_a_sentence(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: Campaign) -> None:
        raise error

    monkeypatch.setattr(Campaign, "_create", refuse)
    target = ForeignTarget(ForeignSettings(("nats://127.0.0.1:1",)), ["CHAOS"])
    campaign = Campaign(CampaignSettings(("kill",)), target, lambda _: None)
    with pytest.raises(NodeFailed, match=f"streams of the test cannot be created: {words}"):
        asyncio.run(campaign.run(["kill"]))


def test_readers_are_stopped_when_the_last_publish_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise they take what is stored by then for the end of the stream."""
    order: list[str] = []

    class Reader(CampaignWork):
        name = "reader"

        async def run(self) -> None:
            while not self.stopping:
                await asyncio.sleep(0)
            order.append("the reader is stopped")

        async def check(self) -> None: ...

    async def publish(workload: Workload) -> None:
        while not workload._stopping:
            await asyncio.sleep(0)
        for _ in range(10):  # answers are on their way
            await asyncio.sleep(0)
        order.append("all publishes are answered")

    async def nothing(*_: object) -> None: ...

    monkeypatch.setattr(Workload, "run", publish)
    for one, names in (
        (Campaign, ("_create", "_look", "_inject_all", "_caught_up", "_judged")),
        (OrderedReader, ("run",)), (Worker, ("create", "run")), (ForeignTarget, ("begin",)),
    ):  # fmt: skip
        for name in names:
            monkeypatch.setattr(one, name, nothing)
    target = ForeignTarget(ForeignSettings(("nats://127.0.0.1:1",)), ["CHAOS"])
    campaign = Campaign(CampaignSettings(()), target, lambda _: None)
    campaign.works = [Reader([], 1)]
    asyncio.run(campaign.run([]))
    assert order == ["all publishes are answered", "the reader is stopped"]


class WorkFailed(Exception):
    pass


def test_work_that_raises_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other clients would go on otherwise: the client library swallows cancellations."""
    started: list[Machines] = []
    make = Machines.make

    def remember(machines: Machines, cleanup: ExitStack) -> None:
        started.append(machines)
        make(machines, cleanup)

    async def fail(_: object) -> None:
        raise WorkFailed

    monkeypatch.setattr(Machines, "make", remember)
    monkeypatch.setattr(Registers, "run", fail)
    settings = CampaignSettings(("kill",), seconds=600, seed=1, rate=50)
    with pytest.raises(ExceptionGroup) as raised:
        run_to_end(run_campaign(settings, lambda _: None))
    assert raised.group_contains(WorkFailed)
    assert started
    assert all(machine.node.process is None for machine in started[0].all)


@pytest.mark.skipif(disks.missing() is not None, reason=str(disks.missing()))
def test_a_broker_that_acks_before_it_flushes_is_found_by_a_power_cut() -> None:
    planted = PLANTED[0]
    record = asyncio.run(find(planted, lambda _: None))
    assert record is not None, planted.bug
    assert "acked but lost" in record.verdict.anomalies
    assert any("acked" in line for line in record.story)
    assert any("power-cut-all" in line for line in record.story)


def test_every_planted_bug_is_known_and_has_a_fault_and_work() -> None:
    names = {work.name for work in campaign_works()}
    for planted in PLANTED:
        assert planted.bug in BROKER_BUGS
        assert planted.fault in KINDS
        assert set(planted.works) <= names


def campaign_works() -> Sequence[CampaignWork]:
    target = ForeignTarget(ForeignSettings(("nats://127.0.0.1:1",)), ["CHAOS"], _ours=True)
    return Campaign(CampaignSettings(()), target, print).works


def registers(*, stale: bool) -> Registers:
    """Two writes of a key and a read after both, which finds the second, or the first."""
    work = Registers(["nats://127.0.0.1:1"], 1, 0)
    for seq in (1, 2):
        write = work.journal.invoke(
            "a", WRITE, stream=STREAM, node="n", subject="k", payload=b"%d" % seq, expected={}
        )
        work.journal.ok(write, seq=seq)
    read = work.journal.invoke("b", READ, stream=STREAM, node="n", what="last", subject="k")
    found = 1 if stale else 2
    work.journal.ok(read, seq=found, messages=[(found, b"%d" % found)])
    return work


def test_a_stale_read_of_a_register_is_found() -> None:
    rows = [StoredRow(1, b"k", b"1"), StoredRow(2, b"k", b"2")]
    check_log(STREAM, registers(stale=False).journal, rows)
    with pytest.raises(BrokenPromise, match="had shown position 2 before"):
        check_log(STREAM, registers(stale=True).journal, rows)
