"""Garbage collection in Spark's Python workers, and nowhere else."""

from __future__ import annotations

import gc
import sys
from types import ModuleType, SimpleNamespace

import pytest

from broker.spark.worker_process import spare_loaded_modules


@pytest.mark.parametrize(
    ("main", "frozen"), [("pyspark.daemon", True), ("pytest.__main__", False), (None, False)]
)
def test_loaded_modules_are_spared_in_workers_only(
    monkeypatch: pytest.MonkeyPatch, main: str | None, *, frozen: bool
) -> None:
    process = ModuleType("__main__")
    process.__spec__ = None if main is None else SimpleNamespace(name=main)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", process)
    spare_loaded_modules.cache_clear()
    before = gc.get_freeze_count()
    try:
        spare_loaded_modules()
        assert (gc.get_freeze_count() > before) is frozen
    finally:
        gc.unfreeze()
        spare_loaded_modules.cache_clear()
