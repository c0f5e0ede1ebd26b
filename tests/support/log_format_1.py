"""Log records as format 1 stored them in RocksDB: for the migration and for fuzzing its reader."""

from __future__ import annotations

import struct

from isal.isal_zlib import crc32

from raft.core.messages import Entry
from raft.types import GroupId


def entry_value(group: GroupId, entry: Entry) -> bytes:
    check = crc32(
        entry.data, crc32(struct.pack("<QQQB", group, entry.index, entry.term, entry.kind))
    )
    return struct.pack("<QBI", entry.term, entry.kind, check) + entry.data
