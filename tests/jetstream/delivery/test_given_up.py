"""Messages that were given up after max_deliver: the leader's ack floor is the replicated one."""

from __future__ import annotations

import pytest

from broker.jetstream.consumer.ack_floor import AckFloor
from tests.support.consumer_rig import Bench, S


def _delivered() -> Bench:
    bench = Bench()
    bench.publish("a", "a", "a")
    bench.create(ack_policy="explicit", durable_name="C", ack_wait=10 * S, max_deliver=1)
    bench.pull("r", '{"batch":3,"no_wait":true}')
    bench.pump()
    bench.commit()
    return bench


@pytest.mark.parametrize("acked", [2, 3])
def test_acks_after_a_message_was_given_up_in_the_same_entry(acked: int) -> None:
    """Replicas apply the acks of an entry first; the leader had given 1 up before."""
    bench = _delivered()
    bench.ack(1, "-NAK")
    bench.ack(acked)
    bench.pump()
    bench.commit()
    assert bench.of.state.pack() == bench.delivery._cursor.live.pack()


def test_a_repeated_ack_moves_no_floor() -> None:
    """It is not replicated, so the next leader would show a lower floor."""
    bench = _delivered()
    for seq in (2, 3):
        bench.ack(seq)
    bench.pump()
    bench.ack(1, "-NAK")
    bench.pump()
    bench.commit()
    bench.ack(3)
    bench.pump()
    bench.commit()
    assert bench.of.state.pack() == bench.delivery._cursor.live.pack()


def test_a_restarted_replica_comes_to_the_same_floor() -> None:
    """Given up messages hold the floor until the next ack, also in a state that was loaded."""
    state = AckFloor()
    state.deliver(1, 3, consumer_seq=1)
    state.exhaust([1])
    restarted = state.copy()
    for one in (state, restarted):
        one.ack([3])
    assert restarted.pack() == state.pack()
    assert state.floor == (1, 1)
