"""A search that may look at every subject of a stream is done in steps of bounded work, and misses
nothing although the stream changes between them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.store import search, segments
from broker.store.index.subject_filter import SubjectFilter
from broker.store.messages import MessageStore
from broker.store.persistence import compact
from broker.subjects import Steps, finish

ROWS = 2048  # of a segment
SEGMENTS = 4
STEP_MAX = 512  # subjects
UNMATCHED = (b"s.*.none",)
LITERALS = tuple(b"none.%d" % at for at in range(3000))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MessageStore:
    monkeypatch.setattr(segments, "SEAL_ROWS", ROWS)
    filled = MessageStore()
    for at in range(ROWS * SEGMENTS):
        filled.append(b"s.%d.x" % at, b"", b"", time_ns=at + 1)
    return filled


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many subjects were compared with a filter."""
    count = [0]
    fits, holds = SubjectFilter.__call__, segments.Segments.holds

    def fits_counted(self: SubjectFilter, subject: bytes) -> bool:
        count[0] += 1
        return fits(self, subject)

    def holds_counted(self: segments.Segments, segment: segments.Segment, name: bytes) -> bool:
        count[0] += 1
        return holds(self, segment, name)

    monkeypatch.setattr(SubjectFilter, "__call__", fits_counted)
    monkeypatch.setattr(segments.Segments, "holds", holds_counted)
    return count


def longest_step(steps: Steps[int], compared: list[int]) -> tuple[int, int]:
    """The result, and the most subjects that one step compared."""
    most = before = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, max(most, compared[0] - before)
        most, before = max(most, compared[0] - before), compared[0]


SEARCHES: dict[str, Callable[[MessageStore, tuple[bytes, ...]], Steps[int]]] = {
    "next": lambda store, filters: store.next_matching_steps(filters, 2),
    "last": lambda store, filters: store.last_matching_steps(filters, store.last_seq),
    "count": lambda store, filters: store.count_matching_steps(filters, 2, store.last_seq),
    "count by the index": lambda store, filters: store.count_matching_steps(
        filters, 1, store.last_seq
    ),
}


@pytest.mark.parametrize("filters", [UNMATCHED, LITERALS], ids=["wildcard", "literals"])
@pytest.mark.parametrize("kind", SEARCHES)
def test_a_step_compares_few_subjects(
    store: MessageStore, compared: list[int], kind: str, filters: tuple[bytes, ...]
) -> None:
    found, most = longest_step(SEARCHES[kind](store, filters), compared)
    assert found == 0
    # Rows of a segment whose subjects are not known yet are looked at together.
    assert most <= STEP_MAX + (ROWS if filters is LITERALS else 0)


def test_a_reader_of_a_subject_that_is_not_there_stops_after_bounded_work(
    store: MessageStore, compared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.store.messages.NAMES_PER_TAKE_MAX", ROWS)
    at, looks = 1, 0
    while at <= store.last_seq:
        before = compared[0]
        taken = store.examine(UNMATCHED, at, 10, 1000)
        assert taken.count == 0
        assert taken.next_seq > at
        assert compared[0] - before <= ROWS + 1
        at, looks = taken.next_seq, looks + 1
    assert looks >= SEGMENTS


@pytest.mark.parametrize("change", ["removed", "compacted", "purged", "appended"])
@pytest.mark.parametrize("kind", ["next", "last"])
def test_a_change_between_two_steps_hides_nothing(
    store: MessageStore, kind: str, change: str
) -> None:
    """One message matches all the time; around it the store changes after every step."""
    middle = ROWS * 2 + 7
    steps = SEARCHES[kind](store, (b"s.*.x",) if change == "purged" else (b"s.%d.*" % middle,))
    removed = iter(range(1, store.last_seq + 1))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
            break
        for seq in (next(removed) for _ in range(400)):
            if change == "appended":
                store.append(b"t.%d.x" % seq, b"", b"", time_ns=10**6 + seq)
            elif change == "purged":
                store.purge(b"", up_to=store.last_seq)
                break
            elif seq != middle + 1 and store.has(seq):
                store.remove(seq)
        if change == "compacted":
            compact(store)
    if change == "purged":
        assert found == 0 or store.has(found)
    else:
        assert found == middle + 1


def test_counts_by_blocks_and_by_the_index_agree(store: MessageStore) -> None:
    for seq in range(1, store.last_seq, 3):
        store.remove(seq)
    for filters in ((b"s.*.x",), (b"s.1.x", b"s.2.x", b"s.5000.x"), (b"s.1.*", b"s.>"), ()):
        wanted = store._filter(filters)
        by_blocks = search.count_matching_steps(
            store.segments, wanted, start=1, last=store.last_seq
        )
        assert finish(by_blocks) == store.count_matching(filters, 1)


def test_a_count_passes_segments_without_its_subject_in_one_step(store: MessageStore) -> None:
    """The first message of a consumer waits for the count: a step per segment, each in another
    turn of the loop, would make it wait for all of them."""
    assert len(store.segments.all) >= SEGMENTS
    steps = search.count_matching_steps(
        store.segments, store._filter((b"none.1",)), start=2, last=store.last_seq
    )
    assert sum(1 for _ in steps) == 0
