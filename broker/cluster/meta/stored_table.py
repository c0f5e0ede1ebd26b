"""The table of streams on this node's disk: a row per stream, and a head record for the rest.

Owns: the meta group's part of the state column.
May not touch: the table itself; when the state column is flushed (replica/state_flush.py).
A change of one stream writes one row and the head, in one batch, so its cost does not grow with the
number of streams, and after a crash the rows are those of the head's index.
Spec: docs/decisions/0021-the-stream-table-in-rows.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from broker.cluster.meta.assignments import META_GROUP, Assignment, TableState
from broker.cluster.meta.node_table import NodeRecord, NodeTable
from broker.store.state_keys import ASSIGNED, RECORD, StateBatch, StateKeeper, key


class ChangedTable(Protocol):
    """The table of assignments, as far as it is stored."""

    @property
    def applied(self) -> int: ...
    @property
    def nodes(self) -> NodeTable: ...
    @property
    def level(self) -> int: ...
    def dump(self) -> bytes: ...
    def __iter__(self) -> Iterator[Assignment]: ...
    def take_unwritten(self) -> dict[int, Assignment | None]: ...
    def load_dump(self, record: bytes | None) -> None: ...
    def load_all(self, state: TableState) -> None: ...


class TableHead(msgspec.Struct, frozen=True):
    """The index that the rows belong to, and the small parts of the table."""

    applied: int
    nodes: list[NodeRecord]
    level: int


_encoder: Final = msgspec.msgpack.Encoder()
_head: Final = msgspec.msgpack.Decoder(TableHead)
_row: Final = msgspec.msgpack.Decoder(Assignment)
_HEAD_KEY: Final = key(META_GROUP, RECORD, 0)
LEVEL_OF_ROWS: Final = 1  # the feature level; version 0.1 reads and writes the whole table at once


@dataclass(slots=True)
class StoredTable:
    table: ChangedTable
    state_db: StateKeeper
    _in_rows: bool = False  # otherwise the whole table is in one record, or nothing is stored

    def load(self) -> None:
        """Replace the table by what an earlier run has stored, or by an empty one."""
        files = self.state_db.files(META_GROUP)
        head = files.get(RECORD, 0)
        self._in_rows = head is not None and not _is_whole(head)
        if head is None or not self._in_rows:
            self.table.load_dump(head)
        else:
            known = _head.decode(head)
            rows = [_row.decode(value) for _, value in files.scan(ASSIGNED)]
            self.table.load_all((known.applied, rows, known.nodes, known.level))
        self.table.take_unwritten()

    def write(self) -> None:
        """Write what has changed since the last time. It is durable after the next flush."""
        self.state_db.change(self._fill)

    def _fill(self, batch: StateBatch) -> None:
        changed = self.table.take_unwritten()
        if self.table.level < LEVEL_OF_ROWS:
            if self._in_rows:  # the table was lost and begins again, without its rows
                for group in changed:
                    batch.delete(key(META_GROUP, ASSIGNED, group))
                self._in_rows = False
            batch.put(_HEAD_KEY, self.table.dump())
            return
        if not self._in_rows:
            changed = {one.group: one for one in self.table}
            self._in_rows = True
        for group, assignment in changed.items():
            row = key(META_GROUP, ASSIGNED, group)
            if assignment is None:
                batch.delete(row)
            else:
                batch.put(row, _encoder.encode(assignment))
        head = TableHead(self.table.applied, self.table.nodes.dump(), self.table.level)
        batch.put(_HEAD_KEY, _encoder.encode(head))


def _is_whole(head: bytes) -> bool:
    """Earlier versions stored the whole table in one record, an array; the head is a map."""
    return head[0] & 0xF0 == 0x90  # fixarray in MessagePack
