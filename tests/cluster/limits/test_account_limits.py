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

TIERED = AccountStore(
    max_memory=0,
    max_storage=0,
    tiers={
        "R1": AccountStore(max_memory=0, max_storage=1000, max_streams=2, max_ack_pending=5),
        "R3": AccountStore(max_memory=100, max_storage=300, max_bytes_required=True),
    },
)


def quotas(*streams: tuple[str, StreamConfig], members: int = 1) -> AccountQuotas:
    meta = AssignmentTable()
    for at, (account, config) in enumerate(streams, 1):
        _, made = meta.apply(Index(at), encode_command(AssignStream(account, config, 1, [1])))
        assert isinstance(made, Assignment)
    options = JetStreamOptions(
        accounts={"small": SMALL, "tiers": TIERED},
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


def stream(
    name: str, *, max_bytes: int = -1, storage: Storage = Storage.FILE, replicas: int = 1
) -> StreamConfig:
    return StreamConfig(
        name=name, subjects=(name,), max_bytes=max_bytes, storage=storage, num_replicas=replicas
    )


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


def test_streams_count_in_the_tier_of_their_replicas() -> None:
    streams = [
        ("tiers", stream("A", max_bytes=900)),
        ("tiers", stream("B", replicas=3, max_bytes=200)),
    ]
    there = quotas(*streams, members=3)
    view = there.view("tiers")
    assert refusal(there, "tiers", stream("C", max_bytes=101)) == 10047
    check_account_limits(stream("C", max_bytes=100), view)
    check_account_limits(stream("C", max_bytes=100, replicas=3), view)  # of one replica
    assert refusal(there, "tiers", stream("C", max_bytes=101, replicas=3)) == 10047
    check_account_limits(stream("B", max_bytes=300, replicas=3), view)  # an update
    assert refusal(there, "tiers", stream("C", max_bytes=1, storage=Storage.MEMORY)) == 10028
    assert refusal(there, "tiers", stream("C", replicas=2)) == 10120
    assert view.limits_of(stream("A")).max_ack_pending == 5
    full = quotas(*streams, ("tiers", stream("D")), members=3)
    assert refusal(full, "tiers", stream("C")) == 10027
    check_account_limits(stream("C", replicas=3), full.view("tiers"))


def test_the_info_of_an_account_shows_its_tiers() -> None:
    there = quotas(
        ("tiers", stream("A", max_bytes=9)), ("tiers", stream("B", replicas=3, max_bytes=7))
    )
    info = asyncio.run(there.info("tiers", ApiStats()))
    assert info.limits.max_streams == 0
    assert (info.streams, info.reserved_storage) == (2, 16)
    shown = info.tiers
    assert {name: (one.streams, one.reserved_storage) for name, one in shown.items()} == {
        "R1": (1, 9),
        "R3": (1, 7),
    }
    assert shown["R3"].limits.max_memory == 100


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


class CountedTable(AssignmentTable):
    """Counts how often all streams of an account are looked at."""

    looks = 0

    def of_account(self, account: str) -> list[Assignment]:
        self.looks += 1
        return super().of_account(account)


def test_requests_that_wait_share_one_look_at_the_streams() -> None:
    """Sixty-four infos of an account with 2,000 streams, each alone, took half a second."""

    async def ask() -> None:
        there = quotas(*(("other", stream(f"S{at}")) for at in range(600)))
        there.assignments = table = CountedTable()
        first = asyncio.create_task(there.info("other", ApiStats()))
        await asyncio.sleep(0)  # it has begun: what changes from now on may be missing in it
        _, made = table.apply(Index(1), encode_command(AssignStream("other", stream("A"), 1, [1])))
        assert isinstance(made, Assignment)
        others = [asyncio.create_task(there.info("other", ApiStats(total=at))) for at in range(64)]
        infos = [await one for one in others]
        assert [info.streams for info in infos] == 64 * [1]
        assert [info.api.total for info in infos] == list(range(64))
        await first
        assert table.looks == 3  # of the first, of the next one, and of all that waited for it

    asyncio.run(ask())


def test_a_request_that_is_given_up_leaves_the_others_an_answer() -> None:
    async def ask() -> None:
        there = quotas(*(("other", stream(f"S{at}")) for at in range(600)))
        tasks = [asyncio.create_task(there.info("other", ApiStats())) for _ in range(5)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[1].cancel()
        infos = [await one for one in tasks[2:]]
        assert [info.streams for info in infos] == 3 * [600]
        assert not there._turns

    asyncio.run(ask())
