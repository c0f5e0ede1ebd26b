"""The same messages in pyarrow, pandas, Polars and DuckDB: the examples of docs/spark.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.client import scan, scan_batches
from tests.support.scan_peers import STREAM, Cluster, Store

ROWS = 2000


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Cluster(Store.filled(ROWS)) as running:
        yield running.servers


def test_pyarrow(servers: str) -> None:
    import pyarrow.compute as pc

    table = scan(STREAM, servers=servers, columns=["seq", "time", "headers"], header_map=True)
    assert pc.sum(table["seq"]).as_py() == ROWS * (ROWS + 1) // 2
    assert dict(table["headers"][3].as_py()) == {"Trace": ["4"]}
    assert sum(batch.num_rows for batch in scan_batches(STREAM, servers=servers)) == ROWS


def test_pandas(servers: str) -> None:
    frame = scan(STREAM, servers=servers, columns=["seq", "subject", "time"]).to_pandas()
    assert frame.groupby("subject").seq.count().to_dict()["orders.eu.3"] == ROWS // 10
    assert str(frame.time.dtype) == "datetime64[us, UTC]"


def test_polars(servers: str) -> None:
    polars = pytest.importorskip("polars", reason="Polars is not installed")
    frame = polars.from_arrow(scan(STREAM, servers=servers, subjects=["orders.eu.>"]))
    assert frame.height == ROWS // 2
    assert frame["seq"].sum() == sum(range(1, ROWS + 1, 2))


def test_duckdb(servers: str) -> None:
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    orders = scan(STREAM, servers=servers, first=1001)
    assert orders.num_rows == 1000
    query = "select subject, count(*) from orders group by subject order by subject limit 1"
    assert duckdb.sql(query).fetchall() == [("orders.eu.1", 100)]


def test_a_progress_bar_ends_with_the_table(
    servers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scan(STREAM, servers=servers, progress=True).num_rows == ROWS
    assert "100%" in capsys.readouterr().out
