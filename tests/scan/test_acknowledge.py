"""A stream lets go of what a query has committed, and of nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from broker.config.options import JetStreamOptions
from broker.scan import acknowledge
from broker.scan.acknowledge import CommitConsumer
from broker.scan.client import Login, Planner, ReplicaAddress
from broker.scan.protocol import PlanRefused
from broker.spark.source import JetRaftDataSource
from tests.support.server import local, run, running_broker

COUNT = 250


class Api:
    """A few requests of JetStream's API."""

    def __init__(self, port: int) -> None:
        self.servers = f"127.0.0.1:{port}"
        self.planner = Planner([ReplicaAddress("127.0.0.1", port)], Login())

    def __call__(self, subject: str, body: object = None) -> dict[str, Any]:
        payload = b"" if body is None else json.dumps(body).encode()
        answer: dict[str, Any] = json.loads(self.planner.request(f"$JS.API.{subject}", payload))
        assert "error" not in answer, answer
        return answer

    def stream(self, retention: str) -> None:
        config = {"name": "S", "subjects": ["s.*"], "retention": retention}
        self("STREAM.CREATE.S", config)

    def consumer(self, name: str, **config: object) -> None:
        wanted = {"durable_name": name, "ack_policy": "explicit", **config}
        self(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": wanted})

    def publish(self) -> None:
        for number in range(COUNT):
            assert b'"seq"' in self.planner.request(f"s.{number % 3}", b"%d" % number)

    def state(self) -> tuple[int, int]:
        state = self("STREAM.INFO.S")["state"]
        return state["messages"], state["first_seq"]


def with_broker(tmp_path: Path, look: Callable[[Api], None]) -> None:
    async def test() -> None:
        options = local(server_name="n", jetstream=JetStreamOptions(store_dir=str(tmp_path)))
        async with running_broker(options) as broker:
            api = Api(broker.server.port)
            try:
                await asyncio.to_thread(look, api)
            finally:
                api.planner.close()

    run(test())


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_a_stream_lets_go_of_what_is_committed(
    retention: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acknowledge, "PULL_MAX", 40)

    def look(api: Api) -> None:
        api.stream(retention)
        consumer = CommitConsumer(api.planner, "S", "query")
        consumer.ensure(retention)
        consumer.ensure(retention)  # after a restart of the query
        api.publish()
        assert consumer.acknowledge(101) == 100
        assert api.state() == (COUNT - 100, 101)
        assert consumer.acknowledge(101) == 0  # a batch that is committed again
        assert consumer.acknowledge(COUNT + 1) == COUNT - 100
        assert api.state() == (0, COUNT + 1)

    with_broker(tmp_path, look)


def test_another_consumer_keeps_its_messages(tmp_path: Path) -> None:
    def look(api: Api) -> None:
        api.stream("interest")
        api.consumer("other", filter_subject="s.1")
        consumer = CommitConsumer(api.planner, "S", "query")
        consumer.ensure("interest")
        api.publish()
        consumer.acknowledge(COUNT + 1)
        assert api.state() == (len(range(1, COUNT, 3)), 2)

    with_broker(tmp_path, look)


def test_a_consumer_that_would_miss_messages_is_refused(tmp_path: Path) -> None:
    def look(api: Api) -> None:
        api.stream("limits")
        wrong: list[dict[str, object]] = [
            {"filter_subject": "s.1"}, {"deliver_subject": "d"}, {"ack_policy": "none"},
            {"deliver_policy": "new"},
        ]  # fmt: skip
        for number, config in enumerate(wrong):
            api.consumer(f"c{number}", **config)
            with pytest.raises(PlanRefused, match="cannot acknowledge for a query"):
                CommitConsumer(api.planner, "S", f"c{number}").ensure("limits")
        with pytest.raises(PlanRefused, match="stream not found"):
            CommitConsumer(api.planner, "NONE", "query").ensure("limits")

    with_broker(tmp_path, look)


def test_a_query_acknowledges_what_its_checkpoint_has(tmp_path: Path) -> None:
    def look(api: Api) -> None:
        api.stream("workqueue")
        options = {"servers": api.servers, "stream": "S", "ackConsumer": "query"}
        source = JetRaftDataSource(CaseInsensitiveDict({**options, "maxRecordsPerTrigger": "100"}))
        reader = source.streamReader(source.schema())
        try:
            start = reader.initialOffset()
            api.publish()
            assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start  # pinned
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            assert reader.partitions(start, end)
            assert api.state() == (COUNT, 1)  # planned, not committed
            reader.commit(end)
            assert api.state() == (COUNT - 100, 101)
            later = reader.latestOffset(end, reader.getDefaultReadLimit())
            assert reader.partitions(end, later)
        finally:
            reader.stop()
        again = source.streamReader(source.schema())  # Spark tells nobody of the last batch
        try:
            again.prepareForTriggerAvailableNow()
            again.latestOffset(later, again.getDefaultReadLimit())
            assert api.state() == (COUNT - 200, 201)
        finally:
            again.stop()

    with_broker(tmp_path, look)
