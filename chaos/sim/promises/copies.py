"""Promises about mirrors and sources: a copy has every message of its origin once, in order.

Owns: the rules.
May not touch: running nodes; it reads what they stored.
Spec: NATS JetStream, mirrors (same sequence and time) and sources (`Nats-Stream-Source` names the
origin and the sequence there)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker.wire import headers as wire_headers
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.seen_replica import SeenReplica

SOURCE_HEADER = b"Nats-Stream-Source"


@dataclass(frozen=True, slots=True)
class CopiedRow:
    """`origin` and `origin_seq` are those of a sourced message."""

    seq: int
    subject: bytes
    headers: bytes
    data: bytes
    time_ns: int
    origin: str = ""
    origin_seq: int = 0


def stored_rows(replicas: Mapping[str, SeenReplica]) -> list[CopiedRow]:
    """What the leader has stored; nothing while there is none."""
    store = next((one.stream.store for one in replicas.values() if one.is_leading), None)
    if store is None:
        return []
    found = (store.get(seq) for seq in range(store.first_seq, store.last_seq + 1))
    return [
        CopiedRow(m.seq, m.subject, m.headers, m.data, m.time_ns) for m in found if m is not None
    ]


def sourced_rows(replicas: Mapping[str, SeenReplica], origin: str) -> list[CopiedRow]:
    """The messages that came from `origin`, with their sequence there."""
    found = []
    for row in stored_rows(replicas):
        words = (wire_headers.get(row.headers, SOURCE_HEADER) or b"").split(b" ")
        if words[0].decode() == origin:
            found.append(
                CopiedRow(
                    row.seq, row.subject, row.headers, row.data, row.time_ns, origin, int(words[1])
                )
            )
    return found


def _selected(rows: list[CopiedRow], wanted: str) -> list[CopiedRow]:
    return [row for row in rows if not wanted or row.subject == wanted.encode()]


def behind(
    copy: Mapping[str, SeenReplica],
    original: Mapping[str, SeenReplica],
    origin: str,
    wanted: str,
) -> bool:
    """Whether the copy has not reached the end of its origin, or one of them has no leader."""
    if not all(any(one.is_leading for one in side.values()) for side in (copy, original)):
        return True
    last = max((row.seq for row in _selected(stored_rows(original), wanted)), default=0)
    leader = next(one.stream for one in copy.values() if one.is_leading)
    if leader.config.mirror is not None:
        return leader.store.last_seq < last
    return max((row.origin_seq for row in sourced_rows(copy, origin)), default=0) < last


def last_of(replicas: Mapping[str, SeenReplica]) -> int:
    return max((row.seq for row in stored_rows(replicas)), default=0)


def check_mirror(
    original: Mapping[str, SeenReplica],
    copy: Mapping[str, SeenReplica],
    wanted: str,
    *,
    up_to: int,
) -> None:
    """Equal in sequence, subject, headers, data and time. Only up to `up_to`: a publish without an
    answer may be stored in the origin later, when the copy is no longer waited for."""
    found = stored_rows(copy)
    up_to = max([up_to, *(row.seq for row in found)])
    expected = [row for row in _selected(stored_rows(original), wanted) if row.seq <= up_to]
    if expected != found:
        missing = sorted({row.seq for row in expected} - {row.seq for row in found})
        strange = [row.seq for row in found if row not in expected]
        raise BrokenPromise(f"mirror: {missing} are missing, {strange} differ from the origin")


def check_sourced(
    copy: Mapping[str, SeenReplica],
    original: Mapping[str, SeenReplica],
    origin: str,
    wanted: str,
    renamed: str,
    *,
    up_to: int,
) -> None:
    """Every message of the origin once, in its order, with its data. `up_to`: as for a mirror."""
    found = [(row.origin_seq, row.subject, row.data) for row in sourced_rows(copy, origin)]
    up_to = max([up_to, *(seq for seq, _, _ in found)])
    expected = [
        (row.seq, renamed.encode() or row.subject, row.data)
        for row in _selected(stored_rows(original), wanted)
        if row.seq <= up_to
    ]
    if expected != found:
        seqs = [seq for seq, _, _ in found]
        raise BrokenPromise(f"source {origin}: {[e[0] for e in expected]} arrived as {seqs}")
