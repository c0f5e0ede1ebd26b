"""Persistence: which messages wait for a flush, and which flush counts."""

from __future__ import annotations

import pytest

from raft.core.local_progress import COMMIT_STRIDE
from raft.core.log import MemoryReader, RaftLog
from raft.core.messages import MessageKind
from raft.core.raft_core import CoreConfig, RaftCore
from raft.types import ChangeRefused, HardState, Index, InvariantViolation, NodeId, Role, Term
from tests.support.core_rig import (
    A,
    B,
    C,
    D,
    Group,
    core_of,
    drain,
    elect,
    entry,
    message,
    terms_of,
)

K = MessageKind


def test_vote_and_its_hard_state_are_in_one_ready_and_the_answer_waits_for_the_flush() -> None:
    core = core_of()
    core.step(message(K.VOTE, B, A, 3))
    ready = core.ready()
    assert ready.hard_state is not None
    assert (ready.hard_state.term, ready.hard_state.vote) == (3, B)
    assert not ready.messages
    assert [m.kind for m in ready.after_persist] == [K.VOTE_REPLY]
    assert ready.must_flush


def test_append_answer_waits_for_the_flush_and_so_does_the_answer_to_a_duplicate() -> None:
    core = core_of(term=1)
    append = message(K.APPEND, B, A, 1, entries=[entry(1, 1)])
    core.step(append)
    first = core.ready()
    core.step(append)
    second = core.ready()
    assert not first.messages
    assert not second.messages
    assert not second.entries
    assert [m.kind for m in second.after_persist] == [K.APPEND_REPLY], "entry 1 is not flushed yet"
    core.persisted(second.number, term=second.term)
    core.step(append)
    assert [m.kind for m in core.ready().messages] == [K.APPEND_REPLY], "everything is flushed"


def test_candidate_counts_its_own_vote_only_when_it_is_on_disk() -> None:
    core = core_of(voters=[A], learners=[B])
    core.campaign()
    ready = core.ready()
    assert core.role is Role.CANDIDATE
    core.persisted(ready.number, term=ready.term)
    assert core.role is Role.LEADER


def test_the_only_member_is_elected_and_begins_its_term_with_one_flush() -> None:
    core = core_of(voters=[A])
    core.campaign()
    ready = core.ready()
    assert core.role is Role.LEADER
    assert ready.hard_state is not None
    assert (ready.hard_state.term, ready.hard_state.vote) == (1, A)
    assert [one.index for one in ready.entries] == [1]
    assert core.commit == 0
    with pytest.raises(ChangeRefused):  # a learner would hear of a term that we may forget
        core.change_members(voters=[A], learners=[B])
    core.persisted(ready.number, term=ready.term)
    assert core.commit == 1
    core.change_members(voters=[A], learners=[B])


def test_a_group_does_not_shrink_to_voters_that_cannot_elect() -> None:
    """One that lost its log votes again when a leader has told it where the log ends: there must
    be one without it. A new leader does not know before it has heard of it."""
    core = core_of()
    ready = elect(core, B)
    core.persisted(ready.number, term=ready.term)
    core.step(message(K.APPEND_REPLY, B, A, 1, index=1))
    with pytest.raises(ChangeRefused, match="have not answered"):
        core.change_members(voters=[C], learners=[])
    core.step(message(K.HEARTBEAT_REPLY, C, A, 1, reject=True, hint_index=1))
    with pytest.raises(ChangeRefused, match="lost their logs"):
        core.change_members(voters=[C], learners=[])
    with pytest.raises(ChangeRefused, match="lost their logs"):
        core.change_members(voters=[A, C], learners=[])
    core.step(message(K.HEARTBEAT_REPLY, C, A, 1, hint_index=1))
    core.step(message(K.APPEND_REPLY, C, A, 1, index=1, context=1))
    core.change_members(voters=[C], learners=[])
    assert set(core.members.voters) == {C}


def test_a_voter_that_lost_its_log_and_is_gone_can_be_replaced() -> None:
    """Its last word was that it had lost its log. A learner without a log gets no vote."""
    core = core_of()
    ready = elect(core, B)
    core.persisted(ready.number, term=ready.term)
    core.step(message(K.APPEND_REPLY, C, A, 1, index=1))
    core.step(message(K.HEARTBEAT_REPLY, B, A, 1, reject=True, hint_index=1))
    core.change_members(voters=[A, B, C], learners=[D])
    drain(core)
    core.step(message(K.APPEND_REPLY, C, A, 1, index=2))
    core.step(message(K.HEARTBEAT_REPLY, D, A, 1, reject=True, hint_index=1))
    with pytest.raises(ChangeRefused):
        core.change_members(voters=[A, C, D], learners=[])
    core.step(message(K.HEARTBEAT_REPLY, D, A, 1, hint_index=1))
    core.change_members(voters=[A, C, D], learners=[])
    assert set(core.members.voters) == {A, C, D}


def test_leader_counts_itself_only_after_its_flush() -> None:
    core = core_of()
    ready = elect(core, B)
    core.step(message(K.APPEND_REPLY, B, A, 1, index=1))
    assert core.commit == 0, "B alone is not a majority"
    core.persisted(ready.number, term=ready.term)
    assert core.commit == 1


def test_entry_committed_by_the_others_is_handed_out_after_our_own_flush() -> None:
    core = core_of()
    ready = elect(core, B)
    for peer in (B, C):
        core.step(message(K.APPEND_REPLY, peer, A, 1, index=1))
    assert core.commit == 1
    assert not core.ready().committed
    core.persisted(ready.number, term=ready.term)
    assert [e.index for e in core.ready().committed] == [1]


def test_several_readies_may_be_unflushed_and_the_last_flush_covers_all() -> None:
    core = core_of(voters=[A])
    core.campaign()
    drain(core)
    drain(core)
    readies = []
    for data in (b"a", b"b", b"c"):
        core.propose(data)
        readies.append(core.ready())
    assert [e.data for r in readies for e in r.entries] == [b"a", b"b", b"c"]
    core.persisted(readies[0].number, term=readies[0].term)
    assert core.commit == 2
    core.persisted(readies[2].number, term=readies[2].term)
    assert core.commit == 4


def test_flush_of_overwritten_entries_does_not_count() -> None:
    """The same (index, term) is cut and written again while the first write is being flushed."""
    core = core_of(term=2)
    core.step(message(K.APPEND, B, A, 2, entries=[entry(1, 2), entry(2, 2)]))
    first = core.ready()
    core.step(message(K.APPEND, C, A, 3, entries=[entry(1, 3)]))
    second = core.ready()
    core.step(message(K.APPEND, B, A, 4, entries=[entry(1, 2), entry(2, 2)]))
    third = core.ready()
    assert terms_of(core) == [2, 2]
    core.persisted(first.number, term=first.term)
    assert core.log.persisted == 0, "a crash now may leave the second write, which cut entry 2"
    core.persisted(second.number, term=second.term)
    assert core.log.persisted == 0
    core.persisted(third.number, term=third.term)
    assert core.log.persisted == 2


def test_flush_of_a_new_terms_ready_covers_entries_written_before_it() -> None:
    core = core_of(term=1)
    core.step(message(K.APPEND, B, A, 1, entries=[entry(1, 1)]))
    first = core.ready()
    core.step(message(K.VOTE, C, A, 2, index=1, log_term=1, context=1))
    second = core.ready()
    core.persisted(first.number, term=first.term)
    assert core.log.persisted == 0
    core.persisted(second.number, term=second.term)
    assert core.log.persisted == 1


def test_persisted_with_another_term_than_the_ready_is_an_invariant_violation() -> None:
    core = core_of()
    core.step(message(K.VOTE, B, A, 3))
    ready = core.ready()
    with pytest.raises(InvariantViolation):
        core.persisted(ready.number, term=Term(2))


def test_rejections_and_heartbeat_answers_do_not_wait_for_the_flush() -> None:
    core = core_of(term=1)
    core.step(message(K.APPEND, B, A, 1, entries=[entry(1, 1)]))
    core.step(message(K.HEARTBEAT, B, A, 1, context=1))
    core.step(message(K.APPEND, B, A, 1, index=7, log_term=1))
    ready = core.ready()
    assert [(m.kind, m.reject) for m in ready.messages] == [
        (K.HEARTBEAT_REPLY, False),
        (K.APPEND_REPLY, True),
    ]
    assert [(m.kind, m.index) for m in ready.after_persist] == [(K.APPEND_REPLY, 1)]


def test_commit_index_is_written_with_other_data_and_never_alone() -> None:
    group = Group(3)
    leader = group.elect(A)
    written = group.hosts[A].hard_state.commit
    leader.propose(b"x")
    group.settle()
    assert group.hosts[A].hard_state.commit < leader.commit
    assert written <= group.hosts[A].hard_state.commit
    assert not leader.has_ready()


def test_restart_hands_out_entries_that_are_not_applied_and_no_entry_twice() -> None:
    reader = MemoryReader()
    reader.write([entry(n, 1) for n in range(1, 6)])

    def start(applied: int, commit: int) -> list[int]:
        core = RaftCore(
            node=A,
            voters=[A, B, C],
            log=RaftLog(reader),
            hard_state=HardState(Term(1), B, Index(commit)),
            config=CoreConfig(),
            draw=lambda low, high: low,
            applied=Index(applied),
        )
        return [e.index for e in core.ready().committed]

    assert start(0, 4) == [1, 2, 3, 4]
    assert start(2, 4) == [3, 4]
    assert start(5, 4) == []
    assert start(0, 9) == [1, 2, 3, 4, 5], "a torn write may leave commit ahead of the log"
    with pytest.raises(InvariantViolation):
        start(6, 4)


def test_commit_index_beyond_our_log_is_an_invariant_violation() -> None:
    core = core_of(terms=(1,), term=1)
    with pytest.raises(InvariantViolation, match="lost what it had flushed"):
        core.step(message(K.HEARTBEAT, B, A, 1, commit=2))


def test_append_does_not_overwrite_committed_entries() -> None:
    core = core_of(terms=(1, 1), term=1, commit=1)
    core.step(message(K.APPEND, B, A, 1, index=2, log_term=1, commit=2))
    core.step(message(K.APPEND, B, A, 1, index=1, log_term=1, entries=[entry(2, 7)]))
    assert terms_of(core) == [1, 1], "committed entries of an append are skipped"
    assert core.commit == 2


@pytest.mark.parametrize("ticks", [1, 2])
def test_group_of_one_elects_itself_on_the_first_tick_and_commits_alone(ticks: int) -> None:
    group = Group(1)
    group.tick(ticks)
    leader = group[A]
    assert leader.role is Role.LEADER
    index = leader.propose(b"x")
    host = group.hosts[A]
    host.flushes = False
    group.settle()
    assert leader.commit < index, "not before it is on disk"
    group.flush(A)
    group.settle()
    assert leader.commit == index
    assert [e.data for e in host.applied] == [b"", b"x"]


def test_idle_core_has_nothing_ready() -> None:
    group = Group(3)
    group.elect(A)
    group.tick(1)
    assert not any(group[NodeId(n)].has_ready() for n in (1, 2, 3))


def test_stored_commit_index_never_covers_an_entry_that_is_not_on_disk() -> None:
    """A write torn in a crash may leave the commit index and the entry that it was to replace."""
    core = core_of(terms=(1, 2, 2), term=2)
    core.step(message(K.APPEND, B, A, 3, index=1, log_term=1, entries=[entry(2, 3)], commit=2))
    ready = core.ready()
    assert core.commit == 2
    assert ready.entries[0].term == 3
    assert ready.hard_state is not None
    assert ready.hard_state.commit == 1
    core.persisted(ready.number, term=ready.term)
    end = 1 + COMMIT_STRIDE
    many = [entry(index, 3) for index in range(3, end + 1)]
    core.step(message(K.APPEND, B, A, 3, index=2, log_term=3, entries=many, commit=2))
    ready = core.ready()
    assert ready.hard_state is None, "one more committed entry is not worth a record"
    core.persisted(ready.number, term=ready.term)
    core.step(
        message(K.APPEND, B, A, 3, index=end, log_term=3, entries=[entry(end + 1, 3)], commit=end)
    )
    later = core.ready().hard_state
    assert later is not None
    assert later.commit == end
