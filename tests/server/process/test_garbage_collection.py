"""Garbage collection: old objects are left alone until it may be worth it to look at them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from broker.server.process import garbage_collection as garbage
from broker.server.process.garbage_collection import (
    DELETED_MIN,
    GROWN_OBJECTS,
    GROWN_TIMES,
    OBJECTS_PER_HELD,
    OldGarbage,
    OldObjects,
    collect_young_objects,
)


class Circle:
    def __init__(self) -> None:
        self.self = self


@pytest.fixture
def as_in_a_server() -> Iterator[None]:
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    were_set_aside = gc.get_freeze_count() > 0
    collect_young_objects()
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = callbacks
    if not were_set_aside:
        gc.unfreeze()


@pytest.mark.usefixtures("as_in_a_server")
def test_garbage_is_collected_while_it_is_young_and_old_objects_are_set_aside() -> None:
    young = weakref.ref(Circle())
    kept = Circle()
    old = weakref.ref(kept)
    gc.collect(1)
    assert young() is None
    del kept
    gc.collect()  # no generation has it
    assert old() is not None


@pytest.mark.usefixtures("as_in_a_server")
def test_old_garbage_is_collected_when_much_was_deleted() -> None:
    kept = [Circle() for _ in range(10)]
    old = weakref.ref(kept[0])
    gc.collect(1)
    held = 1000
    collection = OldGarbage(lambda: held)
    collection.check()
    kept.clear()
    collection.check()
    assert old() is not None, "nothing says that there is garbage"
    held = 500
    collection.check()
    assert old() is None


def test_it_is_worth_it_when_more_objects_appear_than_streams_account_for() -> None:
    old = OldObjects()
    old.collected(objects=100_000, held=0)
    most = int(GROWN_TIMES * 100_000) + GROWN_OBJECTS
    assert not old.is_worth_it(objects=most, held=0)
    assert old.is_worth_it(objects=most + 1, held=0)
    streams = 40_000
    assert not old.is_worth_it(objects=100_000 + streams * OBJECTS_PER_HELD, held=streams)
    old.collected(objects=1_900_000, held=streams)
    assert not old.is_worth_it(objects=2_000_000, held=streams)


def test_it_is_worth_it_when_much_was_deleted() -> None:
    old = OldObjects()
    old.collected(objects=1_000_000, held=5_000)
    assert not old.is_worth_it(objects=1_000_000, held=10_000)
    assert not old.is_worth_it(objects=1_000_000, held=9_000)
    assert old.is_worth_it(objects=1_000_000, held=7_000)
    old.collected(objects=900_000, held=7_000)
    assert not old.is_worth_it(objects=900_000, held=7_000)
    old.collected(objects=50_000, held=DELETED_MIN)
    assert not old.is_worth_it(objects=50_000, held=0), "a few streams are not worth it"


def test_collections_of_young_objects_are_short(as_in_a_server: None) -> None:
    assert gc.get_threshold() == (
        garbage.YOUNG_OBJECTS, garbage.YOUNG_COLLECTIONS, garbage.NEVER,
    )  # fmt: skip
