"""A deleted stream's data goes after the table that no longer has it is on disk, not before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.cluster.meta.assignments import META_GROUP
from broker.cluster.replica import state_flush
from broker.cluster.replica.membership import Membership
from broker.cluster.runtime import Runtime
from broker.cluster.stream_node import StreamNode
from broker.config.options import JetStreamOptions
from raft import GroupId
from raft.store.records import StoreFull
from tests.support.clients import open_client
from tests.support.server import broker_of, run, running, until


def node_of(server: Any) -> StreamNode:
    runtime = broker_of(server).runtime
    assert isinstance(runtime, Runtime)
    assert runtime.jetstream is not None
    return runtime.jetstream._node


async def a_stream(server: Any, name: str) -> GroupId:
    client = await open_client(f"nats://127.0.0.1:{server.port}")
    await client.jetstream().add_stream(name=name, subjects=[name])
    await client.jetstream().publish(name, b"x")
    await client.close()
    assigned = node_of(server).assignments.get("$G", name)
    assert assigned is not None
    return GroupId(assigned.group)


async def deleted(server: Any, name: str) -> None:
    client = await open_client(f"nats://127.0.0.1:{server.port}")
    await client.jetstream().delete_stream(name)
    await client.close()


def test_the_log_of_a_deleted_stream_stays_until_the_table_is_on_disk(tmp_path: Path) -> None:
    """Otherwise this node could restart with the old table and an empty log, and begin anew."""

    async def work() -> None:
        options = JetStreamOptions(store_dir=str(tmp_path))
        async with running(jetstream=options) as server:
            node = node_of(server)
            group = await a_stream(server, "S")
            store, meta = node.storage.store, node.meta_group
            seen: list[bool] = []  # whether the log was there, at each flush of the table
            flush_state = store.flush_state

            def watched() -> None:
                seen.append(store.exists(group))
                flush_state()

            store.flush_state = watched  # type: ignore[method-assign]
            await deleted(server, "S")
            assert node.assignments.get("$G", "S") is None
            await until(lambda: meta.is_durable and not store.exists(group))
            assert seen
            assert seen[0], "the log was there when the table was flushed"

    run(work())


def test_a_disk_without_space_for_a_removal_delays_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that flushes the state goes on, and tries it again."""
    monkeypatch.setattr(state_flush, "FLUSH_EVERY_S", 0.05)

    async def work() -> None:
        async with running(jetstream=JetStreamOptions(store_dir=str(tmp_path))) as server:
            node = node_of(server)
            group = await a_stream(server, "S")
            store = node.storage.store
            refusals = iter([StoreFull("no space"), StoreFull("no space")])
            write = store.write

            def full(batch: Any, **how: bool) -> None:
                if group in batch.removed and (refusal := next(refusals, None)) is not None:
                    raise refusal
                write(batch, **how)

            monkeypatch.setattr(store, "write", full)
            await deleted(server, "S")
            await until(lambda: not store.exists(group))
            assert next(refusals, None) is None

    run(work())


def test_what_a_crash_left_of_a_deleted_stream_goes_at_the_next_start(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(jetstream=JetStreamOptions(store_dir=str(tmp_path))) as server:
            node = node_of(server)
            store = node.storage.store
            group, kept = await a_stream(server, "S"), await a_stream(server, "KEPT")
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(Membership, "_wipe", lambda *_: None)  # as if it had crashed
                await deleted(server, "S")
                await until(lambda: node.meta_group.is_durable)
            assert store.exists(group)
            node.membership.drop_unassigned()  # as at a start
            await until(lambda: not store.exists(group))
            assert store.exists(kept)
            assert META_GROUP in store.groups()

    run(work())
