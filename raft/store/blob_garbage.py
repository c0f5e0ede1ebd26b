"""Garbage in blob files: when the files of large values are rewritten to free space.

Owns: when blob files are worth rewriting, and rewriting them.
May not touch: which values are needed; others delete them.
Spec: docs/decisions/0012-blob-garbage-collection.md. RocksDB deletes a blob file when no value in
it is alive, which is enough for logs and most streams. It could also move live values out of old
files at every compaction, however little of them is garbage. That is off, or each byte of a large
stream would be written again and again. Instead all live values are moved when more than half is
garbage, so that moving never writes more than was deleted."""

from __future__ import annotations

import os
from typing import Final

from rocksdict import BottommostLevelCompaction, CompactOptions, Options, Rdict

_AGE: Final = (
    "blob_garbage_collection_age_cutoff"  # the share of the files, oldest first, to rewrite
)
_VALUE_BYTES_MIN: Final = 4096  # smaller values stay beside their keys
_GARBAGE_BYTES_MIN: Final = 256 << 20  # less is not worth a rewrite
# So many deletes close together, as after a purge, trigger a compaction: before one the database
# does not know what is garbage.
_DELETES_WINDOW: Final = 1024
_DELETES_MANY: Final = 512


def keep_values_apart(options: Options) -> None:
    """Store values in files of their own, so that compaction moves keys and not values."""
    options.set_enable_blob_files(val=True)
    options.set_min_blob_size(_VALUE_BYTES_MIN)
    options.set_enable_blob_gc(val=True)
    options.set_blob_gc_age_cutoff(0.0)
    options.add_compact_on_deletion_collector_factory(_DELETES_WINDOW, _DELETES_MANY, 0.0)


def is_wasteful(column: Rdict) -> bool:
    """Whether a rewrite would free more than it writes, and has the space that it needs."""
    garbage = column.property_int_value("rocksdb.live-blob-file-garbage-size") or 0
    if garbage < _GARBAGE_BYTES_MIN:
        return False
    alive = (column.property_int_value("rocksdb.live-blob-file-size") or 0) - garbage
    disk = os.statvfs(column.path())
    return alive < garbage and 2 * alive < disk.f_bavail * disk.f_frsize


def rewrite(column: Rdict) -> None:
    """Blocking: values that were deleted and flushed before the call are in no file after it."""
    everything = CompactOptions()
    everything.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
    column.set_options({_AGE: "1.0"})
    try:
        column.compact_range(None, None, everything)
    finally:
        column.set_options({_AGE: "0.0"})
