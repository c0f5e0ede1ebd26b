"""The store was opened again after a failure of the disk, and its table of streams is damaged."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.replica.replica_storage import ReplicaStorage
from broker.cluster.stream_node import StreamNode
from broker.server.services import StartFailed
from raft.store.records import StoreFailed


def recovered(*, peers: bool) -> tuple[SimpleNamespace, list[object]]:
    """A node whose table cannot be read before its state is wiped."""
    done: list[object] = []

    def load() -> None:
        if "wiped" not in done:
            raise Exception("Corruption: block checksum mismatch")  # noqa: TRY002 - as rocksdict
        done.append("loaded")

    node = SimpleNamespace(
        host=SimpleNamespace(groups=list),
        replicas=(),
        meta_group=SimpleNamespace(close=lambda: None, load=load),
        mesh=SimpleNamespace(transport=object() if peers else None),
        storage=SimpleNamespace(wipe_state=lambda _: done.append("wiped")),
        nodes=SimpleNamespace(table_loaded=lambda: "founding", enter=done.append),
        flush=SimpleNamespace(resume_erasures=lambda: None),
        _table_lost=False,
    )
    node._load_table = partial(StreamNode._load_table, cast(Any, node))
    return node, done


def test_a_node_with_peers_fetches_the_table_again() -> None:
    node, done = recovered(peers=True)
    StreamNode._disk_recovered(cast(Any, node))
    assert done == ["wiped", "loaded", "founding"]
    assert node._table_lost


def test_a_single_server_changes_nothing() -> None:
    node, done = recovered(peers=False)
    with pytest.raises(StartFailed, match="no peers to fetch it from"):
        StreamNode._disk_recovered(cast(Any, node))
    assert done == []


@pytest.mark.parametrize(
    ("damage", "peers", "done"),
    [
        ("Corruption: block checksum mismatch", True, ["condemned", "the database is damaged"]),
        ("Corruption: block checksum mismatch", False, []),
        (None, True, []),  # the disk does not work
    ],
)
def test_a_database_that_refuses_writes_at_the_start_is_rebuilt(
    damage: str | None, peers: bool, done: list[str]
) -> None:
    """A compaction may meet damage while the table of streams is loaded."""
    seen: list[str] = []
    store = SimpleNamespace(damage=damage)
    parts: dict[str, Any] = {"state_db": None, "block_cache": None, "block_moves": None}
    storage = ReplicaStorage(
        store=cast(Any, store), condemn=lambda _: seen.append("condemned"), **parts
    )
    with (
        pytest.raises(StartFailed, match="Can't start JetStream: writing the state failed"),
        storage.starting(seen.append, rebuilt=peers),
    ):
        raise StoreFailed(f"writing the state failed: {damage}")
    assert seen == done
