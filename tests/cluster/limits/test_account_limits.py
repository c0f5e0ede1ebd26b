"""Limits of an account, from the options to the view that requests are checked against."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from broker.cluster.limits.account_limits import AccountQuotas
from broker.cluster.meta.assignments import (
    Assignment,
    AssignmentTable,
    AssignStream,
    encode_command,
)
from broker.cluster.peers.rpc import Rpc
from broker.config.options import AccountStore, JetStreamLimits, JetStreamOptions
from broker.jetstream.api.info import ApiStats
from broker.jetstream.config import StreamConfig
from broker.jetstream.config.limits import check_account_limits
from broker.jetstream.config.stream_config import Storage
from broker.jetstream.errors import JetStreamError
from raft import Index

SMALL = AccountStore(max_memory=100, max_storage=1000, max_streams=2, max_ack_pending=7)


def quotas(*streams: tuple[str, StreamConfig], members: int = 1) -> AccountQuotas:
    meta = AssignmentTable()
    for at, (account, config) in enumerate(streams, 1):
        _, made = meta.apply(Index(at), encode_command(AssignStream(account, config, 1, [1])))
        assert isinstance(made, Assignment)
    options = JetStreamOptions(
        accounts={"small": SMALL},
        limits=JetStreamLimits(max_ack_pending=9),
        max_file_store=3000,
        domain="hub",
    )
    return AccountQuotas(
        options=options,
        assignments=meta,
        clustered=lambda: members > 1,
        leader=lambda _group: None,
        rpc=cast(Rpc, None),  # no leader is asked
        replicas=[],
    )


def stream(name: str, *, max_bytes: int = -1, storage: Storage = Storage.FILE) -> StreamConfig:
    return StreamConfig(name=name, subjects=(name,), max_bytes=max_bytes, storage=storage)


def refusal(there: AccountQuotas, account: str, config: StreamConfig) -> int:
    with pytest.raises(JetStreamError) as refused:
        check_account_limits(config, there.view(account))
    return int(refused.value.err_code)


def test_an_account_without_configured_limits_is_unlimited() -> None:
    there = quotas()
    assert there.limits("other").max_streams == -1
    assert there.view("other").server.max_ack_pending == 9
    check_account_limits(stream("A", max_bytes=2999), there.view("other"))


def test_streams_and_bytes_of_an_account_are_bounded() -> None:
    there = quotas(("small", stream("A", max_bytes=900)), ("other", stream("B")))
    assert refusal(there, "small", stream("C", max_bytes=101)) == 10047
    assert refusal(there, "small", stream("C", max_bytes=101, storage=Storage.MEMORY)) == 10028
    check_account_limits(stream("C", max_bytes=100), there.view("small"))
    full = quotas(("small", stream("A")), ("small", stream("B")))
    assert refusal(full, "small", stream("C")) == 10027
    check_account_limits(stream("B", max_bytes=5), full.view("small"))


def test_one_server_does_not_reserve_the_same_bytes_twice() -> None:
    there = quotas(("other", stream("A", max_bytes=2500)))
    assert refusal(there, "small", stream("B", max_bytes=501)) == 10047
    check_account_limits(stream("B", max_bytes=500), there.view("small"))
    clustered = quotas(("other", stream("A", max_bytes=2500)), members=3)
    check_account_limits(stream("B", max_bytes=501), clustered.view("small"))


def test_info_shows_limits_and_reservations() -> None:
    memory = stream("M", max_bytes=60, storage=Storage.MEMORY)
    there = quotas(("small", stream("A", max_bytes=900)), ("small", memory))
    info = asyncio.run(there.info("small", ApiStats(total=3)))
    assert (info.reserved_storage, info.reserved_memory, info.streams) == (900, 60, 2)
    assert (info.limits.max_storage, info.limits.max_ack_pending) == (1000, 7)
    assert (info.domain, info.api.total) == ("hub", 3)
