"""The example of a pipeline, small: exact sums with one node dead."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from broker.local import LocalCluster
from examples.orders import pipeline
from examples.orders.orders import Expected, orders
from examples.orders.publisher import OrderPublisher, create_streams, leader_of
from examples.orders.results import Delivered, parquet_sums, picture
from tests.spark.conftest import finished
from tests.support.clusters import newest_features

ORDERS = 400
MINUTES = 20


def test_the_sums_of_the_orders_are_exact_while_a_node_is_dead(spark: Any, tmp_path: Path) -> None:
    planned = list(orders(ORDERS, minutes=MINUTES, seed=7))
    expected = Expected.of(planned)
    assert expected.bad
    with LocalCluster(tmp_path / "cluster", name="orders") as cluster:
        servers = ",".join(f"{node.host}:{node.client_port}" for node in cluster.nodes)
        asyncio.run(create_streams(cluster.urls))
        publisher = OrderPublisher(cluster.urls, planned, seconds=0)
        publisher.run()
        assert (publisher.failure, publisher.done) == (None, len(planned))
        asyncio.run(newest_features(cluster))
        leader = asyncio.run(leader_of(cluster.urls, "ORDERS"))
        next(node for node in cluster.nodes if node.name == leader).kill()
        finished(lambda: pipeline.start_sums(spark, servers, tmp_path, availableNow=True))
        finished(lambda: pipeline.start_dead_letters(spark, servers, tmp_path, availableNow=True))
        delivered = Delivered.read(servers)
    assert delivered.problems(expected) == []
    assert parquet_sums(tmp_path) == expected.sums
    assert picture(delivered.sums, publisher.acked, [(0.0, "killed")]).startswith("<svg")


def test_a_wrong_result_is_told() -> None:
    planned = list(orders(ORDERS, minutes=MINUTES, seed=7))
    expected = Expected.of(planned)
    right = Delivered(expected.sums.copy(), len(expected.sums), expected.bad.copy())
    assert right.problems(expected) == []
    key = next(iter(expected.sums))
    for wrong in (
        Delivered(expected.sums | {key: expected.sums[key] + 1}, right.rows, expected.bad),
        Delivered(expected.sums, right.rows + 1, expected.bad),
        Delivered(expected.sums, right.rows, expected.bad + expected.bad),
    ):
        assert wrong.problems(expected)
