"""Garbage collection of RocksDB blob files: when they are rewritten to free space.

Owns: when blob files are worth rewriting, and rewriting them.
May not touch: which values are needed; others delete them.
Spec: docs/decisions/0012-blob-garbage-collection.md. RocksDB deletes a blob file when no value in
it is alive, which is enough for logs and most streams. RocksDB could also move live values out of
old files at every compaction, however little of them is garbage. That is off, because each byte of
a large stream would be written again and again. Instead all live values are moved when more than
half is garbage, so that moving never writes more than was deleted; on a nearly full disk, when a
fifth is garbage. They are moved in parts that fit into the free space."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Final

from rocksdict import BottommostLevelCompaction, CompactOptions, Options, Rdict

from raft.store.disk_space import DiskFacts

_GARBAGE: Final = "rocksdb.live-blob-file-garbage-size"
_SIZE: Final = "rocksdb.live-blob-file-size"
_FILES: Final = "rocksdb.num-blob-files"
_TABLES: Final = "rocksdb.live-sst-files-size"

_AGE: Final = (
    "blob_garbage_collection_age_cutoff"  # the share of the files, oldest first, to rewrite
)
_VALUE_BYTES_MIN: Final = 4096  # smaller values stay beside their keys
_GARBAGE_BYTES_MIN: Final = 256 << 20  # less is not worth a rewrite
_GARBAGE_SHARE_MIN: Final = 64  # or 1/64 of the disk, if that is less
_CROWDED: Final = 4  # the disk is nearly full if less than 1/4 of it is free
# This many deletes close together, as after a purge, trigger a compaction: only a compaction lets
# the database know what is garbage.
_DELETES_WINDOW: Final = 1024
_DELETES_MANY: Final = 32


def keep_values_apart(options: Options, file_bytes: int) -> None:
    """Store values in files of their own, so that compaction moves keys and not values."""
    options.set_enable_blob_files(val=True)
    options.set_blob_file_size(file_bytes)
    options.set_min_blob_size(_VALUE_BYTES_MIN)
    options.set_enable_blob_gc(val=True)
    options.set_blob_gc_age_cutoff(0.0)
    options.add_compact_on_deletion_collector_factory(_DELETES_WINDOW, _DELETES_MANY, 0.0)


def stored_bytes(column: Rdict) -> int:
    """Bytes of the column on disk, without garbage."""
    alive = (column.property_int_value(_SIZE) or 0) - (column.property_int_value(_GARBAGE) or 0)
    return alive + (column.property_int_value(_TABLES) or 0)


def is_wasteful(column: Rdict, disk: DiskFacts) -> bool:
    """Whether a rewrite is worth its cost, and there is space for it."""
    garbage = column.property_int_value(_GARBAGE) or 0
    if garbage < min(_GARBAGE_BYTES_MIN, disk.total_bytes // _GARBAGE_SHARE_MIN):
        return False
    alive = (column.property_int_value(_SIZE) or 0) - garbage
    crowded = disk.free_bytes < disk.total_bytes // _CROWDED
    return alive < (4 * garbage if crowded else garbage) and _part(column, disk) is not None


def _part(column: Rdict, disk: DiskFacts) -> float | None:
    """The part of the files, oldest first, that fits on the disk a second time, before the old ones
    are deleted. None: not even one file."""
    size = column.property_int_value(_SIZE) or 0
    files = column.property_int_value(_FILES) or 0
    usable = disk.free_bytes - disk.reserve_bytes // 2
    if 2 * size < usable or not files:
        return 1.0
    part = usable / (2 * size)
    return part if part * files >= 1 else None


def rewrite(column: Rdict, disk: DiskFacts) -> bool:
    """Blocking. Afterwards no file contains values that were deleted and flushed before the call.
    Returns False if there was no space for that."""
    everything = CompactOptions()
    everything.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
    part = _part(column, disk)
    if part is None:
        return False
    before = _blob_files(column)
    try:
        for _ in range(1 if part == 1.0 else 2 * ceil(1 / part)):
            column.set_options({_AGE: f"{part:.6f}"})
            column.compact_range(None, None, everything)
            if before.isdisjoint(_blob_files(column)):
                return True
    finally:
        column.set_options({_AGE: "0.0"})
    return part == 1.0


def _blob_files(column: Rdict) -> set[str]:
    return {file.name for file in Path(column.path()).glob("*.blob")}
