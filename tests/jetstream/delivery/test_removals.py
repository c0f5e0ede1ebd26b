"""Removals that reach the replicas before deliveries and acks that the leader handled earlier.

Runs every sequence of three steps (acks, redeliveries, removals, commits): whatever their order,
the live state of the leader equals the replicated state once everything is committed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from tests.support.consumer_rig import Bench, S

Step = Callable[[Bench], None]
STORED = (1, 2, 3)


def _ack(seq: int) -> Step:
    return lambda bench: bench.ack(seq)


def _again(seq: int) -> Step:
    def step(bench: Bench) -> None:
        bench.ack(seq, "-NAK")
        bench.pull("r", '{"batch":1,"no_wait":true}')
        bench.pump()

    return step


def _remove(seq: int) -> Step:
    def step(bench: Bench) -> None:
        if bench.stream.store.has(seq):
            bench.remove(seq)

    return step


def _purge(below: int) -> Step:
    return lambda bench: bench.purge(below)


def _commit_one(bench: Bench) -> None:
    bench.propose()
    if bench.pending_proposals:
        for command in bench.pending_proposals.pop(0).commands:
            bench.command(command)


STEPS: dict[str, Step] = {"commit": _commit_one, "propose": Bench.propose}
for _seq in STORED:
    STEPS[f"ack {_seq}"] = _ack(_seq)
    STEPS[f"again {_seq}"] = _again(_seq)
    STEPS[f"remove {_seq}"] = _remove(_seq)
STEPS |= {"purge 2": _purge(2), "purge 3": _purge(3), "purge all": _purge(4)}


def _run(policy: str, steps: tuple[str, ...], *, first_is_committed: bool) -> Bench:
    bench = Bench()
    bench.publish("a", "a", "a")
    bench.create(ack_policy=policy, durable_name="C", ack_wait=10 * S)
    bench.pull("r", '{"batch":3,"no_wait":true}')
    bench.pump()
    if first_is_committed:
        bench.commit()
    for step in steps:
        STEPS[step](bench)
    bench.pump()
    bench.commit()
    return bench


@pytest.mark.parametrize("first_is_committed", [True, False])
@pytest.mark.parametrize("policy", ["explicit", "all"])
def test_live_and_replicated_state_agree_after_removals_in_any_order(
    policy: str, first_is_committed: bool
) -> None:
    for steps in product(STEPS, repeat=3):
        bench = _run(policy, steps, first_is_committed=first_is_committed)
        live = bench.delivery._cursor.live.pack()
        assert bench.of.state.pack() == live, steps


def test_several_acks_in_one_entry_give_the_same_floor_as_one_by_one() -> None:
    steps = ("again 1", "ack 1", "again 3", "ack 2")  # 1 was acked as delivery 4, 2 as delivery 2
    bench = _run("all", steps, first_is_committed=True)
    assert bench.delivery._cursor.live.floor == (4, 2)
    assert bench.of.state.floor == (4, 2)
