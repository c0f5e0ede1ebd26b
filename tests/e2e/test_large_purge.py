"""A filtered purge that needs several log entries, through the API."""

from __future__ import annotations

from pathlib import Path

from nats.js.api import StreamConfig

from broker.local import LocalCluster
from tests.support.clusters import connect, run

SUBJECTS = 100
COUNT = 12_000


def test_one_request_purges_many_subjects(tmp_path: Path) -> None:
    async def work() -> None:
        client = await connect(*cluster.nodes)
        stream = client.jetstream()
        await stream.add_stream(StreamConfig(name="P", subjects=["p.>"]))
        for i in range(COUNT):
            await client.publish(f"p.{i % SUBJECTS}.{'a' if i % 2 else 'b'}", b"x")
        await client.flush()
        last = await stream.publish("p.0.b", b"last")
        assert last.seq == COUNT + 1
        info = await stream.stream_info("P", subjects_filter="p.*.a")
        assert info.state.subjects == {f"p.{i}.a": 120 for i in range(1, SUBJECTS, 2)}
        answer = await client.request("$JS.API.STREAM.PURGE.P", b'{"filter": "p.>", "keep": 1}')
        assert b'"purged":12000' in answer.data.replace(b" ", b"")
        info = await stream.stream_info("P")
        assert (info.state.messages, info.state.first_seq) == (1, COUNT + 1)
        await client.close()

    with LocalCluster(tmp_path, size=1, name="purge") as cluster:
        run(work)
