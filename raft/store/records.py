"""The group record and its encoding, the errors of the store, and format 1.

Owns: the layout of the group record, and of column family "raft", which held the log in format 1.
May not touch: the database, files, threads.
Spec: the current log is in raft/store/segments/format.py; its records of kind GROUP contain what is
`group` here. In format 1 every record was a value in the database, with a CRC-32 over its key and
its content.

    key    group u64 BE, index u64 BE     index 0 is the group's own record
    entry  term u64, kind u8, crc u32, then the data (little-endian)
    group  term, vote, commit, snapshot index and term, index and term of a snapshot whose
           installation has begun (0 if none), lives: u64 each; the members at the snapshot
           and those at the installation: size u16 and the bytes of raft/core/membership.py
           each, size 0 for those the group started with; crc u32. A record that ends after the
           terms was written by an earlier version: no lives, no members"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final

from isal.isal_zlib import crc32

from raft.core.membership import decode_members, encode_members
from raft.core.messages import Entry, EntryKind
from raft.types import (
    GroupId,
    HardState,
    Index,
    Members,
    NewProcessNeeded,
    NodeId,
    RaftError,
    SnapshotMeta,
    Term,
)

FORMAT: Final = 2
FORMAT_OLDEST: Final = 1  # migrated when the store is opened
KEY: Final = struct.Struct(">QQ")
_ENTRY: Final = struct.Struct("<QBI")
_ENTRY_PLACE: Final = struct.Struct("<QQQB")  # group, index, term, kind: part of the checksum only
_GROUP: Final = struct.Struct("<QQQQQQQ")
_LIVES: Final = struct.Struct("<Q")
_SIZE: Final = struct.Struct("<H")
_CRC: Final = struct.Struct("<I")
ENTRY_OVERHEAD: Final = KEY.size + _ENTRY.size


NEW_HARD_STATE: Final = HardState()
NO_SNAPSHOT: Final = SnapshotMeta(Index(0), Term(0))


class StoreError(RaftError):
    """The log on disk cannot be used as requested."""


class WrongDirectory(StoreError):
    """The directory belongs to another node, another cluster or another format."""


class DamagedDatabase(StoreError):
    """The database of a directory cannot be opened, or has lost the identity of its server."""


class StoreHeld(StoreError, NewProcessNeeded):
    """An object of this process keeps the database open, which should be closed."""


class StoreBusy(StoreError):
    """Definite: nothing was written, because the database would have stalled. Try again."""


class StoreFull(StoreBusy):
    """Definite: nothing was written, because the disk is almost full."""


class StoreFailed(StoreError):
    """A write or a flush has failed. Nothing is acknowledged until the store is reopened."""


@dataclass(eq=False)
class DamagedLog(StoreError):
    """A record inside the log is damaged or missing: the group is quarantined, never shortened."""

    group: GroupId
    index: Index
    reason: str

    def __str__(self) -> str:
        return f"log of group {self.group} is damaged at index {self.index}: {self.reason}"


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    writes: int
    written_bytes: int
    flushes: int
    refusals: int
    healthy: bool
    failure: str | None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The durable facts of a group besides its entries."""

    hard_state: HardState = NEW_HARD_STATE
    snapshot: SnapshotMeta = NO_SNAPSHOT  # the entry before the log's first
    # Written before a machine's state is replaced: if the node crashes before the log is replaced
    # too, the log can be moved forward to the state.
    installing: SnapshotMeta = NO_SNAPSHOT

    def with_hard_state(self, hard_state: HardState) -> GroupRecord:
        return replace(self, hard_state=hard_state)

    def with_snapshot(self, snapshot: SnapshotMeta) -> GroupRecord:
        return replace(self, snapshot=snapshot, installing=NO_SNAPSHOT)

    def with_installing(self, installing: SnapshotMeta) -> GroupRecord:
        return replace(self, installing=installing)


def read_entry(group: GroupId, index: Index, value: bytes) -> Entry:
    if len(value) < _ENTRY.size:
        raise DamagedLog(group, index, f"entry record of only {len(value)} bytes")
    term, kind, check = _ENTRY.unpack_from(value)
    data = value[_ENTRY.size :]
    if check != crc32(data, crc32(_ENTRY_PLACE.pack(group, index, term, kind))):
        raise DamagedLog(group, index, "the checksum does not match")
    try:
        return Entry(index, Term(term), data, EntryKind(kind))
    except ValueError:
        raise DamagedLog(group, index, f"unknown entry kind {kind}") from None


def group_value(group: GroupId, record: GroupRecord) -> bytes:
    hard, snapshot, installing = record.hard_state, record.snapshot, record.installing
    body = _GROUP.pack(
        hard.term,
        hard.vote,
        hard.commit,
        snapshot.index,
        snapshot.term,
        installing.index,
        installing.term,
    )
    body += _LIVES.pack(hard.lives)
    for meta in (snapshot, installing):
        members = b"" if meta.members is None else encode_members(meta.members)
        body += _SIZE.pack(len(members)) + members
    return body + _CRC.pack(crc32(body, group & 0xFFFFFFFF))


def read_group(group: GroupId, value: bytes) -> GroupRecord:
    end = len(value) - _CRC.size
    if end < _GROUP.size:
        raise DamagedLog(group, Index(0), f"group record of only {len(value)} bytes")
    (check,) = _CRC.unpack_from(value, end)
    if check != crc32(value[:end], group & 0xFFFFFFFF):
        raise DamagedLog(group, Index(0), "the checksum of the group record does not match")
    term, vote, commit, *positions = _GROUP.unpack_from(value)
    lives = 0
    members: list[Members | None] = [None, None]
    if end > _GROUP.size:
        try:
            (lives,) = _LIVES.unpack_from(value, _GROUP.size)
            members = _read_members(value[_GROUP.size + _LIVES.size : end])
        except (struct.error, ValueError) as error:
            raise DamagedLog(group, Index(0), f"bad group record: {error}") from error
    return GroupRecord(
        HardState(Term(term), NodeId(vote), Index(commit), lives),
        SnapshotMeta(Index(positions[0]), Term(positions[1]), members[0]),
        SnapshotMeta(Index(positions[2]), Term(positions[3]), members[1]),
    )


def _read_members(value: bytes) -> list[Members | None]:
    """Raises struct.error or ValueError."""
    found: list[Members | None] = []
    position = 0
    for _ in range(2):
        (size,) = _SIZE.unpack_from(value, position)
        start, position = position + _SIZE.size, position + _SIZE.size + size
        found.append(decode_members(value[start:position]) if size else None)
    if position != len(value):
        raise ValueError(f"{len(value) - position} bytes too many")
    return found
