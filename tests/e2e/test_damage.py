"""Damaged files of one node of three: it starts, fetches what it lost, and nothing is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.local import LocalCluster, NodeFailed
from chaos.damage_rounds import run_damage_rounds
from tests.support.clusters import connect, run

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
