"""The table of streams on this node's disk: a row for each stream, and a head for the rest.

Owns: the meta group's part of the state column.
May not touch: the table itself; when the state column is flushed (replica/state_flush.py).
A change of one stream writes one row and the head, in one batch, so its cost does not grow with the
number of streams, and after a crash the rows are those of the head's index.
Spec: docs/decisions/0021-the-stream-table-in-rows.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from broker.cluster.meta.assignments import META_GROUP, Assignment
from broker.cluster.meta.node_table import NodeRecord, NodeTable
from broker.store.state_keys import ASSIGNED, RECORD, StateBatch, StateKeeper, key


class ChangedTable(Protocol):
    """The table of assignments, as far as it is stored."""

    @property
    def applied(self) -> int: ...
    @property
    def nodes(self) -> NodeTable: ...
    def take_unwritten(self) -> dict[int, Assignment | None]: ...
    def load_dump(self, record: bytes | None) -> None: ...
    def load_all(
        self, applied: int, assignments: Iterable[Assignment], nodes: Iterable[NodeRecord]
    ) -> None: ...


class TableHead(msgspec.Struct, frozen=True):
    """What the rows are the state of, and what is small."""

    applied: int
    nodes: list[NodeRecord]


_encoder: Final = msgspec.msgpack.Encoder()
_head: Final = msgspec.msgpack.Decoder(TableHead)
_row: Final = msgspec.msgpack.Decoder(Assignment)
_HEAD_KEY: Final = key(META_GROUP, RECORD, 0)


@dataclass(slots=True)
class StoredTable:
    table: ChangedTable
    state_db: StateKeeper

    def load(self) -> None:
        """Replace the table by what an earlier run has stored, or by an empty one."""
        files = self.state_db.files(META_GROUP)
        head = files.get(RECORD, 0)
        if head is None or _is_whole(head):
            self.table.load_dump(head)  # all of it is unwritten: the next write makes rows of it
            if head is None:
                self.table.take_unwritten()
            return
        known = _head.decode(head)
        rows = [_row.decode(value) for _, value in files.scan(ASSIGNED)]
        self.table.load_all(known.applied, rows, known.nodes)
        self.table.take_unwritten()

    def write(self) -> None:
        """Write what has changed since the last time. It is durable after the next flush."""
        self.state_db.change(self._fill)

    def _fill(self, batch: StateBatch) -> None:
        for group, assignment in self.table.take_unwritten().items():
            row = key(META_GROUP, ASSIGNED, group)
            if assignment is None:
                batch.delete(row)
            else:
                batch.put(row, _encoder.encode(assignment))
        head = TableHead(self.table.applied, self.table.nodes.dump())
        batch.put(_HEAD_KEY, _encoder.encode(head))


def _is_whole(head: bytes) -> bool:
    """Earlier versions stored the whole table in one record, an array; the head is a map."""
    return head[0] & 0xF0 == 0x90  # fixarray in MessagePack
