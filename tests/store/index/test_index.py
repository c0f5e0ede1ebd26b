"""The compiled subject index against its Python twin: same calls, same results."""

from __future__ import annotations

import time
from array import array
from itertools import chain, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.block import _block, _builder, block_format, builder_py
from broker.store.index import _hashes, _index, hashes_py, index_py
from broker.store.index.subject_filter import SubjectFilter, matching_parts
from broker.subjects import matches

SUBJECTS = [b"a", b"b", b"a.b", b"a.c", b"a.b.c", b"aa", b"kv.%d" % 7, b"x" * 300]
PATTERNS = [b">", b"a.>", b"a.*", b"*", b"kv.*", b"none.*", b"a", b"*.b"]


def in_parts(index: Any, pattern: bytes, most: int) -> list[bytes]:
    found: list[bytes] = []
    last: bytes | None = b""
    while last is not None:
        part, last = index.matching_part(pattern, last, most)
        assert len(part) <= most
        found += part
    return found


class Both:
    """Two indexes that get the same calls and must give the same results."""

    def __init__(self) -> None:
        self.twins: list[Any] = [index_py.SubjectIndex(), _index.SubjectIndex()]
        self.seq = 0
        self.added: list[Any] | None = None  # the block that was added last, of both kinds

    def add(self, subject: bytes, count: int, *, trailed: bool) -> None:
        first, self.seq = self.seq + 1, self.seq + count
        for index in self.twins:
            entry = index.added(subject, count=count, first=first, last=self.seq)
            if trailed:
                pairs = [n for seq in range(first, self.seq + 1) for n in (seq, seq % 5)]
                entry.trail_grew(count, pairs)

    def add_rows(self, subjects: list[bytes], *, trailed: bool, numbered: bool) -> None:
        first, self.seq = self.seq + 1, self.seq + len(subjects)
        stamp = 0 if numbered else first
        self.added = []
        for index, builders, blocks in zip(
            self.twins, (builder_py, _builder), (block_format, _block), strict=True
        ):
            builder = builders.BlockBuilder(first if numbered else 0)
            for i, subject in enumerate(subjects):
                header = b"NATS/1.0\r\n\r\n" if i % 3 else b""
                seq = first + i if numbered else 0
                builder.append(subject, header, b"x" * i, time_ns=1, seq=seq)
            block = blocks.Block(builder.build())
            self.added.append(block)
            index.add_rows(block, first_seq=stamp)
            if trailed:
                index.trail_rows(block, first_seq=stamp, per_message=30, per_header=4)

    def remove(self, subject: bytes, count: int) -> None:
        self.added = None
        entry = self.twins[0].get(subject)
        if entry is None:
            return
        gone = min(count, entry.count)
        for index in self.twins:
            held = index.get(subject)
            if gone < held.count:
                held.first += gone
                held.trail_shrank(gone)
            index.removed(subject, gone)

    def remove_rows(self, *, start: int, last_is_known: bool) -> None:
        """Of the rows that were added last, if all of them are still stored, every second one."""
        rows, self.added = self.added, None
        if rows is None:
            return
        count = rows[0].rows
        stretches = [(row, min(row + 2, count)) for row in range(start, count, 3)]
        sizes = [
            index.remove_rows(
                block, stretches, per_message=30, per_header=4, last_is_known=last_is_known
            )
            for index, block in zip(self.twins, rows, strict=True)
        ]
        assert sizes[0] == sizes[1]
        assert sizes[0] >= 31 * len(stretches)

    def check(self) -> None:
        plain, compiled = self.twins
        assert len(plain) == len(compiled)
        assert sorted(plain.counts()) == sorted(compiled.counts())
        for subject in SUBJECTS:
            assert (subject in plain) == (subject in compiled)
            assert facts(plain, subject) == facts(compiled, subject)
        for pattern in PATTERNS:
            assert list(plain.matching(pattern)) == list(compiled.matching(pattern))
            for most in (1, 3, 100):
                for index in self.twins:
                    assert in_parts(index, pattern, most) == list(plain.matching(pattern))
            assert list(plain.matching(pattern)) == sorted(
                subject for subject, _ in plain.counts() if matches(subject, pattern)
            )


def facts(index: Any, subject: bytes) -> object:
    entry = index.get(subject)
    if entry is None:
        return None
    before = None if entry.trail is None else list(entry.trail)
    return entry.count, entry.first, entry.last, before, index.trail_of(entry), entry.trail


subject = st.sampled_from(SUBJECTS)
step = st.one_of(
    st.tuples(st.just("add"), subject, st.integers(1, 3), st.booleans()),
    st.tuples(
        st.just("rows"), st.lists(subject, min_size=1, max_size=8), st.booleans(), st.booleans()
    ),
    st.tuples(st.just("remove"), subject, st.integers(1, 4)),
    st.tuples(st.just("remove rows"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("floor"), st.integers(0, 30)),
    st.tuples(st.just("forget")),
    st.tuples(st.just("clear")),
)


@given(st.lists(step, max_size=40))
def test_both_implementations_agree(steps: list[tuple[Any, ...]]) -> None:
    both = Both()
    for name, *words in steps:
        match name:
            case "add":
                both.add(words[0], words[1], trailed=words[2])
            case "rows":
                both.add_rows(words[0], trailed=words[1], numbered=words[2])
            case "remove":
                both.remove(words[0], words[1])
            case "remove rows":
                both.remove_rows(start=words[0], last_is_known=words[1])
            case "floor":
                for index in both.twins:
                    index.floor = words[0]
            case "forget":
                for index in both.twins:
                    index.forget_trails()
            case "clear":
                both.added = None
                for index in both.twins:
                    index.clear()
        both.check()


def test_removed_subjects_take_no_memory() -> None:
    index = _index.SubjectIndex()
    for i in range(50_000):
        index.added(b"inbox.%d" % i, count=1, first=i + 1, last=i + 1)
        if i >= 100:
            index.removed(b"inbox.%d" % (i - 100), 1)
        if i % 1000 == 0:
            assert b"inbox.%d" % i in set(index.matching(b"inbox.*"))
    assert len(index) == 100
    assert index.nbytes < 200 * 200


def test_many_subjects_take_less_than_200_bytes_each() -> None:
    index = _index.SubjectIndex()
    for i in range(100_000):
        index.added(b"orders.%08d" % i, count=1, first=i + 1, last=i + 1)
    assert sum(1 for _ in index.matching(b">")) == 100_000
    assert index.nbytes < 100 * 100_000


def test_a_handle_is_invalid_after_its_subject_was_removed() -> None:
    index = _index.SubjectIndex()
    entry = index.added(b"a", count=1, first=1, last=1)
    index.removed(b"a", 1)
    with pytest.raises(AssertionError, match="gone"):
        _ = entry.count
    with pytest.raises(KeyError):
        index.removed(b"a", 1)
    index.added(b"b", count=1, first=2, last=2)
    with pytest.raises(AssertionError, match="lost more"):
        index.removed(b"b", 2)


def test_a_trail_is_set_and_read_as_a_copy() -> None:
    for index in (index_py.SubjectIndex(), _index.SubjectIndex()):
        entry = index.added(b"a", count=2, first=1, last=2)
        entry.trail = array("q", [1, 10, 2, 20])
        found = index.trail_of(entry)
        assert found == array("q", [1, 10, 2, 20])
        del found[:2]
        assert index.trail_of(entry) == array("q", [1, 10, 2, 20])


@given(st.sets(st.binary(min_size=1, max_size=12), max_size=40), st.binary(min_size=1, max_size=3))
def test_both_hash_implementations_agree_and_find_their_subjects(
    subjects: set[bytes], other: bytes
) -> None:
    hashes = hashes_py.subject_hashes(subjects)
    assert hashes == _hashes.subject_hashes(subjects)
    assert all(_hashes.among_hashes(hashes, subject) for subject in subjects)
    assert _hashes.among_hashes(hashes, other) == hashes_py.among_hashes(hashes, other)


def test_hashes_rule_out_nearly_all_other_subjects() -> None:
    hashes = _hashes.subject_hashes([b"key.%d" % i for i in range(8192)])
    assert sum(_hashes.among_hashes(hashes, b"other.%d" % i) for i in range(8192)) < 5


@pytest.mark.parametrize("form", [b"f.%d.x", b"f.*.x%d"], ids=["literal", "wildcard"])
def test_matching_many_filters_does_not_compare_each(form: bytes) -> None:
    """Comparing each filter would be 400 million comparisons: minutes with a blocked event loop."""
    wanted = SubjectFilter(tuple(form % i for i in range(20_000)))
    began = time.thread_time()
    taken = sum(wanted(b"f.%d.x%d" % (i, i)) for i in range(20_000))
    assert taken == (20_000 if form.startswith(b"f.*") else 0)
    assert time.thread_time() - began < 5


@given(st.lists(st.sampled_from(PATTERNS + SUBJECTS), max_size=6))
def test_subjects_of_many_patterns_are_listed_once(patterns: list[bytes]) -> None:
    for index in (index_py.SubjectIndex(), _index.SubjectIndex()):
        for seq, subject in enumerate(SUBJECTS[1:], 1):
            index.added(subject, count=1, first=seq, last=seq)
        wanted = [s for s in SUBJECTS[1:] if any(matches(s, pattern) for pattern in patterns)]
        if patterns:
            parts = matching_parts(index, SubjectFilter(tuple(patterns)))  # type: ignore[arg-type]
            assert sorted(chain.from_iterable(parts)) == sorted(wanted)


def test_patterns_with_a_common_prefix_share_one_walk() -> None:
    """One walk per pattern would visit 300 million subjects."""
    index = _index.SubjectIndex()
    for seq in range(1, 100_001):
        index.added(b"f.%d.x%d" % (seq, seq), count=1, first=seq, last=seq)
    wanted = SubjectFilter(tuple(b"f.*.x%d" % i for i in range(1, 3001)))
    began = time.thread_time()
    assert sum(map(len, matching_parts(index, wanted))) == 3000  # type: ignore[arg-type]
    assert time.thread_time() - began < 5


def test_partitions_agree_with_the_twin() -> None:
    """So many subjects that partitions are split more than once, and half of them removed."""
    plain, compiled = index_py.SubjectIndex(), _index.SubjectIndex()
    names = [b"k.%d.%d" % (i % 7, i) for i in range(60_000)]
    for index in (plain, compiled):
        for seq, name in enumerate(names, 1):
            entry = index.added(name, count=2, first=seq, last=seq + 1)
            if seq % 3 == 0:
                entry.trail_grew(2, (seq, 10, seq + 1, 20))
        for name in names[::2]:
            index.removed(name, 2)
        for seq, name in enumerate(names[:5000:2], 70_000):
            index.added(name, count=1, first=seq, last=seq)
    assert len(plain) == len(compiled)
    for name in names[:6000] + names[-1000:]:
        assert facts(plain, name) == facts(compiled, name)
    assert dict(plain.counts()) == dict(compiled.counts())
    for pattern in (b"k.*.*", b"k.3.*", b"k.*.77", b"none.>"):
        assert list(plain.matching(pattern)) == list(compiled.matching(pattern))
        assert in_parts(compiled, pattern, 512) == list(plain.matching(pattern))
    compiled.forget_trails()
    assert compiled.get(names[5]).trail is None
    compiled.clear()
    assert (len(compiled), list(compiled.counts()), in_parts(compiled, b">", 9)) == (0, [], [])


def test_a_part_goes_on_where_the_last_one_ended_while_subjects_come_and_go() -> None:
    index = _index.SubjectIndex()
    for seq in range(20_000):
        index.added(b"k.%05d" % seq, count=1, first=seq, last=seq)
    found: list[bytes] = []
    last: bytes | None = b""
    seq = 20_000
    while last is not None:
        part, last = index.matching_part(b"k.>", last, 100)
        found += part
        if len(found) % 1000 < 100 and last:
            index.removed(last, 1)
            index.added(last, count=1, first=seq, last=seq)  # it was listed already
            index.added(b"k.0000.%d" % seq, count=1, first=seq, last=seq)  # before all of them
            seq += 1
    assert found == [b"k.%05d" % seq for seq in range(20_000)]


def test_no_batch_of_new_subjects_takes_long() -> None:
    """One table for all would move 786,000 entries at once: 25 ms."""
    blocks = []
    for first in range(0, 900_000, 1000):
        builder = _builder.BlockBuilder(first + 1)
        for at in range(first, first + 1000):
            builder.append(b"s.%d" % at, b"", b"", time_ns=1, seq=at + 1)
        blocks.append(_block.Block(builder.build()))
    assert min(worst_batch(blocks) for _ in range(3)) < 0.01


def worst_batch(blocks: list[_block.Block]) -> float:
    index = _index.SubjectIndex()
    worst = 0.0
    for block in blocks:
        began = time.thread_time()
        index.add_rows(block)
        worst = max(worst, time.thread_time() - began)
    return worst


def test_a_part_sorts_a_bounded_number_of_new_subjects() -> None:
    """Sorting all of them took 340 ms for four million, and merging one more 34 ms."""
    index = _index.SubjectIndex()
    for seq in range(200_000):
        index.added(b"k.%d" % seq, count=1, first=seq, last=seq)
    part, last = index.matching_part(b"k.>", b"", 100)
    assert (part, last) == ([], b"")
    assert len(in_parts(index, b"k.>", 100)) == 200_000
    index.added(b"k.new", count=1, first=1, last=1)
    part, _ = index.matching_part(b"k.>", b"", 100)
    assert len(part) == 100


# Two texts of each pair lead FNV-1a, whose state after "s." is known, to the same state again.
PAIRS = [(b"fwzx", b"06cd"), (b"yyao", b"1kia")] + 4 * [
    (b"g3zx", b"1pad"), (b"epvu", b"33ea"), (b"zwfo", b"2uja")
]  # fmt: skip


@pytest.mark.parametrize("make", [hashes_py.subject_hashes, _hashes.subject_hashes])
def test_a_client_cannot_choose_subjects_with_the_same_hash(make: Any) -> None:
    """With a hash function without a key, all of these had the same one, and a publish of one more
    looked at all others."""
    subjects = [b"s." + b"".join(parts) for parts in product(*PAIRS[:10])]
    hashes = memoryview(make(subjects)).cast("I")
    assert len(set(hashes)) > len(subjects) - 10


@pytest.mark.parametrize(("size", "expected"), [(3, 3283778279), (8, 2489990924), (15, 1218412239)])
def test_the_hash_is_siphash(size: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As CPython 3.11 has it for PYTHONHASHSEED=0, whose key is zero."""
    monkeypatch.setattr(hashes_py, "KEY", (0, 0))
    (value,) = memoryview(hashes_py.subject_hashes([bytes(range(size))])).cast("I")
    assert value == expected
