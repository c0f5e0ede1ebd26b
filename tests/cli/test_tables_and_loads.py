"""`jetraft scan cat`, `top`, `graph` and `bench` against our server and against nats-server."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.client_shape import CommandClient
from broker.cli.connect.options import Destination
from broker.cli.measure.figures import buckets, percentile
from broker.cli.operations import top as top_command
from broker.cli.operations.top import StreamRates
from broker.cli.output.plots import columns_plot, write_png
from broker.local import LocalCluster
from tests.support.jetraft_command import as_json, as_json_lines, jetraft


@pytest.fixture(scope="module")
def table(url: str) -> str:
    jetraft(url, "stream", "add", "TABLE", "--subjects", "table.*")
    jetraft(url, "pub", "table.a", "x,{{Count}}", "--count", "3", "-H", "K: v")
    jetraft(url, "pub", "table.b", given=b"\xff\x1b")
    return "TABLE"


def test_a_stream_as_csv_table_and_json(url: str, table: str, tmp_path: Path) -> None:
    lines = jetraft(url, "scan", "cat", table, "--format", "csv", "--first", "3").splitlines()
    assert lines[0] == "seq,time,subject,headers,data"
    assert lines[1].endswith('Z,table.a,K: v,"x,3"')
    assert lines[2].endswith("Z,table.b,,/xs=")
    shown = jetraft(url, "scan", "cat", table, "--count", "1").splitlines()
    assert shown[2].split() == ["1", shown[2].split()[1], "table.a", "K:", "v", "x,1"]
    found = as_json_lines(url, "scan", "cat", table, "--subject", "table.b")
    assert [(one["seq"], one["data_base64"]) for one in found] == [(4, "/xs=")]
    jetraft(url, "scan", "cat", table, "--format", "csv", "--output", str(tmp_path / "t.csv"))
    assert (tmp_path / "t.csv").read_text().count("\n") == 5
    jetraft(url, "scan", "cat", "NOTHING", code=1)


def test_a_stream_as_parquet(url: str, table: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    words = ("scan", "cat", table, "--format", "parquet")
    jetraft(url, *words, code=2)
    path = tmp_path / "t.parquet"
    assert "wrote 4 messages" in jetraft(url, *words, "--output", str(path))
    rows = parquet.read_table(path).to_pylist()
    assert [row["data"] for row in rows] == [b"x,1", b"x,2", b"x,3", b"\xff\x1b"]
    assert [row["seq"] for row in rows] == [1, 2, 3, 4]


def test_top_and_graph(url: str, table: str, tmp_path: Path) -> None:
    found = json.loads(jetraft(url, "top", "--count", "1", "--interval", "1ms", "--json"))
    assert ("TABLE", 4) in [(one["stream"], one["messages"]) for one in found]
    assert "streams, 0 messages/s" in jetraft(url, "top", "--count", "1", "--interval", "1ms")
    quick = ("graph", table, "--count", "2", "--every", "1ms")
    assert "TABLE: 0.0 messages/s now" in jetraft(url, *quick)
    jetraft(url, *quick, "--png", str(tmp_path / "t.png"))
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    jetraft(url, "graph", "NOTHING", code=1)


def test_top_asks_for_all_streams_by_turns_and_for_the_busiest_between(
    url: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real_list, real_one = api.streams, api.stream_or_none

    def listed(client: CommandClient) -> list[api.Document]:
        asked.append("all")
        return real_list(client)

    def one(client: CommandClient, name: str) -> api.Document | None:
        asked.append(name)
        return real_one(client, name)

    monkeypatch.setattr(api, "streams", listed)
    monkeypatch.setattr(api, "stream_or_none", one)
    monkeypatch.setattr(top_command, "ALL_AFTER_S_EACH", 3600.0)
    with connected(Destination(servers=(url,))) as client:
        rates = StreamRates(client, rows=1)
        rates.look()
        first = rates.busiest()[0][0]
        jetraft(url, "pub", "table.a", "one more")
        rates.look()
        assert asked == ["all", first]
        monkeypatch.setattr(top_command, "ALL_AFTER_S_EACH", 0.0)
        rates = StreamRates(client, rows=1)
        rates.look()
        jetraft(url, "pub", "table.a", "one more")
        rates.look()
    assert asked == ["all", first, "all", "all"]
    name, per_second, growth, *_ = rates.busiest()[0]
    assert name == table
    assert per_second > 0
    assert growth > 0


def test_plots(tmp_path: Path) -> None:
    lines = columns_plot([0, 5, 10], width=40)
    assert lines[0] == "     10.0 |  #"
    assert lines[-2] == "          | ##"
    write_png(tmp_path / "p.png", [0.0, 1.0])
    data = (tmp_path / "p.png").read_bytes()
    at = data.index(b"IDAT")
    size = int.from_bytes(data[at - 4 : at], "big")
    pixels = zlib.decompress(data[at + 4 : at + 4 + size])
    assert len(pixels) == (20 + 2 * 8 + 1) * 220  # a filter byte in front of every row


@pytest.mark.parametrize("kind", ["pub", "js", "sub", "request", "kv"])
def test_measurements(url: str, kind: str) -> None:
    few = {"pub": ["--count", "512"], "js": ["--count", "512", "--samples", "5"],
           "sub": ["--count", "512"], "request": ["--samples", "5"],
           "kv": ["--count", "1000", "--samples", "5"]}[kind]  # fmt: skip
    found = as_json(url, "bench", kind, *few)
    assert all(one["count"] > 0 and one["per_second"] > 0 for one in found)
    latencies = [one["latency_seconds"] for one in found if "latency_seconds" in one]
    assert len(latencies) == {"pub": 0, "js": 1, "sub": 0, "request": 1, "kv": 2}[kind]
    assert all(one["p50"] <= one["p99"] <= one["max"] for one in latencies)
    left = [name for name in as_json(url, "stream", "ls", "--names") if "BENCH" in name]
    assert left == []


def test_bulk_reads_are_measured_on_our_servers(ours: LocalCluster, theirs: LocalCluster) -> None:
    pytest.importorskip("pyarrow")
    for cluster in (ours, theirs):
        if "BULK" not in as_json(cluster.urls[0], "stream", "ls", "--names"):
            jetraft(cluster.urls[0], "stream", "add", "BULK", "--subjects", "bulk")
            jetraft(cluster.urls[0], "pub", "bulk", "x")
    assert as_json(ours.urls[0], "bench", "scan", "BULK")[0]["count"] == 1
    assert "has no bulk reads" in jetraft(theirs.urls[0], "bench", "scan", "BULK", code=1)


def test_percentiles_and_buckets() -> None:
    ordered = [float(n) for n in range(1, 1001)]
    assert [percentile(ordered, p) for p in (50, 99, 99.9)] == [500.0, 990.0, 999.0]
    assert percentile([7.0], 99.9) == 7.0
    found = buckets(ordered, 4)
    assert sum(count for _, count in found) == 1000
    assert found[-1][0] == 1000.0
    assert buckets([2.0, 2.0], 3)[0] == (2.0, 2)
