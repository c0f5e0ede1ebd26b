"""Kill rounds: the choice of victims, the checks of readers, and short runs with real processes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.local import LocalCluster
from chaos.checker import Verdict, check, check_readers
from chaos.history import History, Outcome, Publish
from chaos.kill_rounds import KillRounds, run_kill_rounds
from chaos.readers import ACK_WAIT_S, OrderedReader, Worker
from chaos.scenarios import Run, Settings

STORED = [(seq, f"0-{seq}") for seq in range(1, 9)]


@pytest.mark.parametrize(("nodes", "rounds", "seed"), [(1, 2, 11), (3, 3, 12)])
def test_no_promise_is_broken_by_kills_at_random_moments(
    nodes: int, rounds: int, seed: int
) -> None:
    said: list[str] = []
    settings = Settings("kill-rounds", rate=200, rounds=rounds, nodes=nodes, seed=seed)
    report = asyncio.run(run_kill_rounds(settings, said.append))
    text = "\n".join([*said, *report.lines()])
    assert report.ok, text
    assert report.verdict.acked == len(report.history.publishes) > 0, text
    assert report.rounds.killed.total() == rounds, text
    assert report.worker.confirmed_ns, text


def drawn(seed: int, nodes: int) -> list[list[int]]:
    run = Run(LocalCluster(Path(), size=nodes), History(), lambda _: None, 0.0)
    rounds = KillRounds(run, random.Random(seed))
    return [rounds.victims(nodes) for _ in range(100)]


def test_a_seed_always_draws_the_same_victims_one_two_or_all() -> None:
    assert drawn(5, 3) == drawn(5, 3) != drawn(6, 3)
    assert {len(victims) for victims in drawn(5, 3)} == {1, 2, 3}
    assert drawn(5, 1) == [[0]] * 100


# -- the checks of readers -------------------------------------------------------------------------


def verdict() -> Verdict:
    publishes = [Publish(ident, seq, seq, Outcome.ACKED, seq) for seq, ident in STORED]
    return check(History(publishes), {"a consumer": STORED}, gapless=True)


def complete() -> Worker:
    return Worker([], "S", 1, received=dict(STORED))


def test_readers_that_received_everything_pass() -> None:
    judged = verdict()
    check_readers(judged, STORED, ordered=list(STORED), worker=complete())
    assert judged.ok, judged.anomalies


@pytest.mark.parametrize(
    ("spoil", "example"),
    [
        (lambda read: read[:-1], "read 7 of 8"),
        (lambda read: [*read, (9, "0-9")], "read 9 of 8"),
        (lambda read: [*read[:3], *read[4:]], "read 0-5@5 where 0-4@4 is stored"),
        (lambda read: [*read[:3], read[2], *read[3:]], "read 0-3@3 where 0-4@4 is stored"),
    ],
    ids=["stopped early", "too many", "skipped", "twice"],
)
def test_an_ordered_reader_that_differs_is_reported(
    spoil: Callable[[Any], Any], example: str
) -> None:
    judged = verdict()
    check_readers(judged, STORED, ordered=spoil(list(STORED)), worker=complete())
    assert judged.anomalies == {"ordered reader differs": [example]}


def forget(worker: Worker) -> None:
    del worker.received[4]


def swap(worker: Worker) -> None:
    worker.received[4] = "0-5"


def invent(worker: Worker) -> None:
    worker.received[99] = "0-99"


def repeat(worker: Worker) -> None:
    worker.confirmed_ns[4] = time.monotonic_ns() - ACK_WAIT_S * 10**9  # long ago
    worker.delivered(4, "0-4")


def change(worker: Worker) -> None:
    worker.delivered(4, "another")


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (forget, "never delivered"),
        (swap, "delivered another message"),
        (invent, "delivered but not stored"),
        (repeat, "delivered after its ack was confirmed"),
        (change, "delivered with two contents"),
    ],
)
def test_a_worker_that_received_something_else_is_reported(
    spoil: Callable[[Worker], None], name: str
) -> None:
    judged, worker = verdict(), complete()
    spoil(worker)
    check_readers(judged, STORED, ordered=STORED, worker=worker)
    assert list(judged.anomalies) == [name]


def test_a_delivery_just_after_the_confirmation_of_its_ack_is_allowed() -> None:
    worker = complete()
    worker.confirmed_ns[4] = time.monotonic_ns()
    worker.delivered(4, "0-4")
    assert worker.after_confirmation == []


@pytest.mark.parametrize(
    ("stored", "missing"),
    [([(2, "b")], ["1..1"]), ([(1, "a"), (4, "b"), (6, "c")], ["2..3", "5..5"])],
)
def test_missing_sequences_are_reported_if_nothing_was_removed(
    stored: list[tuple[int, str]], missing: list[str]
) -> None:
    publishes = [Publish(ident, seq, seq, Outcome.ACKED, seq) for seq, ident in stored]
    judged = check(History(publishes), {"n1": stored}, gapless=True)
    assert judged.anomalies == {"sequences missing": missing}
    assert check(History(publishes), {"n1": stored}).ok


class FakeMessage:
    """A message with the two sequences that an ordered reader uses."""

    def __init__(self, *, stream: int, consumer: int) -> None:
        self.data = b"x"
        self.metadata = self
        self.sequence = self
        self.stream, self.consumer = stream, consumer


def test_an_ordered_reader_stops_at_a_missing_delivery() -> None:
    reader = OrderedReader([], "S")
    assert reader._take(FakeMessage(stream=1, consumer=1))
    assert not reader._take(FakeMessage(stream=3, consumer=3))
    assert reader.last == 1
