"""The record of a stream: everything but its messages, as it is on disk and in a snapshot.

Owns: the fields and their order.
May not touch: how they are filled (stream.py), records of other kinds (broker/store).
Spec: docs/ARCHITECTURE.md, "Storage"."""

from __future__ import annotations

from typing import Final

import msgspec

from broker.jetstream.config import StreamConfig
from broker.jetstream.publish.dedup_window import DedupImage
from broker.jetstream.publish.fast_batch import FastBatch
from broker.jetstream.publish.open_batches import OpenBatch
from broker.jetstream.publish.sessions import SessionImage
from broker.jetstream.publish.writers import Watermark
from broker.jetstream.schedules.schedules import PendingSchedule
from broker.store import persistence

RECORD_VERSION: Final = 1


class StreamRecord(msgspec.Struct, array_like=True, frozen=True):
    """New fields go to the end, with a default, so that older records still decode."""

    version: int
    applied: int
    created_ns: int
    config: StreamConfig
    store: persistence.StoreImage
    sessions: list[SessionImage]
    dedup: DedupImage
    last_msg_id: bytes
    consumers: list[bytes]
    schedules: list[PendingSchedule] = []
    batches: list[OpenBatch] = []  # only in a snapshot; a checkpoint has a record for each
    sources: dict[str, int] = {}
    fast_batches: list[FastBatch] = []
    writers: list[Watermark] = []


_record: Final = msgspec.msgpack.Decoder(StreamRecord)


def decode_record(raw: bytes) -> StreamRecord:
    return _record.decode(raw)
