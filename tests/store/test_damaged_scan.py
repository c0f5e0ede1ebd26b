"""Damage that a scan of records meets is told: what it leaves out would look deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from broker.store import persistence
from broker.store.memory_db import MemoryDb
from broker.store.messages import MessageStore
from broker.store.state_db import StateDb
from broker.store.state_keys import SUMMARY, key

GROUP, RECORDS = 7, 200


@contextmanager
def opened(place: Path) -> Iterator[StateDb]:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    database = Rdict(str(place), options, {"state": Options(raw_mode=True)})
    state = StateDb(database)
    yield state
    state.let_go()
    database.close()


def flip(place: Path, share: float) -> None:
    """A bit in the data of the only file with records."""
    path = max(place.glob("*.sst"), key=lambda found: found.stat().st_size)
    content = bytearray(path.read_bytes())
    content[int(len(content) * share)] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6])
def test_a_scan_does_not_end_at_a_damaged_block(tmp_path: Path, share: float) -> None:
    with opened(tmp_path) as state:
        for seq in range(RECORDS):
            data = (b"%d" % seq) * 50
            state.change(
                lambda batch, seq=seq, data=data: batch.put(key(GROUP, SUMMARY, seq), data)
            )
        state.flush()
        assert [seq for seq, _ in state.files(GROUP).scan(SUMMARY)] == list(range(RECORDS))
    flip(tmp_path, share)
    with (
        opened(tmp_path) as state,
        pytest.raises(Exception, match="Corruption: block checksum") as damage,
    ):
        list(state.files(GROUP).scan(SUMMARY))
    with opened(tmp_path):
        assert damage.tb is not None, "the error does not keep the database open"


def test_a_snapshot_is_installed_beside_the_damage_of_another_group(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        for seq in range(RECORDS):
            state.change(lambda batch, seq=seq: batch.put(key(GROUP + 1, SUMMARY, seq), b"x" * 99))
        state.flush()
    flip(tmp_path, 0.01)
    origin = MessageStore(MemoryDb().files(1))
    origin.append(b"s", b"", b"message", time_ns=1)
    image, chunks = persistence.image(origin), list(persistence.snapshot(origin))
    with opened(tmp_path) as state:
        store = MessageStore(state.files(GROUP))
        state.wipe(GROUP)
        persistence.restore(store, image, chunks)
        assert persistence.digest(store) == persistence.digest(origin)
