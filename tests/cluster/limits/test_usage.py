"""How much a stream may still store, depending on what the others store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from broker.cluster.limits.usage import AMPLE_BYTES, Usage, UsageLinks, _encode
from broker.config.options import AccountStore, JetStreamOptions
from broker.jetstream.commands.publish_entry import NO_SPACE, UNBOUNDED, Bounds
from broker.jetstream.config.stream_config import Storage
from raft import NodeId


class Streams:
    """Replicas of which only the size matters."""

    def __init__(self, *, server_file: int | None = None) -> None:
        options = JetStreamOptions(
            accounts={"small": AccountStore(max_memory=100, max_storage=1000)},
            max_file_store=server_file,
        )
        self.assigned: list[Any] = []
        self.sent: list[bytes] = []
        links = SimpleNamespace(broadcast=lambda _channel, frame: self.sent.append(frame))
        self.usage = Usage(
            options=options,
            assignments=self.assigned,
            clustered=lambda: True,
            leads=lambda _group: False,
            links=cast(UsageLinks, links),
        )

    def assign(self, group: int, account: str, storage: Storage, replicas: int) -> Any:
        config = SimpleNamespace(storage=storage, num_replicas=replicas)
        peers = list(range(replicas))
        assignment = SimpleNamespace(group=group, account=account, peers=peers, config=config)
        self.assigned.append(assignment)
        return assignment

    def replica(
        self, group: int, size: int, *, account: str = "small", replicas: int = 1,
        storage: Storage = Storage.FILE,
    ) -> Any:  # fmt: skip
        assignment = self.assign(group, account, storage, replicas)
        made: Any = SimpleNamespace(
            group=group, assignment=assignment, storage=storage, stored_bytes=size,
            is_leading=False, stream=SimpleNamespace(staged_bytes=0),
        )  # fmt: skip
        self.usage.changed(made)
        return made

    def grow(self, replica: Any, size: int) -> None:
        replica.stored_bytes = size
        self.usage.changed(replica)


def test_nothing_limits_a_stream_of_an_account_without_limits() -> None:
    there = Streams()
    assert there.usage.bounds(there.replica(1, 50, account="other")) is None


def test_an_account_bounds_a_stream_by_what_its_other_streams_store() -> None:
    there = Streams()
    first = there.replica(1, 300)
    second = there.replica(2, 0)
    there.replica(3, 5000, account="other")
    there.replica(4, 90, storage=Storage.MEMORY)
    assert there.usage.bounds(first) == Bounds(account=1000)
    assert there.usage.bounds(second) == Bounds(account=700)
    there.grow(first, 100)
    assert there.usage.bounds(second) == Bounds(account=900)
    there.usage.forget(1)
    assert there.usage.bounds(second) == Bounds(account=1000)


def test_open_batches_of_an_account_are_bounded_over_all_its_streams() -> None:
    there = Streams()
    several = [there.replica(at, 0, account="many") for at in range(40)]
    quiet = there.replica(99, 0, account="other")

    def stage(replica: Any, count: int) -> None:
        replica.stream.staged_bytes = count
        there.usage.changed(replica)

    for replica in several:
        stage(replica, 4 << 20)
    assert [there.usage.bounds(one) for one in (several[0], quiet)] == [NO_SPACE, None]
    stage(quiet, 1 << 20)
    assert [there.usage.bounds(one) for one in (several[0], quiet)] == [NO_SPACE, None]
    for replica in several[:8]:  # deleted
        there.usage.forget(replica.group)
    assert there.usage.bounds(several[30]) == NO_SPACE
    stage(several[8], 0)  # abandoned
    assert there.usage.bounds(several[30]) is None


def test_every_replica_counts_for_the_account() -> None:
    there = Streams()
    there.replica(1, 100, replicas=3)
    assert there.usage.bounds(there.replica(2, 0)) == Bounds(account=700)
    assert there.usage.bounds(there.replica(3, 0, replicas=2)) == Bounds(account=350)


def test_the_server_counts_one_replica_of_all_accounts() -> None:
    there = Streams(server_file=2000)
    there.replica(1, 400, account="other", replicas=3)
    mine = there.replica(2, 50)
    assert there.usage.bounds(mine) == Bounds(account=1000, server=1600)
    in_memory = there.replica(3, 0, account="other", storage=Storage.MEMORY)
    assert there.usage.bounds(in_memory) is None
    unlimited = there.replica(4, 0, account="other")
    assert there.usage.bounds(unlimited) == Bounds(account=UNBOUNDED, server=1550)


def test_limits_that_are_far_away_bound_nothing() -> None:
    there = Streams(server_file=2 * AMPLE_BYTES)
    mine = there.replica(1, AMPLE_BYTES - 1, account="other")
    assert there.usage.bounds(mine) is None
    there.grow(mine, AMPLE_BYTES)
    assert there.usage.bounds(mine) == Bounds(account=UNBOUNDED, server=2 * AMPLE_BYTES)


def test_what_an_account_has_left_is_shared_by_replicas() -> None:
    there = Streams()
    there.usage.options.accounts["large"] = AccountStore(
        max_memory=-1, max_storage=3 * AMPLE_BYTES + 1
    )
    assert there.usage.bounds(there.replica(1, 0, account="large", replicas=3)) is None
    more = there.replica(2, 1, account="large", replicas=3)
    assert there.usage.bounds(more) == Bounds(account=AMPLE_BYTES)


def test_sizes_reported_by_other_nodes_count() -> None:
    there = Streams()
    mine = there.replica(1, 0)
    there.assign(7, "small", Storage.FILE, 1)
    there.assign(8, "small", Storage.FILE, 2)
    receive = there.usage.received
    receive(NodeId(2), _encode([(7, 100), (8, 50), (1, 999), (99, 5)]))
    assert there.usage.bounds(mine) == Bounds(account=800)
    receive(NodeId(3), _encode([(8, 0)]))
    assert there.usage.bounds(mine) == Bounds(account=900)
    there.usage.forget(7)
    assert there.usage.bounds(mine) == Bounds(account=1000)


def test_each_tier_of_an_account_is_bounded_on_its_own() -> None:
    there = Streams()
    there.usage.options.accounts["tiers"] = AccountStore(
        max_memory=0,
        max_storage=0,
        tiers={"R1": AccountStore(max_storage=1000), "R3": AccountStore(max_storage=400)},
    )
    one = there.replica(1, 0, account="tiers")
    there.replica(2, 100, account="tiers")
    three = there.replica(3, 50, account="tiers", replicas=3)
    there.replica(4, 80, account="tiers", replicas=3)
    assert there.usage.bounds(one) == Bounds(account=900)
    assert there.usage.bounds(three) == Bounds(account=320)  # the limit is about one replica
    there.assign(7, "tiers", Storage.FILE, 3)
    there.usage.received(NodeId(2), _encode([(7, 20)]))
    assert there.usage.bounds(three) == Bounds(account=300)
    assert there.usage.bounds(one) == Bounds(account=900)
    there.grow(three, 60)
    assert there.usage.bounds(there.replica(5, 0, account="tiers", replicas=3)) == Bounds(
        account=240
    )
    assert there.usage.bounds(there.replica(6, 5, account="tiers", replicas=2)) == Bounds(account=0)


def test_what_is_shown_of_limits_is_what_counts_against_them() -> None:
    streams = Streams(server_file=5000)
    streams.replica(1, 40, replicas=3)
    streams.replica(2, 7, account="other")
    streams.replica(3, 5, storage=Storage.MEMORY)
    shown = {storage: (stored, most) for storage, stored, most in streams.usage.of_server()}
    assert shown == {Storage.FILE: (47, 5000), Storage.MEMORY: (5, None)}
    assert set(streams.usage.of_accounts()) == {
        ("small", Storage.FILE, 120, 1000),
        ("small", Storage.MEMORY, 5, 100),
    }, "an account without limits is not shown"
