"""What a leader sends: windows, batches, probes, snapshots, commit notices."""

from __future__ import annotations

import pytest

from raft.core.messages import Message, MessageKind
from raft.core.raft_core import CoreConfig, RaftCore
from raft.types import Index, InvariantViolation, NodeId, NotLeader, RaftError, Role
from tests.support.core_rig import A, B, C, Group, core_of, drain, elect, message, terms_of

K = MessageKind


def leader_of_three(config: CoreConfig | None = None) -> RaftCore:
    """A leads term 1, B has confirmed the NOOP, so B is in the replicate state."""
    core = core_of(config=config)
    ready = elect(core, B)
    core.persisted(ready.number, term=ready.term)
    core.step(message(K.APPEND_REPLY, B, A, 1, index=1))
    drain(core)
    return core


def appends(messages: list[Message], to: NodeId) -> list[tuple[int, int]]:
    """(previous index, number of entries) of each append to a node."""
    return [(m.index, len(m.entries)) for m in messages if m.kind == K.APPEND and m.to == to]


def test_proposals_between_two_readies_go_out_as_one_append() -> None:
    core = leader_of_three()
    for _ in range(5):
        core.propose(b"x")
    ready = core.ready()
    assert appends(ready.messages, B) == [(1, 5)]
    assert len(ready.entries) == 5


def test_appends_are_pipelined_until_the_window_is_full() -> None:
    core = leader_of_three(CoreConfig(max_inflight_batches=2))
    sent = []
    for _ in range(4):
        core.propose(b"x")
        sent += appends(core.ready().messages, B)
    assert sent == [(1, 1), (2, 1)]
    core.step(message(K.APPEND_REPLY, B, A, 1, index=2))
    assert appends(core.ready().messages, B) == [(3, 2)], "queued entries go into one append"


def test_append_is_limited_in_bytes_but_may_always_hold_one_entry() -> None:
    core = leader_of_three(CoreConfig(max_append_bytes=300))
    for _ in range(4):
        core.propose(b"x" * 100)
    core.propose(b"y" * 5000)
    assert appends(core.ready().messages, B) == [(1, 2), (3, 2), (5, 1)]


def test_peer_whose_log_is_unknown_gets_one_append_at_a_time() -> None:
    core = leader_of_three()
    for _ in range(3):
        core.propose(b"x")
        assert appends(core.ready().messages, C) == []
    core.step(message(K.APPEND_REPLY, C, A, 1, index=1))
    assert appends(core.ready().messages, C) == [(1, 3)]


def test_lost_appends_are_noticed_by_the_next_heartbeat_and_sent_again() -> None:
    group = Group(3)
    leader = group.elect(A)
    group.passes = lambda m: m.kind != K.APPEND
    leader.propose(b"x")
    group.settle()
    group.heal()
    group.tick(4, A)
    assert terms_of(group[B]) == terms_of(group[C]) == [1, 1]
    assert group[B].commit == 2


def test_reordered_reject_of_a_confirmed_append_is_ignored() -> None:
    core = leader_of_three()
    core.propose(b"x")
    core.ready()
    core.step(message(K.APPEND_REPLY, B, A, 1, index=2))
    core.step(message(K.APPEND_REPLY, B, A, 1, index=1, reject=True, hint_index=0))
    (peer,) = [p for p in core.status().peers if p.node == B]
    assert (peer.state, peer.match, peer.next) == ("replicate", 2, 3)


def test_unreachable_peer_is_probed_again_after_it_answers() -> None:
    core = leader_of_three()
    core.propose(b"x")
    core.ready()
    core.report_unreachable(B)
    core.propose(b"y")
    assert appends(core.ready().messages, B) == []
    core.step(message(K.HEARTBEAT_REPLY, B, A, 1, context=1))
    assert appends(core.ready().messages, B) == [(1, 0)]
    core.step(message(K.APPEND_REPLY, B, A, 1, index=1))
    assert appends(core.ready().messages, B) == [(1, 2)]


def test_idle_followers_learn_of_a_commit_without_waiting_for_a_heartbeat() -> None:
    group = Group(3)
    group.elect(A).propose(b"x")
    group.settle()
    assert group[B].commit == group[C].commit == 2


def test_commit_notice_is_not_answered() -> None:
    core = core_of(terms=(1,), term=1)
    core.step(message(K.HEARTBEAT, B, A, 1, commit=1))
    assert core.commit == 1
    assert not [m for m in core.ready().messages if m.kind == K.HEARTBEAT_REPLY]


def test_heartbeat_commit_never_exceeds_what_the_peer_is_known_to_hold() -> None:
    core = leader_of_three()
    for _ in range(2):
        core.tick()
    beats = {m.to: m.commit for m in core.ready().messages if m.kind == K.HEARTBEAT}
    assert beats == {B: 1, C: 0}


def test_peer_that_needs_a_compacted_entry_is_sent_a_snapshot_and_then_the_rest() -> None:
    group = Group(3)
    leader = group.elect(A)
    group.cut_off(C)
    for _ in range(6):
        leader.propose(b"x")
        group.settle()
    host = group.hosts[A]
    host.reader.compact(Index(5))
    group.restart(A)
    group.heal()
    group.tick(11, B)  # until it may vote again: it heard the former leader
    group.tick(7, A)  # it may have promised before its restart
    leader = group.elect(A)
    group.tick(2, A)
    assert host is not group.hosts[A]
    assert group.hosts[A].snapshot_wanted == [C]
    leader.propose(b"y")
    group.settle()
    group.send_snapshot(A, C)
    group.settle()
    leader.report_snapshot(C, ok=True)
    group.tick(4, A)
    assert group[C].commit == leader.commit
    (peer,) = [p for p in leader.status().peers if p.node == C]
    assert peer.state == "replicate"


@pytest.mark.parametrize("ok", [True, False])
def test_snapshot_that_did_not_arrive_is_sent_again(ok: bool) -> None:
    core = core_of(terms=(1,) * 9, term=1)
    reader = core.log._reader
    reader.compact(Index(8))  # type: ignore[attr-defined]
    elect(core, B)
    core.step(message(K.APPEND_REPLY, C, A, 2, index=9, reject=True))
    assert core.ready().snapshot_to == [C]
    core.step(message(K.HEARTBEAT_REPLY, C, A, 2, context=1))
    assert core.ready().snapshot_to == [], "one transfer at a time"
    core.report_snapshot(C, ok)
    assert core.ready().snapshot_to == [], "not before it answers a heartbeat"
    core.step(message(K.HEARTBEAT_REPLY, C, A, 2, context=1))
    ready = core.ready()
    if ok:  # a probe from the end of our log is refused
        (probe,) = [m for m in ready.messages if m.kind == K.APPEND and m.to == C]
        core.step(message(K.APPEND_REPLY, C, A, 2, index=probe.index, reject=True))
        ready = core.ready()
    assert ready.snapshot_to == [C]


def test_match_index_beyond_our_log_is_an_invariant_violation() -> None:
    core = leader_of_three()
    with pytest.raises(InvariantViolation):
        core.step(message(K.APPEND_REPLY, B, A, 1, index=50))


def test_answers_of_nodes_outside_the_group_are_ignored() -> None:
    core = leader_of_three()
    core.step(message(K.APPEND_REPLY, 77, A, 1, index=1))
    core.step(message(K.HEARTBEAT_REPLY, 77, A, 1, context=1))
    core.report_unreachable(NodeId(77))
    core.report_snapshot(NodeId(77), ok=True)
    assert core.commit == 1


def test_follower_refuses_proposals_and_names_the_leader() -> None:
    group = Group(3)
    group.elect(A)
    with pytest.raises(NotLeader) as refused:
        group[B].propose(b"x")
    assert refused.value.leader == A
    with pytest.raises(NotLeader):
        group[B].transfer_leader(C)


def test_leadership_cannot_be_transferred_to_a_learner() -> None:
    group = Group(3, learners=1)
    leader = group.elect(A)
    with pytest.raises(RaftError):
        leader.transfer_leader(group.learners[0])
    leader.transfer_leader(A)
    assert leader.role is Role.LEADER


def test_tail_in_memory_is_bounded_and_older_entries_are_read_from_the_store() -> None:
    group = Group(3)
    leader = group.elect(A)
    group.cut_off(C)
    for _ in range(40):
        leader.propose(b"x" * 100_000)
        group.settle()
    assert leader.log._tail_bytes <= 1 << 20
    assert len(leader.log._tail) < 20
    group.heal()
    group.tick(4, A)
    assert terms_of(group[C]) == [1] * 41


def test_answer_to_an_earlier_term_confirms_no_read() -> None:
    """A leader that is elected again starts its round numbers from the beginning. An answer to a
    heartbeat of its earlier term carries the current term, but must not confirm a round."""
    follower = core_of(node=B, term=4)
    follower.step(message(K.HEARTBEAT, A, B, 3, context=33))
    (late,) = drain(follower).messages
    assert (late.kind, late.term) == (K.HEARTBEAT_REPLY, 4)
    leader = core_of(term=3)
    ready = elect(leader, B)
    leader.persisted(ready.number, term=ready.term)
    leader.step(message(K.APPEND_REPLY, B, A, 4, index=1))
    assert leader.term == 4
    assert leader.commit == 1
    leader.read_index(1)
    sent = [m.context for m in drain(leader).messages if m.kind == K.HEARTBEAT and m.to == B]
    leader.step(late)
    assert not drain(leader).reads
    leader.step(message(K.HEARTBEAT_REPLY, B, A, 4, context=sent[-1]))
    assert [read.context for read in drain(leader).reads] == [1]
