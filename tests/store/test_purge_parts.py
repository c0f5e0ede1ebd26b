"""Purge by filter: by index if few subjects match, otherwise in parts equal on all replicas."""

from __future__ import annotations

import pytest

from broker.store import messages, persistence
from broker.store.memory_db import MemoryDb
from broker.store.messages import MessageStore
from broker.store.removal import PurgePart
from broker.subjects import matches

SUBJECTS = [b"s.%d.%s" % (i, b"odd" if i % 2 else b"even") for i in range(30)]
COUNT = 600


def filled(*, seal_at: int, monkeypatch: pytest.MonkeyPatch) -> MessageStore:
    monkeypatch.setattr("broker.store.segments.SEAL_ROWS", seal_at)
    db = MemoryDb()
    store = MessageStore(db.files(1))
    for k in range(COUNT):
        store.append(SUBJECTS[k * 7 % 30], b"", b"%d" % k, time_ns=k + 1)
    batch = db.begin()
    persistence.checkpoint(store, batch)
    db.write(batch)
    persistence.written(store)
    return store


def parts(store: MessageStore, pattern: bytes, up_to: int | None, keep: int) -> list[PurgePart]:
    done = [store.purge_part(pattern, up_to, keep)]
    while done[-1].next_seq:
        last = done[-1]
        done.append(store.purge_part(pattern, last.bound, start=last.next_seq, left=last.left))
    return done


@pytest.mark.parametrize("few", [0, 64])
@pytest.mark.parametrize("pattern", [b"s.*.odd", b"s.>", b"s.3.odd", b"*.none", b"s.12.*"])
@pytest.mark.parametrize(("up_to", "keep"), [(None, 0), (333, 0), (None, 10), (None, 1000)])
def test_a_purge_removes_matches_below_the_bound_except_the_newest(
    few: int, pattern: bytes, up_to: int | None, keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "FEW_SUBJECTS", few)
    monkeypatch.setattr(messages, "PURGE_SPAN", 100)
    store, other = (filled(seal_at=n, monkeypatch=monkeypatch) for n in (16, 50))
    all_seqs = range(1, COUNT + 1)
    fitting = [q for q in all_seqs if matches(SUBJECTS[(q - 1) * 7 % 30], pattern)]
    going = fitting[: max(len(fitting) - keep, 0)] if keep else fitting
    going = [seq for seq in going if up_to is None or seq < up_to]
    done = parts(store, pattern, up_to, keep)
    assert done == parts(other, pattern, up_to, keep), "blocks are cut differently, parts are not"
    assert sum(part.count for part in done) == len(going)
    assert [q for q in all_seqs if not store.has(q)] == going
    assert persistence.digest(store) == persistence.digest(other)
    if few:
        assert len(done) == 1


def test_a_part_covers_a_bounded_range_of_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "FEW_SUBJECTS", 0)
    monkeypatch.setattr(messages, "PURGE_SPAN", 100)
    store = filled(seal_at=16, monkeypatch=monkeypatch)
    assert store.purge_part(b"s.*.odd") == PurgePart(50, 101, COUNT + 1, 250)
    assert store.messages == COUNT - 50


def test_no_block_is_read_if_nothing_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(seal_at=16, monkeypatch=monkeypatch)

    def unexpected(*_: object) -> object:
        raise AssertionError("looked into a segment")

    monkeypatch.setattr(type(store.segments), "view", unexpected)
    monkeypatch.setattr(type(store.segments), "subjects", unexpected)
    assert store.purge(b"none.>") == 0
    assert store.purge(b"*.none") == 0
