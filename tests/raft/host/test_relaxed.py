"""When entries are flushed: before they are promised, or, for relaxed groups, some time later."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from raft.host.host import Host
from raft.store.log_flush import SyncInFlight
from raft.store.log_store import LogStore
from raft.store.records import DamagedLog
from raft.transport.transport import Transport
from raft.types import Index, Role, Term, node_id
from tests.support.host_rig import SMALL, TICK_MS, G, Ledger, until

NODE = node_id("solo")
LONG_S = 3600.0


class GatedStore(LogStore):
    """A store whose flushes wait while the gate is closed."""

    gate: threading.Event

    def flush(self) -> None:
        assert self.gate.wait(60)
        super().flush()

    def begin_flush(self, beside: SyncInFlight) -> None:
        """Every flush has to pass the gate."""


class Solo:
    def __init__(self, store: GatedStore, host: Host, ledger: Ledger) -> None:
        self.store, self.host, self.ledger = store, host, ledger
        self.count = 0

    @property
    def flushes(self) -> int:
        return self.store.statistics().flushes

    def propose(self) -> Index:
        self.count += 1
        return self.host.propose(G, b'["k%d", 1]' % self.count)[1]

    async def put(self) -> None:
        index = self.propose()
        await until(lambda: self.ledger.applied >= index)

    async def leads(self) -> None:
        await until(lambda: self.host.role(G) is Role.LEADER and self.ledger.applied > 0)


def run_solo(
    path: Path,
    body: Callable[[Solo], Awaitable[None]],
    *,
    interval_s: float | None,
    relaxed: bool = True,
    open_gate: bool = True,
) -> None:
    async def main() -> None:
        store = GatedStore.open(
            path,
            node_name="solo",
            cluster_name="t",
            tuning=replace(SMALL, flush_interval_s=interval_s),
        )
        assert isinstance(store, GatedStore)
        store.gate = threading.Event()
        if open_gate:
            store.gate.set()
        transport = Transport(
            node=NODE, name="solo", cluster="t", listen_host="127.0.0.1", listen_port=0
        )
        host = Host(node=NODE, store=store, transport=transport, tick_ms=TICK_MS)
        ledger = Ledger(store)
        host.add_group(G, voters=[NODE], machine=ledger, applied=Index(0), relaxed=relaxed)
        running = asyncio.create_task(host.run())
        try:
            async with asyncio.timeout(60):
                await body(Solo(store, host, ledger))
        finally:
            store.gate.set()
            await host.stop()
            await running
            store.close()

    asyncio.run(main())


async def rounds(solo: Solo, count: int = 20) -> None:
    """Wait for some ticks, so that everything that needs no disk can happen."""
    for _ in range(count):
        await asyncio.sleep(TICK_MS / 1000)


@pytest.mark.parametrize(
    ("interval_s", "relaxed"), [(None, True), (None, False), (LONG_S, False)], ids=str
)
def test_nothing_is_applied_before_its_flush(
    tmp_path: Path, interval_s: float | None, relaxed: bool
) -> None:
    async def body(solo: Solo) -> None:
        await solo.leads()
        before = solo.flushes
        await solo.put()
        assert solo.flushes > before
        solo.store.gate.clear()
        index = solo.propose()
        await rounds(solo)
        assert solo.ledger.applied < index
        solo.store.gate.set()
        await until(lambda: solo.ledger.applied >= index)

    run_solo(tmp_path, body, interval_s=interval_s, relaxed=relaxed)


def test_entries_of_a_relaxed_group_do_not_wait_for_a_flush(tmp_path: Path) -> None:
    async def body(solo: Solo) -> None:
        await solo.leads()
        await rounds(solo)
        before = solo.flushes
        solo.store.gate.clear()
        for _ in range(10):
            await solo.put()
        assert solo.flushes == before

    run_solo(tmp_path, body, interval_s=LONG_S)


def test_promised_entries_are_flushed_once_within_the_interval(tmp_path: Path) -> None:
    async def body(solo: Solo) -> None:
        await solo.leads()
        await until(lambda: solo.flushes >= 1)  # the vote and the entry of the new term
        for _ in range(3):
            before = solo.flushes
            await solo.put()
            await until(lambda: solo.flushes > before)  # noqa: B023 - awaited here
        before = solo.flushes
        await rounds(solo)
        assert solo.flushes == before, "nothing was written, nothing is flushed"

    run_solo(tmp_path, body, interval_s=0.05)


def test_a_relaxed_group_flushes_its_votes_before_entries_of_that_term_count(
    tmp_path: Path,
) -> None:
    async def body(solo: Solo) -> None:
        await until(lambda: solo.host.role(G) is Role.LEADER)
        index = solo.propose()
        await rounds(solo, 50)
        assert not solo.ledger.applied
        solo.store.gate.set()
        await until(lambda: solo.ledger.applied >= index)

    run_solo(tmp_path, body, interval_s=LONG_S, open_gate=False)


def test_a_log_that_lost_its_end_goes_on_after_the_state(tmp_path: Path) -> None:
    async def body(solo: Solo) -> None:
        await solo.leads()
        await solo.put()
        term = solo.host.status(G).core.term
        solo.host.remove_group(G, wipe=False)
        ahead = Ledger(solo.store)
        ahead.applied = Index(50)
        with pytest.raises(DamagedLog):
            solo.host.add_group(G, voters=[NODE], machine=ahead, applied=Index(50))
        solo.host.add_group(
            G, voters=[NODE], machine=ahead, applied=Index(50), relaxed=True, applied_term=term
        )
        solo.ledger = ahead
        await until(lambda: ahead.applied == 51)
        await solo.put()
        assert ahead.indices == [51, 52]
        assert solo.store.reader(G).snapshot().term == term == Term(1)

    run_solo(tmp_path, body, interval_s=LONG_S)


def test_what_is_proposed_together_is_written_at_once_and_in_one_round(tmp_path: Path) -> None:
    async def body(solo: Solo) -> None:
        await solo.leads()
        await solo.put()
        await until(lambda: not solo.host._rounds.flushing)
        before = solo.store.statistics().writes
        proposed: list[Index] = []
        solo.host.together(lambda: proposed.extend(solo.propose() for _ in range(3)))
        assert solo.store.statistics().writes == before + 1, "in the same turn of the loop"
        await until(lambda: solo.ledger.applied >= proposed[-1])
        assert solo.store.statistics().writes == before + 1

    run_solo(tmp_path, body, interval_s=None, relaxed=False)


def test_what_is_proposed_together_waits_for_the_flush_in_flight(tmp_path: Path) -> None:
    """It would be written after it in any case; until then more may be collected."""

    async def body(solo: Solo) -> None:
        await solo.leads()
        await solo.put()
        await until(lambda: not solo.host._rounds.flushing)
        before = solo.store.statistics().writes
        solo.store.gate.clear()
        first = solo.propose()
        await until(lambda: solo.host._rounds.flushing)
        proposed: list[Index] = []
        for _ in range(3):
            solo.host.together(lambda: proposed.append(solo.propose()))
        await rounds(solo)
        assert proposed == []
        solo.store.gate.set()
        await until(lambda: solo.ledger.applied >= first + 3)
        assert proposed == [first + 1, first + 2, first + 3]
        assert solo.store.statistics().writes == before + 2, "one for the first, one for the rest"

    run_solo(tmp_path, body, interval_s=None, relaxed=False)


def test_what_waits_for_a_flush_that_fails_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(solo: Solo) -> None:
        await solo.leads()
        await solo.put()
        await until(lambda: not solo.host._rounds.flushing)
        solo.store.gate.clear()
        solo.propose()
        await until(lambda: solo.host._rounds.flushing)
        called: list[bool] = []
        solo.host.together(lambda: called.append(True))
        failed = OSError(5, "Input/output error")
        monkeypatch.setattr(solo.store.log, "flush", lambda: (_ for _ in ()).throw(failed))
        solo.store.gate.set()
        await until(lambda: solo.host.failure is not None)
        assert called == [True]

    run_solo(tmp_path, body, interval_s=None, relaxed=False)
