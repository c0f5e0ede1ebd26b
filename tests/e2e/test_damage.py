"""Damaged files of one node of three: it starts, fetches what it lost, and nothing is missing."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import StreamConfig

from broker.local import LocalCluster, LocalNode, NodeFailed
from chaos.damage_rounds import run_damage_rounds
from tests.support.clusters import connect, eventually, newest_features, run

ROUNDS = (
    ("current", "delete"),  # the database would begin again, empty, next to an old log
    ("log segment", "flip"),
    ("founding record", "flip"),
)


def test_a_node_with_a_damaged_file_heals_by_itself() -> None:
    lines: list[str] = []
    report = asyncio.run(
        run_damage_rounds(seed=3, rounds=len(ROUNDS), say=lines.append, only=ROUNDS)
    )
    assert report.ok, "\n".join([*lines, *report.lines()])
    assert set(report.hit) == {kind for kind, _ in ROUNDS}


def test_a_node_that_lost_its_log_or_meets_damage_in_a_compaction_is_rebuilt(
    tmp_path: Path,
) -> None:
    """The log and the promises are deleted while the database stays: the node comes back as a new
    member. Then a table of the running database is damaged, and rewritten by a secure erase: the
    node starts again by itself and is rebuilt once more."""

    async def work() -> None:
        cluster = LocalCluster(tmp_path, name="dm")
        with cluster:
            node = cluster.nodes[2]
            jetstream = node.directory / "data" / "jetstream"
            client = await connect(*cluster.nodes[:2])
            try:
                js = client.jetstream()
                await js.add_stream(StreamConfig(name="S", subjects=["s"], num_replicas=3))
                for number in range(1, 4):
                    assert (await js.publish("s", b"%d" % number)).seq == number
                node.stop()
                for name in ("segments", "promises"):
                    shutil.rmtree(jetstream / "store" / name)
                node.start()
                node.wait_healthy()
                assert "the log and the promises are missing" in node.log_tail(100)
                await eventually(partial(all_current, js), "the stream has three replicas")

                damage_tables(node, jetstream / "store")
                assert await js.delete_msg("S", 2)
                await eventually(partial(restarted, node), "the node has started again")
                node.wait_healthy()
                await eventually(partial(all_current, js), "the stream has three replicas")
                assert (await js.publish("s", b"4")).seq == 4
            finally:
                await client.close()
            assert [found.name for found in jetstream.glob("store.*")] == ["store.damaged-2"]
            assert "Traceback" not in node.log_path.read_text()

    run(work)


def damage_tables(node: LocalNode, store: Path) -> None:
    """The process is stopped meanwhile: a running database may replace its tables at any time."""
    node.pause()
    damaged: set[Path] = set()
    while found := set(store.glob("*.sst")) - damaged:  # a last call may end after the signal
        for table in found:
            with suppress(FileNotFoundError), table.open("r+b") as file:
                file.write(b"\xff" * 16)
        damaged |= found
    node.resume()


async def all_current(js: Any) -> bool:
    replicas = (await js.stream_info("S")).cluster.replicas
    return len(replicas) == 2 and all(replica.current for replica in replicas)


async def restarted(node: LocalNode) -> bool:
    return node.log_path.read_text().count("the database is damaged (") == 2


def test_a_single_server_does_not_begin_again_in_place_of_a_damaged_database(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        client = await connect(*server.nodes)
        await client.jetstream().add_stream(name="S", subjects=["s"])
        await client.close()

    with LocalCluster(tmp_path, size=1, name="single") as server:
        run(work)
        (node,) = server.nodes
        node.stop()
        store = node.directory / "data" / "jetstream" / "store"
        (store / "CURRENT").unlink()
        node.start()
        with pytest.raises(NodeFailed, match="This server has no peers"):
            node.wait_healthy()
        node.process = None  # it has exited
        assert "Traceback" not in node.log_tail(100)
        assert not list(store.parent.glob("store.damaged-*"))


def test_a_damaged_file_of_blocks_costs_only_what_is_in_it(tmp_path: Path) -> None:
    """Large messages on three replicas, and a changed byte in the blocks of one of them: whoever
    reads them there gets none of it, and the stream is fetched again."""

    async def work() -> None:
        with LocalCluster(tmp_path, name="bf") as cluster:
            node = cluster.nodes[2]
            files = node.directory / "data" / "jetstream" / "store" / "values"
            await newest_features(cluster)
            client = await connect(*cluster.nodes[:2])
            js = client.jetstream()
            config = StreamConfig(name="S", subjects=["s"], num_replicas=3, allow_direct=True)
            await js.add_stream(config)
            for number in range(60):
                await js.publish("s", bytes([number]) * 65_536)

            async def stored() -> bool:
                return sum(path.stat().st_size for path in files.iterdir()) > 2 << 20

            async def read_and_found() -> bool:
                """A node answers for its own clients if it can."""
                for seq in range(1, 61):
                    found = await reader.jetstream().get_msg("S", seq, direct=True)
                    assert found.data == bytes([seq - 1]) * 65_536
                return "stream S is damaged here" in node.log_path.read_text()

            try:
                await eventually(stored, "blocks are in files")
                node.stop()
                for path in files.iterdir():
                    with path.open("r+b") as file:
                        for place in range(70_000, path.stat().st_size, 200_000):
                            file.seek(place)
                            file.write(b"?")
                node.start()
                node.wait_healthy()
                reader = await connect(node)
                await eventually(read_and_found, "the damage is found")
                await eventually(partial(all_current, js), "the stream has three replicas")
                await read_and_found()
                await reader.close()
            finally:
                await client.close()

    run(work)
