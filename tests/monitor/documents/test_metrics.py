"""/metrics: valid text, true numbers, and a document that lists every name."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.cluster import runtime
from broker.cluster.observe import metrics as jetstream_metrics
from broker.config.options import Authorization, JetStreamOptions, User
from broker.monitor.documents import metrics as server_metrics
from broker.server import metric_samples as samples
from broker.server.metric_samples import Exposition, Family, Sample, gauge, histogram, labels
from broker.server.server import Server
from tests.monitor.documents.test_http import HTTP, get
from tests.support.clients import open_client
from tests.support.server import RawClient, run, running, until

DOCUMENT = Path(__file__).parents[3] / "docs" / "monitoring.md"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scraped(server: Server) -> Samples:
    code, kind, body = await get(server, "/metrics")
    assert code == 200
    assert kind.startswith("text/plain; version=0.0.4")
    found: Samples = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def families() -> list[Family]:
    modules = (server_metrics, jetstream_metrics, runtime)
    found = [one for module in modules for one in vars(module).values() if isinstance(one, Family)]
    return found + list(server_metrics.TRAFFIC.values())


def test_the_numbers_of_streams_and_consumers_are_true(tmp_path: Path) -> None:
    async def test() -> None:
        options = JetStreamOptions(store_dir=str(tmp_path))
        async with running(http=HTTP, jetstream=options) as server:
            client = await open_client(f"nats://127.0.0.1:{server.port}")
            js = client.jetstream()
            await js.add_stream(name="S", subjects=["s"])
            for _ in range(5):
                await js.publish("s", b"x")
            reader = await js.pull_subscribe("s", durable="d", stream="S")
            first, _second = await reader.fetch(2)
            await first.ack_sync()
            found = await scraped(server)
            where = (("account", "$G"), ("stream", "S"))
            assert found["jetraft_stream_messages", where] == 5
            assert found["jetraft_stream_last_sequence", where] == 5
            assert found["jetraft_stream_leader", where] == 1
            of = tuple(sorted((*where, ("consumer", "d"))))
            assert found["jetraft_consumer_pending", of] == 3
            assert found["jetraft_consumer_ack_pending", of] == 1
            assert found["jetraft_consumer_delivered_total", of] == 2
            assert found["jetraft_consumer_ack_floor", of] == 1
            assert 0 < found["jetraft_consumer_lag_seconds", of] < 60
            assert found["jetraft_flush_latency_seconds_count", ()] > 0
            assert found["jetraft_commit_latency_seconds_bucket", (("le", "+Inf"),)] > 0
            assert found["jetraft_log_written_bytes_total", ()] > 0
            assert found["jetraft_api_requests_total", (("account", "$G"),)] >= 1
            file = (("storage", "file"),)
            assert 0 < found["jetraft_stored_bytes", file] < found["jetraft_stored_bytes_max", file]
            assert found["process_open_fds", ()] > 0
            await client.close()

    run(test())


def test_refused_clients_are_counted() -> None:
    async def test() -> None:
        authorization = Authorization(users=(User("a", "b"),))
        async with running(http=HTTP, authorization=authorization) as server:
            connect = b'CONNECT {"user":"a","pass":"wrong"}\r\n'
            client = await RawClient.open(server, connect=connect)
            await until(lambda: not server.connections)
            client.close()
            assert (await scraped(server))["jetraft_auth_failures_total", ()] == 1

    run(test())


def test_streams_and_consumers_beyond_the_bound_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        options = JetStreamOptions(store_dir=str(tmp_path))
        async with running(http=HTTP, jetstream=options) as server:
            client = await open_client(f"nats://127.0.0.1:{server.port}")
            js = client.jetstream()
            for name in "ABC":
                await js.add_stream(name=name, subjects=[name])
                await js.add_consumer(name, durable_name="d")
            monkeypatch.setattr(jetstream_metrics, "STREAMS_MAX", 2)
            monkeypatch.setattr(jetstream_metrics, "CONSUMERS_MAX", 1)
            found = await scraped(server)
            assert found["jetraft_metrics_left_out", (("kind", "stream"),)] == 1
            assert found["jetraft_metrics_left_out", (("kind", "consumer"),)] == 2
            assert (found["jetraft_streams", ()], found["jetraft_consumers", ()]) == (3, 3)
            assert sum(name == "jetraft_stream_messages" for name, _ in found) == 2
            await client.close()

    run(test())


def test_every_metric_has_its_row_in_the_document() -> None:
    text = DOCUMENT.read_text()
    for family in families():
        assert f"| `{family.name}` | {family.kind} |" in text, family.name


def test_labels_are_escaped() -> None:
    assert labels({"a": 'x"y\\z\n'}) == r'{a="x\"y\\z\n"}'


def test_a_family_stands_together_whatever_the_order() -> None:
    into, a, b = Exposition(), gauge("a", "A."), gauge("b", "B.")
    into.add([Sample(a, 1, labels({"n": "1"})), Sample(b, 2.5), Sample(a, 3, labels({"n": "2"}))])
    assert into.text().decode().splitlines() == [
        "# HELP jetraft_a A.",
        "# TYPE jetraft_a gauge",
        'jetraft_a{n="1"} 1',
        'jetraft_a{n="2"} 3',
        "# HELP jetraft_b B.",
        "# TYPE jetraft_b gauge",
        "jetraft_b 2.5",
    ]


def test_the_rows_of_a_table_are_samples_of_each_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "ROWS_PER_PART", 2)
    into, names = Exposition(), ("x", "y", "z")
    rows = into.table(gauge("a", "A."), gauge("b", "B."))
    into.table(gauge("unused", "No rows, no head."))
    rows.extend((labels({"n": name}), at, at + 0.5) for at, name in enumerate(names))
    assert max(part.count(b"\n") for part in into.parts()) == 2
    assert into.text().decode().splitlines() == [
        "# HELP jetraft_a A.",
        "# TYPE jetraft_a gauge",
        *(f'jetraft_a{{n="{name}"}} {at}' for at, name in enumerate(names)),
        "# HELP jetraft_b B.",
        "# TYPE jetraft_b gauge",
        *(f'jetraft_b{{n="{name}"}} {at}.5' for at, name in enumerate(names)),
    ]


def test_buckets_of_a_histogram_add_up() -> None:
    into = Exposition()
    into.add_histogram(histogram("t", "T."), (0.1, 0.2), (3, 0, 2), 1.5)
    (family,) = text_string_to_metric_families(into.text().decode())
    values = [(sample.name, sample.labels.get("le"), sample.value) for sample in family.samples]
    assert values == [
        ("jetraft_t_seconds_bucket", "0.1", 3),
        ("jetraft_t_seconds_bucket", "0.2", 3),
        ("jetraft_t_seconds_bucket", "+Inf", 5),
        ("jetraft_t_seconds_sum", None, 1.5),
        ("jetraft_t_seconds_count", None, 5),
    ]
