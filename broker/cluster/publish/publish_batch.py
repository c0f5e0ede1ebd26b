"""A batch of publishes, and the leader's answer to it.

Owns: the two values that travel between an outbox and the stream's leader.
May not touch: when a batch is sent or an answer is accepted (outbox_core.py), how they are encoded
(forwarding.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from broker.jetstream.commands.publish_entry import FastSpan
from broker.wire import ReplyColumn

STALE_SESSION: Final = -1  # see BatchAnswer.expected


class BatchAnswer(msgspec.Struct, array_like=True):
    """The leader's answer to one batch. Rows without an entry in `exceptions` got consecutive
    sequences, starting with `first_seq`. An exception is the whole reply to its row; a row of a
    fast batch may have several."""

    group: int
    session: int
    number: int
    first_seq: int
    exceptions: list[tuple[int, bytes]]
    # Nonzero: the batch was not applied. A positive value is the batch number that the stream
    # expects next; STALE_SESSION means that a later run of this node has published already.
    expected: int = 0


@dataclass(slots=True, eq=False)
class PublishBatch:
    """The publishes of one loop turn for one stream. Only the outbox core sets `number`."""

    block: bytes
    replies: ReplyColumn
    # (first row, end row, has replies); rows of one connection stay together
    spans: list[tuple[int, int, bool]]
    rows: int
    fast: list[FastSpan] = field(default_factory=list)  # rows of fast batches
    number: int = 0
