"""Values that nobody needs any more, and the files of the database that still hold them.

Owns: when files of values are worth being rewritten, and rewriting them.
May not touch: which values are needed; deleting them is the business of others.
Spec: decision 12. RocksDB lets go of a file of values when none of them is alive any more, which is
all that logs and most streams need. It would also move what is alive out of old files at every
compaction, however little of them is garbage: this is off, or each byte of a large stream would be
written again and again. Instead everything alive is moved when more than half is garbage, so that
moving never writes more than had been deleted."""

from __future__ import annotations

import os
from typing import Final

from rocksdict import BottommostLevelCompaction, CompactOptions, Options, Rdict

_AGE: Final = "blob_garbage_collection_age_cutoff"  # the part of the files, oldest first, to empty
_VALUE_BYTES_MIN: Final = 4096  # smaller ones stay beside their keys
_GARBAGE_BYTES_MIN: Final = 256 << 20  # less is not worth the trouble
# So many deletes close together, as of a purge, are worth a compaction: before one the database
# does not know what is garbage.
_DELETES_WINDOW: Final = 1024
_DELETES_MANY: Final = 512


def keep_values_apart(options: Options) -> None:
    """Values go to files of their own, so that compaction moves keys and not the values."""
    options.set_enable_blob_files(val=True)
    options.set_min_blob_size(_VALUE_BYTES_MIN)
    options.set_enable_blob_gc(val=True)
    options.set_blob_gc_age_cutoff(0.0)
    options.add_compact_on_deletion_collector_factory(_DELETES_WINDOW, _DELETES_MANY, 0.0)


def is_wasteful(column: Rdict) -> bool:
    """Whether a rewrite would free more than it writes, and has the room that it needs."""
    garbage = column.property_int_value("rocksdb.live-blob-file-garbage-size") or 0
    if garbage < _GARBAGE_BYTES_MIN:
        return False
    alive = (column.property_int_value("rocksdb.live-blob-file-size") or 0) - garbage
    disk = os.statvfs(column.path())
    return alive < garbage and 2 * alive < disk.f_bavail * disk.f_frsize


def rewrite(column: Rdict) -> None:
    """Blocking: what was deleted and flushed before the call is in no file after it."""
    everything = CompactOptions()
    everything.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
    column.set_options({_AGE: "1.0"})
    try:
        column.compact_range(None, None, everything)
    finally:
        column.set_options({_AGE: "0.0"})
