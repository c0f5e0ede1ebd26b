"""A database that has failed can be opened again, whatever refers to what was being written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from broker.store.state_db import StaleBatch, StateDb
from broker.store.state_keys import SUMMARY, key


def opened(place: Path) -> Rdict:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    return Rdict(str(place), options, {"state": Options(raw_mode=True)})


def test_batches_and_errors_of_before_do_not_keep_it_open(tmp_path: Path) -> None:
    """A node that cannot open its store again is lost until it is restarted."""
    database, fails = opened(tmp_path), True

    def write(*batch: Any) -> None:
        if fails:
            raise OSError("too many open files")
        database.write(*batch)

    state = StateDb(database, write=write)
    with pytest.raises(OSError, match="too many") as failed:
        state.change(lambda batch: batch.put(key(7, SUMMARY, 1), b"lost"))
    waiting = state.begin()  # for its blocks
    waiting.put(key(7, SUMMARY, 2), b"stale")
    state.let_go()
    database.close()
    database, fails = opened(tmp_path), False
    state.take(database)
    assert failed.tb is not None, "the host keeps the error until it has recovered"
    with pytest.raises(StaleBatch):
        state.write(waiting)
    state.change(lambda batch: batch.put(key(7, SUMMARY, 3), b"new"))
    assert list(state.files(7).scan(SUMMARY)) == [(3, b"new")]
    state.let_go()
    database.close()
