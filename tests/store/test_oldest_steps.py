"""A removal of many messages: searched for in steps, carried out without work for each of them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.store import oldest_rows, persistence
from broker.store.messages import MessageStore
from broker.store.removal import Removal
from broker.subjects import finish
from tests.store.test_oldest import facts, filled

NAMES = [b"s.%d" % (at % 50) for at in range(1000)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often what is done for one range of messages was done."""
    count: dict[str, int] = {}
    for name in ("_mark_range", "_forget_segment", "_stored_row"):
        original = getattr(Removal, name)

        def counted(self: Any, *args: Any, name: str = name, original: Any = original) -> Any:
            count[name] = count.get(name, 0) + 1
            return original(self, *args)

        monkeypatch.setattr(Removal, name, counted)
    return count


def test_a_search_reads_one_block_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(monkeypatch, NAMES, rows=100)
    monkeypatch.setattr(oldest_rows, "SUBJECTS_PER_STEP", 10)
    store.track_removals(on=True)
    read: list[int] = []
    original = oldest_rows._oldest_in

    def counted(*args: Any, **named: Any) -> Any:
        read[-1] += 1
        return original(*args, **named)

    monkeypatch.setattr(oldest_rows, "_oldest_in", counted)
    steps = store.find_oldest_of_many(dict.fromkeys(NAMES, 19))
    ended = False
    while not ended:
        read.append(0)
        ended = next(steps, True) is True
    assert max(read) == 1
    assert len(read) > 10 + 950 // 60  # blocks, and parts of the journal
    assert store.messages == 1000


@pytest.mark.parametrize("seed", range(10))
def test_what_was_found_is_what_is_removed(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    dice = random.Random(seed)
    subjects = [dice.choice(NAMES) for _ in range(600)]
    gone = dice.sample(range(1, 601), 200)
    monkeypatch.setattr(oldest_rows, "SUBJECTS_PER_STEP", dice.choice((3, 4096)))
    stores = [filled(monkeypatch, subjects, rows=rows) for rows in (90, 90, 35)]
    excess: list[dict[bytes, int]] = [{} for _ in stores]
    for store, over in zip(stores, excess, strict=True):
        store.remove_many(sorted(gone))
        store.track_removals(on=True)
        over.update({name: count - 1 for name, count in store.index.counts() if count > 1})
    prepared, at_once, rewritten = stores
    assert prepared.drop_found(finish(prepared.find_oldest_of_many(excess[0])))
    assert all(entry_is_exact(prepared, name) for name in excess[1])
    at_once.drop_oldest_of_many(excess[1])
    found = finish(rewritten.find_oldest_of_many(dict(excess[2])))
    before = facts(rewritten)
    if compacted(rewritten):
        assert not rewritten.drop_found(found)
        assert facts(rewritten) == before
        found = finish(rewritten.find_oldest_of_many(excess[2]))
    assert rewritten.drop_found(found)
    assert facts(prepared) == facts(at_once) == facts(rewritten)
    journals = [store.take_removals() for store in stores]
    assert journals[0] == journals[1] == journals[2]


def compacted(store: MessageStore) -> bool:
    """Rewrite a block in the middle, as the work ahead of a checkpoint may do."""
    for segment in store.segments.all:
        if segment.deleted is not None and segment is not store.segments.tail:
            store.segments.shrink(segment, persistence.live_block(store.segments, segment))
            return True
    return False


def entry_is_exact(store: MessageStore, subject: bytes) -> bool:
    """Its only message is found without a search."""
    entry = store.index.get(subject)
    return entry is None or entry.count > 1 or entry.first == entry.last


def test_a_roll_up_takes_no_step_for_each_message(
    monkeypatch: pytest.MonkeyPatch, calls: dict[str, int]
) -> None:
    store = filled(monkeypatch, NAMES[:2] * 500, rows=100)
    assert store.purge(b"s.1", keep=1) == 499
    assert calls.get("_mark_range", 0) < 50


def test_a_purge_that_keeps_little_does_not_look_at_what_it_removes(
    monkeypatch: pytest.MonkeyPatch, calls: dict[str, int]
) -> None:
    store, other = (
        filled(monkeypatch, [b"s.%d" % at for at in range(995)], rows=100) for _ in "ab"
    )
    for one in (store, other):
        one.remove(990)
    other.remember_trails(5)  # which have to be kept up to date
    assert store.purge(keep=3) == other.purge(keep=3) == 991
    assert calls == {"_mark_range": 2, "_forget_segment": 9}
    assert facts(store) == facts(other)
    assert store.num_subjects == 3


@pytest.mark.parametrize("form", [range, lambda *ends: list(range(*ends))], ids=["range", "list"])
def test_an_ack_of_a_range_is_not_a_search_for_each_message(
    monkeypatch: pytest.MonkeyPatch, calls: dict[str, int], form: Any
) -> None:
    store, other = (filled(monkeypatch, NAMES, rows=100) for _ in "ab")
    for one in (store, other):
        one.track_removals(on=True)
        one.remove(7)
    assert store.remove_many(form(3, 900)) == 896
    assert "_stored_row" not in calls
    assert sum(map(other.remove, range(3, 900))) == 896
    assert facts(store) == facts(other)
    assert store.take_removals() == other.take_removals()
