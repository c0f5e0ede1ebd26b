"""The oldest messages of one subject, or of many, are removed without a search of the stream."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.store import segments
from broker.store.block.codec import Block, BlockBuilder
from broker.store.index.subject_filter import SubjectFilter
from broker.store.messages import MessageStore
from broker.store.segments import Segment, Segments, View


def block(subjects: list[bytes]) -> Block:
    made = BlockBuilder()
    for subject in subjects:
        made.append(subject, b"", b"x")
    return Block(made.build(seal=False), verify=False)


def filled(monkeypatch: pytest.MonkeyPatch, subjects: list[bytes], *, rows: int) -> MessageStore:
    monkeypatch.setattr(segments, "SEAL_ROWS", rows)
    store = MessageStore()
    for at in range(0, len(subjects), rows):
        store.append_block(block(subjects[at : at + rows]), time_ns=at + 1)
    return store


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the rows of a segment were asked for."""
    count = [0]
    original = Segments.view

    def counted(self: Segments, segment: Segment) -> View:
        count[0] += 1
        return original(self, segment)

    monkeypatch.setattr(Segments, "view", counted)
    return count


def test_a_limit_for_all_subjects_is_one_pass_over_the_blocks(
    monkeypatch: pytest.MonkeyPatch, read: list[int]
) -> None:
    """It was a search per subject: 30 s for 100,000 of them, on every replica."""
    names = [b"s.%d" % (at % 500) for at in range(1000)]
    store = filled(monkeypatch, names, rows=100)
    read[0] = 0
    store.drop_oldest_of_many(dict.fromkeys(names, 1))
    assert store.messages == 500
    assert store.first_seq == 501
    assert read[0] < 10 * 4


def test_the_only_message_of_a_subject_is_found_by_the_index(
    monkeypatch: pytest.MonkeyPatch, read: list[int]
) -> None:
    """A publish to a subject that has as many messages as it may have, in a store that remembers no
    trails: what a limit that was lowered leaves."""
    names = [b"kept.%d" % at if at % 100 == 0 else b"s.%d" % (at % 50) for at in range(1000)]
    store = filled(monkeypatch, names, rows=100)
    store.drop_oldest_of_many({b"s.%d" % at: 19 for at in range(1, 50)})
    store.remember_trails(1)
    for at in range(1, 50):
        store.append(b"s.%d" % at, b"", b"y", time_ns=2000)
        read[0] = 0
        assert store.drop_oldest_of(b"s.%d" % at, 1) == 1
        assert read[0] < 8
    assert store.messages == 49 + 10 + 10


def test_a_roll_up_reads_only_where_its_subject_is(
    monkeypatch: pytest.MonkeyPatch, read: list[int]
) -> None:
    """It looked at every block, for every message: 9 s for a PING beside a flood of them."""
    store = filled(monkeypatch, [b"s.%d" % (at % 7) for at in range(4000)], rows=100)
    assert store.purge(b"s.3", keep=1) == 570
    for _ in range(5):
        store.append(b"s.3", b"", b"y", time_ns=5000)
        read[0] = 0
        assert store.purge(b"s.3", keep=1) == 1
        assert read[0] < 8
    assert store.purge(b"s.3") == 1
    assert store.subject_state(b"s.3") is None


def test_a_roll_up_looks_once_at_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of each was looked at again: half of the 11 ms for 20,000 messages."""
    store = filled(monkeypatch, [b"s.%d" % (at % 2) for at in range(2000)], rows=100)
    looks = 0
    original = View.stretches_of

    def counted(self: View, subject: bytes) -> list[tuple[int, int]]:
        nonlocal looks
        looks += 1
        return original(self, subject)

    monkeypatch.setattr(View, "stretches_of", counted)
    for subject in (b"s.0", b"s.1"):  # the others are removed when the second one is looked for
        looks = 0
        assert store.purge(subject, keep=1) == 999
        assert looks <= 21
    assert store.subject_state(b"s.0") == (1, 1999, 1999)
    assert store.subject_state(b"s.1") == (1, 2000, 2000)


@pytest.mark.parametrize("seed", range(30))
def test_many_at_once_are_the_same_as_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The journal, too: consumers on every replica act on it, also on those of another version."""
    dice = random.Random(seed)
    names = [b"s.%d" % at for at in range(6)]
    subjects = [dice.choice(names) for _ in range(120)]
    gone = sorted(dice.sample(range(1, 121), dice.randrange(60)))
    once, each = (filled(monkeypatch, subjects, rows=dice.choice((7, 30))) for _ in range(2))
    for store in (once, each):
        store.remove_many(gone)
        store.track_removals(on=True)
    counts = {name: e.count for name in names if (e := once.index.get(name)) is not None}
    excess = {name: dice.randint(1, count) for name, count in counts.items() if dice.random() < 0.8}
    once.drop_oldest_of_many(dict(excess))
    for name in sorted(excess):
        each.drop_oldest_of(name, counts[name] - excess[name])
    assert facts(once) == facts(each)
    assert once.take_removals() == each.take_removals()


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_many_of_one_subject_are_removed_as_one_by_one(
    monkeypatch: pytest.MonkeyPatch, seed: int, tracked: bool
) -> None:
    dice = random.Random(seed)
    subjects = [dice.choice((b"a", b"b", b"c")) for _ in range(600)]
    gone = sorted(dice.sample(range(1, 601), dice.randrange(300)))
    once, each = (filled(monkeypatch, subjects, rows=150) for _ in range(2))
    for store in (once, each):
        store.remove_many(gone)
        store.track_removals(on=tracked)
    entry = once.index.get(b"b")
    assert entry is not None
    count = entry.count
    keep = dice.randrange(count)
    assert once.drop_oldest_of(b"b", keep) == count - keep
    for left in range(count - 1, keep - 1, -1):
        assert each.drop_oldest_of(b"b", left) == 1
    assert facts(once) == facts(each)
    assert once.take_removals() == each.take_removals()


def facts(store: MessageStore) -> Any:
    stored = [seq for seq in range(1, store.last_seq + 1) if store.has(seq)]
    subjects = sorted(store.subjects_matching(b">"))
    states = [store.subject_state(subject) for subject in subjects]
    return stored, store.messages, store.bytes, store.first_seq, subjects, states


def test_filters_keep_few_and_short_subjects_only() -> None:
    """A stream keeps 256 filters: with 65,536 subjects each they took gigabytes."""
    wanted = SubjectFilter((b"s.*",))
    for at in range(5000):
        assert wanted(b"s.%d" % at)
        assert wanted(b"s.%d%s" % (at, b"x" * 200))
    assert len(wanted._cached) <= 4096
    assert max(map(len, wanted._cached)) <= 128
