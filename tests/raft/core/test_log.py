"""RaftLog, compared with a simple model: a list of entries and a commit index."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raft.core.log import MemoryReader, RaftLog
from raft.core.messages import Entry
from raft.types import Index, SnapshotMeta, Term
from tests.support.core_rig import entry


class LogModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.reader = MemoryReader()
        self.log = RaftLog(self.reader, tail_bytes_max=200)
        self.model: list[Entry] = []  # all entries ever, from index 1
        self.start = 0  # entries up to here are compacted or replaced by a snapshot
        self.term = 1
        self.commit = 0

    @rule(count=st.integers(1, 4), new_term=st.booleans(), size=st.integers(0, 60))
    def append(self, count: int, new_term: bool, size: int) -> None:
        self.term += new_term
        for _ in range(count):
            added = entry(len(self.model) + 1, self.term, b"." * size)
            self.log.append(added)
            self.model.append(added)

    @rule(back=st.integers(0, 6))
    def cut(self, back: int) -> None:
        index = max(len(self.model) - back, self.commit) + 1
        if index <= len(self.model):
            self.term += 1
            self.log.cut(Index(index))
            del self.model[index - 1 :]

    @rule()
    def write_and_flush(self) -> None:
        entries = self.log.take_unwritten(1 << 40)
        if entries:
            self.reader.write(entries)
        self.log.persisted = self.log.written
        self.commit = max(self.commit, len(self.model) - 2)
        self.log.release(Index(self.commit))

    @rule()
    def write_only(self) -> None:
        entries = self.log.take_unwritten(1 << 40)
        if entries:
            self.reader.write(entries)

    @precondition(lambda self: self.commit > self.start)
    @rule(share=st.floats(0, 1))
    def compact(self, share: float) -> None:
        upto = self.start + int((self.commit - self.start) * share)
        self.reader.compact(Index(upto))
        self.start = self.reader.snapshot().index

    @rule(ahead=st.integers(1, 5))
    def restore(self, ahead: int) -> None:
        self.term += 1
        end = len(self.model) + ahead
        self.model += [entry(i, self.term) for i in range(len(self.model) + 1, end + 1)]
        meta = SnapshotMeta(Index(end), Term(self.term))
        self.reader.install(meta)
        self.log.restore(meta)
        self.start = self.commit = end

    @invariant()
    def log_equals_model(self) -> None:
        log, model = self.log, self.model
        assert log.last_index == len(model)
        assert log.last_term == (model[-1].term if model else 0)
        assert log.persisted <= log.written <= log.last_index
        assert log.term(Index(len(model) + 1)) is None
        for index in range(max(self.start, 1), len(model) + 1):
            assert log.term(Index(index)) == model[index - 1].term
        low = self.start + 1
        read: list[Entry] = []
        while low <= len(model):
            part = log.entries(Index(low), Index(len(model) + 1), 100)
            assert part
            assert len(part) == 1 or sum(len(e.data) + 32 for e in part) <= 100
            read += part
            low = part[-1].index + 1
        assert read == model[self.start :]


LogModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLogModel = LogModel.TestCase


def test_back_off_skips_terms_above_the_one_asked_for() -> None:
    reader = MemoryReader()
    reader.write([entry(i, t) for i, t in enumerate((1, 1, 4, 4, 4, 6), 1)])
    log = RaftLog(reader)
    assert log.back_off(Index(6), Term(5), floor=Index(0)) == (5, 4)
    assert log.back_off(Index(6), Term(3), floor=Index(0)) == (2, 1)
    assert log.back_off(Index(6), Term(0), floor=Index(0)) == (0, 0)
    assert log.back_off(Index(6), Term(0), floor=Index(2)) == (2, 1)
