"""A damaged stream without another replica: it is served as far as it can be read, and named."""

from __future__ import annotations

from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any

from broker.cluster.replica.membership import Membership
from broker.jetstream.config.stream_config import Storage
from raft import NodeId

ME = NodeId(1)


def membership(replicas: dict[int, Any]) -> Membership:
    needed: dict[str, Any] = {
        field.name: None
        for field in fields(Membership)
        if field.default is MISSING and field.default_factory is MISSING
    }
    return Membership(**{**needed, "node": ME, "replicas": replicas})


def test_a_damaged_stream_without_another_replica_is_named_until_it_is_gone() -> None:
    only = SimpleNamespace(
        storage=Storage.FILE, assignment=SimpleNamespace(name="S", members=[int(ME)])
    )
    replicas: dict[int, Any] = {7: only}
    damaged = membership(replicas)
    assert damaged.incurable() == []
    damaged.damaged(7, ValueError("a checksum does not match"))
    [sentence] = damaged.incurable()
    assert "stream S is damaged and has no other replica: a checksum does not match" in sentence
    del replicas[7]
    assert damaged.incurable() == []
