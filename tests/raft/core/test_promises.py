"""Promises behind a lease: who has promised a leader not to vote keeps it, whatever happens."""

from __future__ import annotations

import pytest

from raft.core.messages import PROMISE, TRANSFER_VOTE, Message, MessageKind
from raft.core.raft_core import CoreConfig, RaftCore
from raft.types import HardState, Role, Term
from tests.support.core_rig import A, B, C, Group, core_of, drain, message

K = MessageKind
PROMISE_TICKS = CoreConfig().promise_ticks


def promised(*, promise: bool = True) -> RaftCore:
    """A follower of B in term 4 that has answered a round of B."""
    core = core_of(node=A, term=4)
    core.step(message(K.HEARTBEAT, B, A, 4, context=7, hint_term=PROMISE if promise else Term(0)))
    reply = drain(core).messages[0]
    assert (reply.kind, reply.context, reply.hint_term) == (K.HEARTBEAT_REPLY, 7, int(promise))
    return core


def granted(core: RaftCore, request: Message) -> bool:
    core.step(request)
    kinds = (K.VOTE_REPLY, K.PRE_VOTE_REPLY)
    return any(m.kind in kinds and not m.reject for m in drain(core).messages)


def tick(core: RaftCore, count: int) -> None:
    for _ in range(count):
        core.tick()


@pytest.mark.parametrize("kind", [K.PRE_VOTE, K.VOTE])
def test_no_vote_as_long_as_the_promise_holds_even_if_the_link_to_the_leader_breaks(
    kind: MessageKind,
) -> None:
    core = promised()
    core.leader_lost(first=False)
    for _ in range(PROMISE_TICKS):
        assert not granted(core, message(kind, C, A, 5))
        tick(core, 1)
    assert granted(core, message(kind, C, A, 5))


def test_no_vote_in_a_term_that_was_learned_since_the_promise() -> None:
    core = promised()
    core.step(message(K.HEARTBEAT_REPLY, C, A, 5))
    assert (core.term, core.leader) == (5, None)
    assert not granted(core, message(K.VOTE, C, A, 5))
    tick(core, PROMISE_TICKS)
    assert granted(core, message(K.VOTE, C, A, 5))


def test_no_campaign_as_long_as_the_promise_holds() -> None:
    core = promised()
    core.leader_lost(first=True)
    for _ in range(PROMISE_TICKS):
        core.campaign()
        assert core.role is Role.FOLLOWER
        tick(core, 1)
    tick(core, 2)
    assert core.role is Role.PRE_CANDIDATE, "soon after the promise, not after a whole timeout"


def test_a_round_that_asks_for_no_promise_gets_none() -> None:
    core = promised(promise=False)
    core.leader_lost(first=False)
    assert granted(core, message(K.VOTE, C, A, 5))


def test_the_leader_itself_may_end_the_promise_by_a_transfer() -> None:
    assert granted(promised(), message(K.VOTE, C, A, 5, context=TRANSFER_VOTE))
    core = promised()
    core.step(message(K.TIMEOUT_NOW, B, A, 4))
    assert core.role is Role.CANDIDATE


def restarted(term: int, voters: tuple[int, ...] = (A, B, C)) -> RaftCore:
    group = Group(len(voters))
    host = group.hosts[A]
    host.hard_state = HardState(Term(term))
    group.restart(A)
    return group[A]


def test_a_member_that_restarts_may_have_promised() -> None:
    core = restarted(4)
    for _ in range(PROMISE_TICKS):
        assert not granted(core, message(K.VOTE, C, A, 5))
        core.campaign()
        assert core.role is Role.FOLLOWER
        tick(core, 1)
    assert granted(core, message(K.VOTE, C, A, 5))


def test_a_member_that_starts_for_the_first_time_or_alone_has_not() -> None:
    assert granted(restarted(0), message(K.VOTE, C, A, 5))
    alone = restarted(4, (A,))
    tick(alone, 1)
    drain(alone)
    assert alone.role is Role.LEADER


def test_an_answer_without_a_promise_begins_no_lease() -> None:
    """As a member of an earlier version answers it."""
    group = Group(3)
    group[A].campaign()
    group.settle()
    group[A].read_index(1)
    ready = drain(group[A])
    rounds = [m for m in ready.messages if m.kind is K.HEARTBEAT]
    assert {m.hint_term for m in rounds} == {PROMISE}
    for asked in rounds:
        group[A].step(message(K.HEARTBEAT_REPLY, asked.to, A, 1, context=asked.context))
    assert [read.context for read in drain(group[A]).reads] == [1]
    assert group[A].lease_age() is None
    group[A].read_index(2)
    number = next(m.context for m in drain(group[A]).messages if m.kind is K.HEARTBEAT)
    group[A].step(message(K.HEARTBEAT_REPLY, B, A, 1, context=number, hint_term=PROMISE))
    assert group[A].lease_age() == 0
