"""A leader refuses messages when its stream remembers too many bytes of long message ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from nats.js.api import StreamConfig
from nats.js.errors import APIError

from broker.config.options import JetStreamOptions
from broker.jetstream.publish import dedup_window
from tests.support.clients import open_client
from tests.support.server import run, running


def test_long_ids_are_refused_until_they_have_left_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup_window, "LONG_BYTES_MAX", 100_000)

    async def work() -> None:
        async with running(jetstream=JetStreamOptions(store_dir=str(tmp_path))) as server:
            client = await open_client(f"nats://127.0.0.1:{server.port}")
            js = client.jetstream()
            await js.add_stream(StreamConfig(name="S", subjects=["s"], duplicate_window=2))

            async def refused(at: int) -> bool:
                """Whether it is, for this reason."""
                try:
                    await js.publish("s", b"x", headers={"Nats-Msg-Id": f"{at:040000d}"})
                except APIError as why:
                    return why.err_code == 10023
                return False

            at = 0
            while not await refused(at):
                at += 1
            while await refused(at):  # until the window has passed
                pass
            await client.close()

    run(work())
