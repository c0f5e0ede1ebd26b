"""`compression: s2` of a stream: its blocks are compressed once every member can read them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from nats.js.api import StorageType, StoreCompression, StreamConfig

from broker.cluster.meta.assignments import AssignmentTable
from broker.cluster.meta.feature_level import COMPRESSED_BLOCKS
from broker.config.options import JetStreamOptions
from broker.store import persistence, segments
from broker.store.block.packing import pack
from broker.store.messages import MessageStore
from broker.store.state_keys import StateBatch
from tests.support.clients import open_client
from tests.support.server import run, running

BODY = b"words and words and words and words and words and words and words and words"
S2, NONE = StoreCompression.S2, StoreCompression.NONE
FILE, MEMORY = StorageType.FILE, StorageType.MEMORY


@pytest.mark.parametrize(
    ("compression", "storage", "level", "compressed"),
    [(S2, FILE, 1, True), (NONE, FILE, 1, False), (S2, MEMORY, 1, False), (S2, FILE, 0, False)],
    ids=["s2", "none", "in memory", "an older member"],
)
def test_blocks_of_the_stream_are_compressed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    compression: StoreCompression,
    storage: StorageType,
    level: int,
    compressed: bool,
) -> None:
    assert COMPRESSED_BLOCKS == 1
    packed: list[bytes] = []
    written = asyncio.Event()

    def spy(raw: bytes) -> bytes:
        packed.append(raw)
        return pack(raw)

    def checkpoint(store: MessageStore, batch: StateBatch) -> int:
        if any(segment is not store.segments.tail for segment in store.segments.all):
            written.set()  # a sealed block, too
        return original(store, batch)

    original = persistence.checkpoint
    monkeypatch.setattr(persistence, "checkpoint", checkpoint)
    monkeypatch.setattr(persistence, "CHECKPOINT_BYTES", 1)
    monkeypatch.setattr(segments, "SEAL_ROWS", 10)
    monkeypatch.setattr(persistence, "SEAL_ROWS", 10)
    monkeypatch.setattr(persistence, "pack", spy)
    known = property(lambda _: level, lambda *_: None)
    monkeypatch.setattr(AssignmentTable, "level", known, raising=False)
    options = JetStreamOptions(store_dir=str(tmp_path))

    async def work() -> None:
        async with running(jetstream=options) as server:
            client = await open_client(f"nats://127.0.0.1:{server.port}")
            try:
                js = client.jetstream()
                config = StreamConfig(
                    name="S", subjects=["s"], compression=compression, storage=storage
                )
                await js.add_stream(config)
                for _ in range(30):
                    await js.publish("s", BODY)
                await written.wait()
            finally:
                await client.close()
        assert bool(packed) == compressed
        async with running(jetstream=options) as server:
            client = await open_client(f"nats://127.0.0.1:{server.port}")
            try:
                js = client.jetstream()
                if storage is FILE:
                    assert (await js.get_msg("S", 25)).data == BODY
                    assert (await js.stream_info("S")).state.messages == 30
            finally:
                await client.close()

    run(work())
