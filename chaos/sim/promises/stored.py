"""Promises about stored messages: an acked publish is stored exactly once, at the acked sequence.

Owns: the rules.
May not touch: running nodes; it reads what they stored after the faults are over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Operation, Result
from chaos.sim.promises.seen_replica import SeenReplica


@dataclass(slots=True)
class StoredRow:
    seq: int
    subject: bytes
    data: bytes
    headers: bytes = b""
    time_ns: int = 0


def rows_of(replicas: Mapping[str, SeenReplica]) -> list[StoredRow]:
    """All messages that the leader has stored."""
    store = next(replica.stream.store for replica in replicas.values() if replica.is_leading)
    found = (store.get(seq) for seq in range(store.first_seq, store.last_seq + 1))
    return [
        StoredRow(m.seq, m.subject, m.data, m.headers, m.time_ns) for m in found if m is not None
    ]


def check_publishes(stream: str, publishes: Sequence[Operation], rows: Sequence[StoredRow]) -> None:
    """`rows`: all messages of the stream, none of which was removed."""
    found: dict[bytes, list[StoredRow]] = {}
    for row in rows:
        found.setdefault(row.data, []).append(row)
    for payload, copies in found.items():
        if len(copies) > 1:
            at = [row.seq for row in copies]
            raise BrokenPromise(f"{stream}: {payload[:24]!r} is stored {len(copies)} times: {at}")
    sent: set[bytes] = set()
    for operation in publishes:
        payload = operation.fields["payload"]
        sent.add(payload)
        if operation.result is Result.OK:
            _check_acked(stream, operation, found.get(payload, []))
    for payload, copies in found.items():
        if payload not in sent:
            raise BrokenPromise(f"{stream}: nobody published {payload[:24]!r} at {copies[0].seq}")


def _check_acked(stream: str, operation: Operation, copies: Sequence[StoredRow]) -> None:
    payload, seq = operation.fields["payload"], operation.answer["seq"]
    told = f"{stream}: {payload[:24]!r}, acked as {seq} at {operation.completed_ns / 1e9:.4f} s"
    if not copies:
        raise BrokenPromise(f"{told}, is lost")
    if copies[0].seq != seq:
        raise BrokenPromise(f"{told}, is stored as {copies[0].seq}")
    if copies[0].subject != operation.fields["subject"].encode():
        raise BrokenPromise(f"{told}, has subject {copies[0].subject!r}")


def check_alike(stream: str, digests: Mapping[str, tuple[int, bytes]]) -> None:
    """`digests`: node -> (applied index, digest). Equal indices have equal states."""
    by_index: dict[int, tuple[str, bytes]] = {}
    for node, (index, digest) in digests.items():
        other = by_index.setdefault(index, (node, digest))
        if other[1] != digest:
            raise BrokenPromise(f"{stream}: {node} and {other[0]} differ at index {index}")
