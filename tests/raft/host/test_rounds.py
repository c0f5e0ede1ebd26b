"""The order of effects of a round: what is written, what leaves before and after its flush."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from raft.core.messages import Entry, Message, MessageKind
from raft.core.ready import Ready
from raft.host import rounds as limits
from raft.host.rounds import Effects, PendingBatch, Rounds
from raft.types import GroupId, HardState, Index, InvariantViolation, NodeId, Role, Term

ME, OTHER = NodeId(1), NodeId(2)
APPEND = Message(MessageKind.APPEND, ME, OTHER, Term(1))
ANSWER = Message(MessageKind.APPEND_REPLY, ME, OTHER, Term(1))
VOTE = Message(MessageKind.VOTE_REPLY, ME, OTHER, Term(1))


class ScriptedCore:
    """Returns prepared Readies, and records which were reported as persisted."""

    def __init__(self) -> None:
        self.readies: list[Ready] = []
        self.persisted_numbers: list[int] = []
        self.broken = False

    def has_ready(self) -> bool:
        return bool(self.readies)

    def ready(self) -> Ready:
        if self.broken:
            raise InvariantViolation("planted")
        return self.readies.pop(0)

    def persisted(self, number: int, *, term: Term) -> None:
        if self.broken:
            raise InvariantViolation("planted")
        self.persisted_numbers.append(number)


@dataclass
class ListLog:
    entries: list[Entry] = field(default_factory=list)

    def appended(self, entries: Sequence[Entry]) -> None:
        self.entries.extend(entries)


@dataclass
class ScriptedGroup:
    id: GroupId
    persistent: bool = True
    relaxed: bool = False
    core: ScriptedCore = field(default_factory=ScriptedCore)
    log: ListLog = field(default_factory=ListLog)
    stopped: str | None = None
    promised: HardState | None = None
    unflushed: int = 0
    made: int = 0

    def add(
        self,
        *,
        data: bytes | None = None,
        term: int | None = None,
        commit: int = 0,
        send: Sequence[Message] = (),
        after: Sequence[Message] = (),
        committed: Sequence[Entry] = (),
    ) -> Ready:
        """One more Ready: an entry if `data` is given, a new term and vote if `term` is."""
        self.made += 1
        entries = [] if data is None else [Entry(Index(self.made), Term(1), data)]
        hard_state = None if term is None else HardState(Term(term), ME, Index(commit))
        ready = Ready(
            self.made,
            Term(1),
            hard_state,
            entries,
            list(send),
            list(after),
            list(committed),
            None,
            [],
            None,
            Role.FOLLOWER,
        )
        self.core.readies.append(ready)
        return ready


Fx = Effects[ScriptedGroup]


class Driver:
    """Rounds of scripted groups; the test plays the disk."""

    def __init__(self) -> None:
        self.rounds: Rounds[ScriptedGroup] = Rounds()

    def begin(self, *groups: ScriptedGroup) -> Fx:
        for group in groups:
            self.rounds.mark(group)
        return self.rounds.begin()

    def write(self, effects: Fx) -> Fx:
        return self.rounds.written(batch_of(effects).number)


def batch_of(effects: Fx) -> PendingBatch[ScriptedGroup]:
    assert effects.write is not None
    return effects.write


def flush_of(effects: Fx) -> int:
    assert effects.flush is not None
    return effects.flush


def sent(effects: Fx) -> list[tuple[int, MessageKind]]:
    return [(group.id, m.kind) for group, messages in effects.send for m in messages]


def group(number: int = 1, *, persistent: bool = True, relaxed: bool = False) -> ScriptedGroup:
    return ScriptedGroup(GroupId(number), persistent=persistent, relaxed=relaxed)


# the order of effects


def test_appends_leave_at_once_and_answers_after_the_flush_of_their_batch() -> None:
    d, one = Driver(), group()
    one.add(data=b"x", send=[APPEND], after=[ANSWER])
    first = d.begin(one)
    assert sent(first) == [(1, MessageKind.APPEND)]
    assert [e.data for e in batch_of(first).changes.entries[one.id]] == [b"x"]
    assert first.flush is None, "nothing is written yet"
    written = d.write(first)
    assert sent(written) == []
    assert one.core.persisted_numbers == []
    flushed = d.rounds.flushed(flush_of(written))
    assert one.core.persisted_numbers == [1]
    assert sent(flushed) == [(1, MessageKind.APPEND_REPLY)]
    assert d.rounds.marked == 1, "the flush may have committed something"


def test_a_vote_leaves_after_the_flush_that_holds_it() -> None:
    d, one = Driver(), group()
    one.add(term=2, after=[VOTE])
    first = d.begin(one)
    assert sent(first) == []
    assert batch_of(first).changes.hard_states == {one.id: HardState(Term(2), ME)}
    written = d.write(first)
    assert sent(written) == []
    assert sent(d.rounds.flushed(flush_of(written))) == [(1, MessageKind.VOTE_REPLY)]


def test_one_batch_and_one_flush_serve_all_groups_of_a_round() -> None:
    d, groups = Driver(), [group(n) for n in range(1, 5)]
    for one in groups:
        one.add(data=b"x", after=[ANSWER])
    effects = d.begin(*groups)
    assert set(batch_of(effects).changes.entries) == {g.id for g in groups}
    flushed = d.rounds.flushed(flush_of(d.write(effects)))
    assert [number for number, _ in sent(flushed)] == [1, 2, 3, 4]


def test_readies_are_applied_in_the_round_that_took_them() -> None:
    d, one, two = Driver(), group(1), group(2)
    committed = [Entry(Index(1), Term(1), b"x")]
    first, second = one.add(committed=committed), two.add(data=b"y")
    effects = d.begin(one, two)
    assert effects.apply == [(one, first), (two, second)]
    assert batch_of(effects).promises[0].group is two, "a committed entry needs no flush"


def test_a_promise_without_a_write_leaves_at_once_if_nothing_of_its_group_is_unflushed() -> None:
    d, one = Driver(), group()
    one.add(after=[ANSWER])
    effects = d.begin(one)
    assert effects.write is None
    assert sent(effects) == [(1, MessageKind.APPEND_REPLY)]
    assert one.core.persisted_numbers == [1]
    assert one.unflushed == 0


def test_a_promise_without_a_write_waits_for_the_earlier_flush_of_its_group() -> None:
    d, one = Driver(), group()
    one.add(data=b"x")
    written = d.write(d.begin(one))
    one.add(after=[ANSWER])
    assert sent(d.begin(one)) == []
    flushed = d.rounds.flushed(flush_of(written))
    assert sent(flushed) == [(1, MessageKind.APPEND_REPLY)]
    assert one.core.persisted_numbers == [1, 2]
    assert flushed.write is None


# several rounds in flight


def test_rounds_during_a_flush_share_the_next_batch() -> None:
    d, one, two = Driver(), group(1), group(2)
    one.add(data=b"a", after=[ANSWER])
    written = d.write(d.begin(one))
    one.add(data=b"b", after=[ANSWER])
    assert d.begin(one).write is None, "no write beside a flush"
    two.add(data=b"c", after=[ANSWER])
    assert d.begin(two).write is None
    assert d.rounds.depths() == (0, 1, 3)
    flushed = d.rounds.flushed(flush_of(written))
    assert sent(flushed) == [(1, MessageKind.APPEND_REPLY)], "only of the first batch"
    assert one.core.persisted_numbers == [1]
    second = batch_of(flushed)
    assert set(second.changes.entries) == {one.id, two.id}
    last = d.rounds.flushed(flush_of(d.write(flushed)))
    assert sent(last) == [(1, MessageKind.APPEND_REPLY), (2, MessageKind.APPEND_REPLY)]
    assert d.rounds.depths()[1:] == (0, 0)


def test_batches_are_bounded_and_written_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_BYTES_GOAL", 2)
    d, one = Driver(), group()
    first = one.add(data=b"aa")
    effects = d.begin(one)
    d.rounds.applied(one, first)
    for data in (b"bb", b"cc", b"dd"):
        one.add(data=data)
        d.begin(one)
    assert d.rounds.depths()[1] == 4
    order = []
    while effects.write is not None:
        order += [e.data for e in effects.write.changes.entries[one.id]]
        effects = d.rounds.flushed(flush_of(d.write(effects)))
    assert order == [b"aa", b"bb", b"cc", b"dd"]
    assert one.core.persisted_numbers == [1, 2, 3, 4]


def test_a_busy_group_gets_another_turn_only_while_little_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "BATCH_BYTES_GOAL", 1)
    d, one = Driver(), group()
    readies = [one.add(data=b"x") for _ in range(4)]
    d.begin(one)
    d.rounds.applied(one, readies[0])
    assert d.rounds.marked == 1
    d.rounds.begin()
    d.rounds.applied(one, readies[1])
    assert d.rounds.marked == 0, "two batches wait for the disk"
    d.begin(one)
    readies[2].committed.append(Entry(Index(1), Term(1), b"x"))
    d.rounds.applied(one, readies[2])
    assert d.rounds.marked == 1, "committed entries need no disk"


def test_a_round_is_bounded_and_the_first_marked_come_first() -> None:
    d = Driver()
    crowd = [group(n) for n in range(1, limits.GROUPS_PER_ROUND + 11)]
    for one in crowd:
        one.add(data=b"x")
    seen = [one.id for one, _ in d.begin(*crowd).apply]
    assert len(seen) == limits.GROUPS_PER_ROUND
    assert d.rounds.marked == 10
    seen += [one.id for one, _ in d.rounds.begin().apply]
    assert seen == [one.id for one in crowd]


def test_a_number_that_is_not_in_flight_is_refused() -> None:
    d, one = Driver(), group()
    one.add(data=b"x")
    effects = d.begin(one)
    with pytest.raises(InvariantViolation):
        d.rounds.flushed(batch_of(effects).number)
    written = d.write(effects)
    with pytest.raises(InvariantViolation):
        d.rounds.written(flush_of(written))
    with pytest.raises(InvariantViolation):
        d.rounds.flushed(flush_of(written) + 1)


def test_nothing_joins_a_batch_that_is_being_written() -> None:
    d, one, two = Driver(), group(1), group(2)
    one.add(data=b"a", after=[ANSWER])
    effects = d.begin(one)
    two.add(data=b"b", after=[ANSWER])
    assert d.begin(two).write is None, "one write at a time"
    assert set(batch_of(effects).changes.entries) == {one.id}
    flushed = d.rounds.flushed(flush_of(d.write(effects)))
    assert sent(flushed) == [(1, MessageKind.APPEND_REPLY)]
    assert set(batch_of(flushed).changes.entries) == {two.id}


# refused writes


def test_a_refused_batch_is_handed_out_again_with_later_changes() -> None:
    d, one, two = Driver(), group(1), group(2)
    one.add(data=b"a", after=[ANSWER])
    number = batch_of(d.begin(one)).number
    d.rounds.refused(number)
    with pytest.raises(InvariantViolation):
        d.rounds.written(number)
    two.add(data=b"b", after=[ANSWER])
    assert d.begin(two).write is None, "not before the retry"
    again = d.rounds.retry_write()
    assert set(batch_of(again).changes.entries) == {one.id, two.id}
    assert len(sent(d.rounds.flushed(flush_of(d.write(again))))) == 2


def test_a_refused_write_is_not_retried_during_a_flush() -> None:
    d, one, two = Driver(), group(1, relaxed=True), group(2)
    one.add(data=b"a")
    assert d.write(d.begin(one)).flush_later
    two.add(data=b"b", after=[ANSWER])
    d.rounds.refused(batch_of(d.begin(two)).number)
    overdue = d.rounds.flush_overdue()
    assert d.rounds.retry_write().write is None, "no write beside a flush"
    assert d.rounds.flushed(flush_of(overdue)).write is not None


# relaxed groups, groups in memory


def test_entries_of_a_relaxed_group_are_promised_when_written_and_flushed_later() -> None:
    d, one = Driver(), group(relaxed=True)
    one.add(data=b"x", after=[ANSWER])
    written = d.write(d.begin(one))
    assert sent(written) == [(1, MessageKind.APPEND_REPLY)]
    assert written.flush is None
    assert written.flush_later
    overdue = d.rounds.flush_overdue()
    assert d.rounds.flush_overdue().flush is None, "the one in flight covers it"
    assert sent(d.rounds.flushed(flush_of(overdue))) == []


def test_a_relaxed_group_waits_for_the_flush_of_its_votes() -> None:
    d, one = Driver(), group(relaxed=True)
    one.add(data=b"x", term=2, after=[VOTE])
    written = d.write(d.begin(one))
    assert sent(written) == []
    d.rounds.flushed(flush_of(written))
    one.add(data=b"y", term=2, after=[ANSWER])  # the same term and vote again
    assert sent(d.write(d.begin(one))) == [(1, MessageKind.APPEND_REPLY)]


def test_a_strict_group_makes_the_whole_batch_wait_for_a_flush() -> None:
    d, one, two = Driver(), group(1, relaxed=True), group(2)
    one.add(data=b"x", after=[ANSWER])
    two.add(data=b"y", after=[ANSWER])
    written = d.write(d.begin(one, two))
    assert sent(written) == []
    assert len(sent(d.rounds.flushed(flush_of(written)))) == 2


def test_a_group_in_memory_writes_its_votes_and_nothing_else() -> None:
    d, one = Driver(), group(persistent=False)
    one.add(data=b"x", term=2, after=[VOTE])
    effects = d.begin(one)
    assert [e.data for e in one.log.entries] == [b"x"]
    assert batch_of(effects).changes.entries == {}
    assert batch_of(effects).changes.hard_states == {one.id: HardState(Term(2), ME)}
    written = d.write(effects)
    assert sent(written) == []
    d.rounds.flushed(flush_of(written))
    one.add(data=b"y", term=2, commit=1, after=[ANSWER])
    effects = d.begin(one)
    assert effects.write is None, "the commit index promises nothing"
    assert sent(effects) == [(1, MessageKind.APPEND_REPLY)]


# failures


@pytest.mark.parametrize("failing", ["write", "flush", "a state machine"])
def test_after_a_failure_of_the_disk_nothing_is_written_and_no_promise_leaves(failing: str) -> None:
    d, one, two = Driver(), group(1), group(2)
    one.add(data=b"x", after=[ANSWER])
    if failing != "a state machine":
        effects = d.begin(one)
        if failing == "flush":
            d.write(effects)
    d.rounds.disk_failed()
    two.add(data=b"y", send=[APPEND], after=[ANSWER])
    later = d.begin(two)
    assert sent(later) == [(2, MessageKind.APPEND)], "an append promises nothing"
    assert later.write is None
    assert d.rounds.flush_overdue().flush is None
    assert d.rounds.retry_write().write is None
    assert one.core.persisted_numbers == two.core.persisted_numbers == []


@pytest.mark.parametrize("relaxed", [False, True])
def test_a_restart_writes_and_flushes_the_votes_of_groups_in_memory_again(relaxed: bool) -> None:
    d, memory = Driver(), group(2, persistent=False, relaxed=relaxed)
    stored = group(1, relaxed=True)
    stored.add(data=b"x", term=2, after=[ANSWER])
    memory.add(term=2, after=[VOTE])
    d.write(d.begin(stored, memory))
    memory.add(after=[ANSWER])  # depends on the flush that fails
    d.begin(memory)
    d.rounds.disk_failed()
    stored.stopped = "removed"
    again = d.rounds.restart()
    assert batch_of(again).changes.hard_states == {memory.id: HardState(Term(2), ME)}
    assert batch_of(again).changes.entries == {}
    written = d.write(again)
    assert sent(written) == []
    flushed = d.rounds.flushed(flush_of(written))
    assert sent(flushed) == [(2, MessageKind.VOTE_REPLY), (2, MessageKind.APPEND_REPLY)]
    assert memory.core.persisted_numbers == [1, 2]
    assert stored.core.persisted_numbers == []
    assert memory.unflushed == 0


def test_a_group_that_breaks_an_invariant_is_reported_and_the_others_go_on() -> None:
    d, good, bad = Driver(), group(1), group(2)
    good.add(data=b"x", after=[ANSWER])
    bad.add(data=b"y", after=[ANSWER])
    bad.core.broken = True
    effects = d.begin(bad, good)
    assert [one for one, _ in effects.failed] == [bad]
    assert [one for one, _ in effects.apply] == [good]
    bad.core.broken = False
    both = d.begin(bad)
    flushed = d.rounds.flushed(flush_of(d.write(effects)))
    assert both.write is None
    assert sent(flushed) == [(1, MessageKind.APPEND_REPLY)]
    bad.add(after=[ANSWER])
    d.begin(bad)
    bad.core.broken = True
    failing = d.rounds.flushed(flush_of(d.write(flushed)))
    assert [one for one, _ in failing.failed] == [bad], "once, although two promises wait"
    assert sent(failing) == []


def test_a_stopped_group_takes_no_part_and_sends_nothing() -> None:
    d, one = Driver(), group()
    one.add(data=b"x", after=[ANSWER])
    written = d.write(d.begin(one))
    one.stopped = "planted"
    one.add(data=b"y", send=[APPEND])
    assert d.begin(one) == Effects()
    assert d.rounds.flushed(flush_of(written)) == Effects()
    assert one.core.persisted_numbers == []


def test_a_forgotten_group_is_not_written() -> None:
    d, one, two = Driver(), group(1), group(2)
    one.add(data=b"x")
    written = d.write(d.begin(one))
    two.add(data=b"y", term=2)
    one.add(data=b"z")
    d.begin(one, two)
    d.rounds.mark(two)
    d.rounds.forget(two)
    two.stopped = "removed"
    assert d.rounds.marked == 0
    changes = batch_of(d.rounds.flushed(flush_of(written))).changes
    assert (set(changes.entries), set(changes.hard_states)) == ({one.id}, set())


def test_entries_that_a_snapshot_supersedes_are_not_written() -> None:
    d, one = Driver(), group()
    one.add(data=b"x")
    written = d.write(d.begin(one))
    one.add(data=b"y", term=2, after=[ANSWER])
    d.begin(one)
    d.rounds.supersede(one.id)
    again = d.rounds.flushed(flush_of(written))
    assert batch_of(again).changes.entries == {}
    assert batch_of(again).changes.hard_states == {one.id: HardState(Term(2), ME)}
    assert len(sent(d.rounds.flushed(flush_of(d.write(again))))) == 1


def test_a_batch_that_was_emptied_does_not_block_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_BYTES_GOAL", 1)
    d, one, two = Driver(), group(1), group(2)
    one.add(data=b"x")
    written = d.write(d.begin(one))
    one.add(data=b"y")
    d.begin(one)
    two.add(data=b"z")
    d.begin(two)
    d.rounds.supersede(one.id)
    flushed = d.rounds.flushed(flush_of(written))
    assert set(batch_of(flushed).changes.entries) == {two.id}
    assert one.core.persisted_numbers == [1, 2]
