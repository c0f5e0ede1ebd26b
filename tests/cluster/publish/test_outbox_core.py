"""The outbox core: scripts for each rule, and properties under arbitrary faults."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.publish.outbox_core import (
    IN_FLIGHT_MAX,
    RESEND_AFTER_MAX_S,
    RESEND_AFTER_S,
    OutboxCore,
)
from broker.cluster.publish.publish_batch import BatchAnswer
from broker.jetstream.publish.sessions import RESULTS_KEPT_MIN
from tests.support.outbox_core_rig import GROUP, SESSION, CoreScript, ModelLeader, make_batch

# Each line is an input and, after the arrow, all effects that it must have.
SCRIPTS = {
    "a batch is sent once and acknowledged once": """
        publish -> send 1
        answer 1 -> ack 1
        answer 1 ->
        wait 9000 ->
    """,
    "at most four batches are in flight": """
        publish -> send 1
        publish -> send 2
        publish -> send 3
        publish -> send 4
        publish ->
        publish ->
        answer 1 -> ack 1, send 5
        answer 2 -> ack 2, send 6
    """,
    "the window starts at the oldest unanswered batch": """
        publish -> send 1
        publish -> send 2
        publish -> send 3
        publish -> send 4
        publish ->
        answer 4 -> ack 4, send 1, send 2, send 3
        answer 3 -> ack 3, send 1, send 2
        answer 2 -> ack 2, send 1
        answer 1 -> ack 1, send 5
    """,
    "a new leader gets everything unanswered, in order": """
        publish -> send 1
        publish -> send 2
        publish -> send 3
        answer 1 -> ack 1
        leader-changed -> send 2, send 3
        link-restored -> send 2, send 3
        answer 2 -> ack 2
        answer 3 -> ack 3
        leader-changed ->
    """,
    "a lost batch: only the last refusal behind it resends": """
        publish -> send 1
        publish -> send 2
        publish -> send 3
        refuse 2 1 ->
        refuse 3 1 -> send 1, send 2, send 3
        answer 1 -> ack 1
        answer 2 -> ack 2
        answer 3 -> ack 3
    """,
    "lost answers: a leader that expects a later batch gets the earlier ones too": """
        publish -> send 1
        publish -> send 2
        publish -> send 3
        refuse 3 2 -> send 1, send 2, send 3
        answer 1 -> ack 1
    """,
    "an answer that overtakes others shows that these are lost": """
        publish -> send 1
        publish -> send 2
        publish -> send 3
        publish -> send 4
        answer 3 -> ack 3, send 1, send 2
        answer 1 -> ack 1
        answer 2 -> ack 2
        answer 4 -> ack 4
    """,
    "repeated and unknown answers have no effect": """
        publish -> send 1
        publish -> send 2
        answer 2 -> ack 2, send 1
        answer 2 ->
        answer 9 ->
        answer 1 -> ack 1
        answer 1 ->
    """,
    "answers of an earlier session have no effect": """
        publish -> send 1
        stale-answer 1 ->
        answer 1 -> ack 1
    """,
    "a later run of this node ends the session": """
        publish -> send 1
        publish -> send 2
        pause a -> pause a
        refuse 2 -1 -> session-refused 2, resume a
        refuse 1 -1 ->
        answer 1 ->
        leader-changed ->
        wait 9000 ->
    """,
    "a stream that forgot the session gets what is unanswered under a new one": """
        publish -> send 1
        answer 1 -> ack 1
        publish -> send 2
        publish -> send 3
        refuse 2 1 ->
        refuse 3 1 -> probe 1
        probed 1 1 -> send 1 in session +1, send 2 in session +1
        stale-answer 2 ->
        stale-answer 3 ->
        answer 1 -> ack 1
        answer 2 -> ack 2
        publish -> send 3 in session +1
    """,
    "batches that wait are renumbered as well": """
        publish -> send 1
        answer 1 -> ack 1
        publish -> send 2
        publish -> send 3
        publish -> send 4
        publish -> send 5
        publish ->
        refuse 5 1 -> probe 1
        probed 1 1 -> send 1 in session +1, send 2 in session +1, send 3 in session +1, send 4 in session +1
        answer 1 -> ack 1, send 5 in session +1
    """,  # noqa: E501
    "a stream that forgot and applied the first batch again is noticed too": """
        publish -> send 1
        publish -> send 2
        publish -> send 3
        answer 2 -> ack 2, send 1
        answer 1 -> ack 1
        refuse 3 2 -> probe 2
        probed 2 2 -> send 1 in session +1
    """,
    "a late refusal does not start a new session, however often it is repeated": """
        publish -> send 1
        publish -> send 2
        publish -> send 3
        answer 1 -> ack 1
        refuse 3 1 -> probe 1
        refuse 3 1 -> probe 1
        answer 2 -> ack 2
        refuse 3 1 -> probe 2
        probed 1 2 ->
        probed 1 2 ->
        probed 2 4 ->
        answer 3 -> ack 3
        refuse 3 1 ->
    """,
    "a new session starts without answered batches": """
        publish -> send 1
        answer 1 -> ack 1
        publish -> send 2
        answer 2 -> ack 2
        publish -> send 3
        refuse 3 1 -> probe 2
        probed 2 1 -> send 1 in session +1
        publish -> send 2 in session +1
        answer 1 -> ack 1
        refuse 2 1 -> probe 1 in session +1
        probed 1 2 ->
    """,
    "a stream that forgets twice gets two new sessions": """
        publish -> send 1
        answer 1 -> ack 1
        publish -> send 2
        refuse 2 1 -> probe 1
        probed 1 1 -> send 1 in session +1
        refuse 1 1 -> send 1 in session +1
        answer 1 -> ack 1
        publish -> send 2 in session +1
        refuse 2 1 -> probe 1 in session +1
        probed 1 1 -> send 1 in session +2
    """,
    "a result that the stream no longer remembers is not asked for again": """
        publish -> send 1
        publish -> send 2
        publish -> send 3
        publish -> send 4
        publish ->
        refuse 1 70 -> result-lost 1, send 5
        refuse 1 70 ->
        answer 2 -> ack 2
    """,
    "retries back off: 1, 2, 4, 8, 8 seconds": """
        publish -> send 1
        wait 999 ->
        wait 1 -> send 1
        wait 1999 ->
        wait 1 -> send 1
        wait 3999 ->
        wait 1 -> send 1
        wait 7999 ->
        wait 1 -> send 1
        wait 7999 ->
        wait 1 -> send 1
    """,
    "a new leader is retried as fast as the first one": """
        publish -> send 1
        wait 1000 -> send 1
        wait 2000 -> send 1
        leader-changed -> send 1
        wait 1000 -> send 1
    """,
    "an answer ends the back-off": """
        publish -> send 1
        publish -> send 2
        wait 1000 -> send 1, send 2
        wait 2000 -> send 1, send 2
        answer 1 -> ack 1
        wait 999 ->
        wait 1 -> send 2
    """,
    "progress postpones the retry": """
        publish -> send 1
        publish -> send 2
        wait 900 ->
        answer 1 -> ack 1
        wait 100 ->
        wait 999 ->
        wait 1 -> send 2
    """,
    "publishers are paused once each, and resumed when half is answered": """
        publish 600 -> send 1
        publish 600 -> send 2
        pause a -> pause a
        pause a ->
        pause b -> pause b
        publish 100 -> send 3
        answer 1 -> ack 1
        answer 3 -> ack 3, send 2
        answer 2 -> ack 2, resume a, resume b
        pause a -> pause a
    """,
    "a lost result counts as answered for backpressure": """
        publish 600 -> send 1
        publish 500 -> send 2
        pause a -> pause a
        refuse 1 70 -> result-lost 1, resume a
    """,
    "a removed stream: everything unanswered gets no responders": """
        publish -> send 1
        publish -> send 2
        publish -> send 3
        publish -> send 4
        publish ->
        answer 1 -> ack 1, send 5
        pause a -> pause a
        remove -> resume a, no-responders 2, no-responders 3, no-responders 4, no-responders 5
        answer 2 ->
        leader-changed ->
        wait 9000 ->
    """,
    "closed: nothing more is sent or acknowledged": """
        publish -> send 1
        pause a -> pause a
        close -> resume a
        answer 1 ->
        leader-changed ->
        wait 9000 ->
    """,
}


@pytest.mark.parametrize("rule", SCRIPTS)
def test_rule(rule: str) -> None:
    CoreScript(held_bytes_max=1000).run(SCRIPTS[rule])


def test_overfull_follows_the_bytes_that_are_held() -> None:
    core = OutboxCore(SESSION, held_bytes_max=1000)
    for size, overfull in ((600, False), (400, False), (1, True)):
        core.enqueue(make_batch(b"x" * size))
        assert core.overfull is overfull
    core.send(0.0)
    core.answered(BatchAnswer(GROUP, SESSION, 1, 1, []), 0.0)
    assert (core.overfull, core.held_bytes) == (False, 401)
    core.close()
    assert (core.overfull, core.held_bytes) == (False, 0)


def test_the_window_is_open_until_four_batches_are_unanswered() -> None:
    core = OutboxCore(SESSION)
    for _ in range(IN_FLIGHT_MAX):
        assert core.window_open
        core.enqueue(make_batch())
    assert not core.window_open
    core.send(0.0)
    assert not core.window_open
    core.answered(BatchAnswer(GROUP, SESSION, 2, 2, []), 0.0)
    assert not core.window_open, "the window starts at the oldest one"
    core.answered(BatchAnswer(GROUP, SESSION, 1, 1, []), 0.0)
    assert core.window_open


def test_the_stream_remembers_more_results_than_the_window_holds() -> None:
    """Otherwise a batch whose answer was lost could not be answered when it is repeated."""
    assert IN_FLIGHT_MAX < RESULTS_KEPT_MIN


def test_the_deadline_tells_when_a_tick_is_needed() -> None:
    core = OutboxCore(SESSION)
    assert core.deadline_s is None
    core.enqueue(make_batch())
    core.send(10.0)
    assert core.deadline_s == 10.0 + RESEND_AFTER_S
    core.enqueue(make_batch())
    core.send(10.5)
    assert core.deadline_s == 10.0 + RESEND_AFTER_S, "one timer, not one per batch"
    now_s = core.deadline_s
    for wait_s in (2.0, 4.0, 8.0, RESEND_AFTER_MAX_S):
        core.tick(now_s)
        assert core.deadline_s == now_s + wait_s
        now_s = core.deadline_s
    core.answered(BatchAnswer(GROUP, SESSION, 1, 1, []), now_s)
    assert core.deadline_s == now_s + RESEND_AFTER_S
    core.answered(BatchAnswer(GROUP, SESSION, 2, 2, []), now_s)
    core.tick(now_s + RESEND_AFTER_S)
    assert core.deadline_s is None


def test_an_answer_without_a_sequence_acknowledges_nothing() -> None:
    """Unless every row has a reply of its own, it says that nothing was stored."""
    core = OutboxCore(SESSION)
    core.enqueue(make_batch(rows=2))
    core.send(0.0)
    for exceptions in ([], [(0, b"{}")]):
        assert core.answered(BatchAnswer(GROUP, SESSION, 1, 0, exceptions), 0.0) == []
    assert core.answered(BatchAnswer(GROUP, SESSION, 1, 0, [(0, b"{}"), (1, b"{}")]), 0.0)


# -- properties -----------------------------------------------------------------------------------

FAULTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["publish", "publish", "apply", "apply", "answer", "answer", "lose batch",
             "lose answer", "repeat answer", "leader changed", "cut link", "wait"]
        ),
        st.integers(0, 7),
    ),
    max_size=120,
)  # fmt: skip


def play(leader: ModelLeader, steps: list[tuple[str, int]]) -> None:
    """Whatever the links do: `at` chooses one of the batches or answers on the way."""
    for action, at in steps:
        match action:
            case "publish":
                leader.publish()
            case "apply" if leader.batches:
                leader.apply(at % len(leader.batches))
            case "answer" if leader.answers:
                leader.answer(at % len(leader.answers))
            case "lose batch" if leader.batches:
                leader.batches.pop(at % len(leader.batches))
            case "lose answer" if leader.answers:
                leader.answers.pop(at % len(leader.answers))
            case "repeat answer" if leader.answers:
                leader.answers.append(leader.answers[at % len(leader.answers)])
            case "cut link":
                leader.batches.clear()
                leader.answers.clear()
                leader.perform(leader.core.resend(leader.now_s))
            case "leader changed":
                leader.perform(leader.core.resend(leader.now_s))
            case "wait":
                leader.wait(float(at))
            case "forget":
                leader.forget()


@given(FAULTS)
def test_every_batch_is_applied_once_and_answered_once_when_the_links_heal(
    steps: list[tuple[str, int]],
) -> None:
    leader = ModelLeader()
    play(leader, steps)
    leader.heal()
    blocks = [b"%d" % number for number in range(1, leader.published + 1)]
    assert leader.stored == blocks, "once each, in order"
    assert sorted(leader.acked, key=lambda ack: ack[1]) == [
        (block, seq) for seq, block in enumerate(blocks, 1)
    ]
    assert leader.facts == []
    assert leader.core.held_bytes == 0


IN_ORDER = st.lists(
    st.tuples(
        st.sampled_from(
            ["publish", "publish", "apply", "apply", "answer", "answer", "lose batch",
             "lose answer", "leader changed", "cut link", "wait", "forget"]
        ),
        st.just(0),
    ),
    max_size=120,
)  # fmt: skip


@given(IN_ORDER)
def test_a_stream_that_loses_its_state_gets_every_unanswered_batch_once(
    steps: list[tuple[str, int]],
) -> None:
    """What it had acknowledged is gone with its memory. Links keep their order here, as the links
    between nodes do: a batch that a link held back for longer than the loss of all state and its
    detection took could be stored twice."""
    leader = ModelLeader()
    play(leader, steps)
    leader.heal()
    assert sorted(int(block) for block, _ in leader.acked) == [*range(1, leader.published + 1)]
    assert len(set(leader.stored)) == len(leader.stored)
    assert leader.facts == []


def test_a_refusal_that_two_leaders_repeat_stores_nothing_twice() -> None:
    """A leader answers an entry that its successor applies and answers too. Both refusals are late
    here: batch 2 overtook batch 1, and is stored before they arrive."""
    leader = ModelLeader()
    overtaken = [("publish", 0), ("publish", 0), ("apply", 1), ("repeat answer", 0), ("apply", 0)]
    play(leader, [*overtaken, ("answer", 2), ("leader changed", 0), ("apply", 0)])
    assert [answer.expected for answer in leader.answers] == [1, 1, 0]
    play(leader, [("answer", 0), ("answer", 0)])
    leader.heal()
    assert leader.stored == [b"1", b"2"]
    assert leader.core.session == SESSION


def test_a_node_that_leaves_refuses_only_what_it_has_not_sent() -> None:
    core = OutboxCore(SESSION)
    for _ in range(IN_FLIGHT_MAX + 2):
        core.enqueue(make_batch())
    core.send(0.0)
    refused = [effect.batch.number for effect in core.left() if hasattr(effect, "batch")]
    assert refused == [IN_FLIGHT_MAX + 1, IN_FLIGHT_MAX + 2]
    assert core.closed
    assert not core.held_bytes
