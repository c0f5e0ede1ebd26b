"""Options, offsets and the cut of a range: pure functions, tested with tables of cases."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType

from broker.client import scan
from broker.scan.client import DataLost, Login, ReplicaAddress
from broker.scan.protocol import PlanReplica, ScanPlan
from broker.spark.offsets import (
    Offset,
    OffsetError,
    cut,
    offsets_json,
    parse_offsets,
    preferred,
    ranges,
)
from broker.spark.option_values import OptionError
from broker.spark.options import (
    DEFAULT_BYTES_PER_PARTITION,
    DEFAULT_RECORDS_PER_PARTITION,
    KNOWN,
    Edge,
    IncludeHeaders,
    ReadFrom,
    parse_options,
)
from broker.spark.planning import sized_for
from broker.spark.sink import leader_first, sink_options
from broker.spark.source import JetRaftDataSource, SchemaError, column_names
from broker.spark.stream_source import JetRaftStreamReader, StreamReplacedError
from tests.support.scan_peers import STREAM, Cluster, Store

positive = st.integers(1, 10**6)
SINGLE = parse_options({"stream": "S"})


@given(
    first=st.integers(1, 10**12),
    rows=st.integers(-5, 10**7),
    least=positive,
    most=positive,
    steps=st.lists(st.integers(0, 10**6), max_size=5),
)
def test_a_cut_covers_the_range_once(
    first: int, rows: int, least: int, most: int, steps: list[int]
) -> None:
    least = min(least, 1000)
    most = max(most, 1 + rows // 1000)
    cuts = sorted({first + step for step in steps})
    pieces = cut(first, first + rows, min_partitions=least, max_records=most, cuts=cuts)
    assert {at for at in cuts if first < at < first + rows} <= {low for low, _ in pieces}
    assert sum(high - low + 1 for low, high in pieces) == max(rows, 0)
    assert all(after[0] == before[1] + 1 for before, after in pairwise(pieces))
    if pieces:
        assert (pieces[0][0], pieces[-1][1]) == (first, first + rows - 1)
        assert len(pieces) >= min(least, rows)
        assert max(high - low + 1 for low, high in pieces) <= most


def replica(name: str, *, applied: int, leader: bool = False) -> PlanReplica:
    return PlanReplica(name=name, address=f"{name}:4222", applied_seq=applied, leader=leader)


REPLICAS = (
    replica("a", applied=100),
    replica("b", applied=100),
    replica("c", applied=100, leader=True),
    replica("d", applied=40),
)


@pytest.mark.parametrize(
    ("read_from", "turn", "order"),
    [
        (ReadFrom.FOLLOWER, 0, "abdc"),
        (ReadFrom.FOLLOWER, 1, "badc"),
        (ReadFrom.FOLLOWER, 2, "abdc"),
        (ReadFrom.ANY, 2, "cabd"),
        (ReadFrom.LEADER, 1, "cabd"),
    ],
)
def test_replicas_are_tried_in_order(read_from: ReadFrom, turn: int, order: str) -> None:
    fallback = (ReplicaAddress("a", 4222), ReplicaAddress("outside", 14222))
    found = preferred(REPLICAS, last=90, turn=turn, read_from=read_from, fallback=fallback)
    assert found == (
        *(ReplicaAddress(name, 4222) for name in order),
        ReplicaAddress("outside", 14222),
    )


def test_partitions_do_not_depend_on_which_replicas_are_alive() -> None:
    options = parse_options({"stream": "S", "maxRecordsPerPartition": "30"})
    plans = [
        ScanPlan(stream="S", id="i", first_seq=1, last_seq=100, bytes=size, replicas=alive)
        for size, alive in ((0, REPLICAS), (10**12, REPLICAS[:1]))
    ]
    one, other = (
        [(r.first, r.last) for r in ranges(plan, options, first=5, behind=95)] for plan in plans
    )
    assert one == other == [(5, 34), (35, 64), (65, 94)]


def test_the_json_of_an_offset_is_stable() -> None:
    offset = Offset("S", "i", 7)
    assert list(offset.to_json()) == ["v", "stream", "id", "next"]
    assert parse_offsets(offset.to_json(), SINGLE) == {"S": offset}
    several = parse_options({"stream": "S,T"})
    both = {"S": offset, "T": Offset("T", "j", 9, (3, 5))}
    document = offsets_json(both, single=False)
    assert list(document["streams"]) == ["S", "T"]
    assert parse_offsets(document, several) == both


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"v": 3, "stream": "S", "id": "i", "next": 1},
        {"v": 2, "stream": "S", "id": "i", "next": 1},
        {"v": 1, "stream": "T", "id": "i", "next": 1},
        {"v": 1, "stream": "S", "id": "i", "next": "x"},
    ],
)
def test_offsets_of_other_sources_are_refused(document: dict[str, object]) -> None:
    with pytest.raises(OffsetError):
        parse_offsets(document, SINGLE)


def test_options_are_read_in_any_case() -> None:
    given = CaseInsensitiveDict(
        {
            "SERVERS": "nats://bob:s%20t@h1, h2:5000",
            "stream": "S",
            "startingOffsets": "17",
            "endingoffsets": "latest",
            "subjects": "a.>, b",
            "failOnDataLoss": "FALSE",
            "readFrom": "Leader",
            "includeHeaders": "none",
        }
    )
    options = parse_options(given)
    assert options.servers == (ReplicaAddress("h1", 4222), ReplicaAddress("h2", 5000))
    assert (options.login.user, options.login.password) == ("bob", "s t")
    assert (options.starting.every, options.ending.every) == (17, Edge.LATEST)
    assert options.subjects == ("a.>", "b")
    assert options.read_from is ReadFrom.LEADER
    assert not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("strem", "S", "unknown option"),
        ("servers", "http://h", "servers"),
        ("startingOffsets", "0", "startingOffsets"),
        ("startingOffsets", "yesterday", "startingOffsets"),
        ("endingOffsets", "earliest", "endingOffsets"),
        ("maxRecordsPerTrigger", "-1", "maxRecordsPerTrigger"),
        ("minPartitions", "many", "minPartitions"),
        ("readFrom", "moon", "readFrom"),
        ("failOnDataLoss", "perhaps", "failOnDataLoss"),
        ("includeHeaders", "xml", "includeHeaders"),
        ("path", "OTHER", "once"),
        ("startingOffsets", '{"S": "soon"}', "startingOffsets"),
        ("endingOffsets", '{"S": -2}', "endingOffsets"),
        ("startingOffsets", "{S}", "not JSON"),
        ("startingTimestamp", "noon", "startingTimestamp"),
        ("maxBytesPerTrigger", "much", "maxBytesPerTrigger"),
        ("maxTriggerDelay", "a while", "maxTriggerDelay"),
        ("subjects", "a..b", "subjects: 'a..b' is not a valid subject"),
        ("columns", "seq,colour", "columns: no column 'colour'"),
        ("streamPattern", "T*", "not both"),
        ("jwt", "eyJ", "nkey"),
        ("tlsKey", "k.pem", "tlsCert"),
        ("ackConsumer", "a.b", "ackConsumer: 'a.b' is not a name"),
    ],
)
def test_bad_options_say_what_is_wrong(name: str, value: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse_options({"stream": "S", name: value})


@pytest.mark.parametrize(
    "start",
    [{"startingOffsets": "latest"}, {"startingOffsets": '{"S": 7}'}, {"startingTimestamp": "5"}],
)
def test_a_query_that_acknowledges_begins_with_the_first_message(start: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="begins with the first message"):
        parse_options({"stream": "S", "ackConsumer": "query", **start})
    earliest = {"stream": "S", "ackConsumer": "query", "startingOffsets": "earliest"}
    assert parse_options(earliest).ack_consumer == "query"


def test_names_of_the_kafka_source_and_tables_of_a_catalog_are_understood() -> None:
    options = parse_options(
        {
            "kafka.bootstrap.servers": "h1:4222",
            "subscribe": "B, A",
            "maxOffsetsPerTrigger": "7",
            "minoffsetspertrigger": "3",
            "maxTriggerDelay": "15m",
            "startingOffsets": '{"A": -2, "B": 12}',
            "option.subscribe": "B, A",  # CREATE TABLE passes every option twice
            "provider": "jetraft",
        }
    )
    assert options.servers == (ReplicaAddress("h1", 4222),)
    assert options.streams == ("A", "B")
    assert options.columns[0] == "stream"
    assert options.max_records_per_trigger == 7
    assert options.min_records_per_trigger == 3
    assert options.max_trigger_delay_s == 900
    assert [options.starting.of(name, Edge.LATEST) for name in "ABC"] == ["earliest", 12, "latest"]
    with pytest.raises(OptionError, match="twice"):
        parse_options({"stream": "S", "subscribe": "T"})


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1700000000123", 1_700_000_000_123_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000_000_000),
        ("2023-11-14T23:13:20.000001+01:00", 1_700_000_000_000_001_000),
        ("2023-11-14 22:13:20", 1_700_000_000_000_000_000),
    ],
)
def test_a_timestamp_is_milliseconds_or_iso_8601(text: str, ns: int) -> None:
    assert parse_options({"stream": "S", "startingTimestamp": text}).starting.time_ns == ns


def test_a_stream_must_be_named() -> None:
    with pytest.raises(OptionError, match="which stream"):
        parse_options({})
    with pytest.raises(OptionError, match="not a stream name"):
        parse_options({"stream": "a.b"})


def test_a_user_schema_prunes_columns() -> None:
    raw = IncludeHeaders.RAW
    narrow = StructType().add("data", "binary").add("seq", "long")
    assert column_names(narrow, raw).names == ("data", "seq")
    with pytest.raises(SchemaError, match="no column"):
        column_names(StructType().add("colour", "string"), raw)
    with pytest.raises(SchemaError, match="bigint"):
        column_names(StructType().add("seq", "integer"), raw)


def stream_reader(cluster: Cluster, **options: str) -> JetRaftStreamReader:
    given = {"servers": cluster.servers, "stream": STREAM, **options}
    source = JetRaftDataSource(CaseInsensitiveDict(given))
    return source.streamReader(source.schema())


def test_the_start_of_a_new_query_is_pinned() -> None:
    with Cluster(Store.filled(100)) as cluster:
        reader = stream_reader(cluster)
        start = reader.initialOffset()
        cluster.leader.store.grow(50)
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        assert reader.initialOffset() == start
        assert start["next"] == 101
        assert reader.latestOffset(start, ReadAllAvailable())["next"] == 151
        reader.stop()
        restarted = stream_reader(cluster)  # Spark passes it the offset of the checkpoint
        assert restarted.latestOffset(start, ReadMaxRows(20))["next"] == 121
        restarted.stop()


def test_available_now_stops_where_the_stream_ended() -> None:
    with Cluster(Store.filled(100)) as cluster:
        reader = stream_reader(cluster, startingOffsets="earliest")
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        cluster.leader.store.grow(50)
        reader.latestOffset(start, ReadMaxRows(60))
        middle = reader.latestOffset(start, ReadMaxRows(60))
        end = reader.latestOffset(middle, ReadMaxRows(60))
        assert (start["next"], middle["next"], end["next"]) == (1, 61, 101)
        assert reader.latestOffset(end, ReadMaxRows(60)) == end
        assert [p.wanted.last for p in reader.partitions(middle, end)] == [100]
        assert list(reader.partitions(end, end)) == []
        assert pickle.loads(pickle.dumps(reader))._planner._planner is None
        reader.stop()


def test_a_lost_range_is_named_when_a_batch_is_planned() -> None:
    with Cluster(Store.filled(1000)) as cluster:
        start, end = (Offset(STREAM, "incarnation-1", n).to_json() for n in (100, 900))
        cluster.leader.store.expire(500)
        reader = stream_reader(cluster)
        with pytest.raises(DataLost, match="100 to 500"):
            reader.partitions(start, end)
        reader.stop()
        lenient = stream_reader(cluster, failOnDataLoss="false", maxRecordsPerPartition="200")
        pieces = [(p.wanted.first, p.wanted.last) for p in lenient.partitions(start, end)]
        assert pieces == [(500, 699), (700, 899)]  # cut as before; 500 is skipped when read
        lenient.stop()


def test_a_recreated_stream_fails_the_query_unless_configured_otherwise() -> None:
    with Cluster(Store.filled(100)) as cluster:
        start = Offset(STREAM, "incarnation-0", 5000).to_json()
        strict = stream_reader(cluster)
        with pytest.raises(StreamReplacedError):
            strict.latestOffset(start, ReadAllAvailable())
        strict.stop()
        lenient = stream_reader(cluster, failOnDataLoss="false")
        end = lenient.latestOffset(start, ReadAllAvailable())
        assert (end["id"], end["next"]) == ("incarnation-1", 101)
        assert [p.wanted.first for p in lenient.partitions(start, end)] == [1]
        lenient.stop()


def test_scan_returns_a_table() -> None:
    with Cluster(Store.filled(1000), password="x") as cluster:
        login = {"servers": cluster.servers, "user": "u", "password": "x"}
        table = scan(STREAM, first=100, last=2000, columns=["seq", "data"], **login)
        assert table.column("seq").to_pylist() == list(range(100, 1001))
        assert table.column_names == ["seq", "data"]
        few = scan(STREAM, subjects=["orders.eu.3"], **login)
        assert set(few.column("subject").to_pylist()) == {"orders.eu.3"}
        assert few.num_rows == 100
        assert scan(STREAM, first=10, last=5, **login).num_rows == 0
        with pytest.raises(ValueError, match="no column"):
            scan(STREAM, columns=["colour"], **login)


def test_a_filter_by_few_subjects_needs_fewer_tasks() -> None:
    plan = ScanPlan(stream="S", id="1", first_seq=1, last_seq=10**7, messages=10**7)
    default = parse_options({"stream": "S"})
    assert sized_for(default, plan) == default  # not known
    for matching, times in ((10**7, 1), (6 * 10**6, 1), (3 * 10**6, 3), (10**4, 16), (0, 16)):
        found = sized_for(default, msgspec.structs.replace(plan, matching=matching))
        assert found.max_records_per_partition == times * DEFAULT_RECORDS_PER_PARTITION
        assert found.max_bytes_per_partition == times * DEFAULT_BYTES_PER_PARTITION
    chosen = parse_options({"stream": "S", "maxRecordsPerPartition": "1000"})
    assert sized_for(chosen, msgspec.structs.replace(plan, matching=1)) == chosen


def test_tasks_of_the_sink_write_to_the_leader_first() -> None:
    schema = StructType([StructField("data", StringType())])
    with Cluster(Store.filled(10)) as cluster:
        given = {"servers": cluster.servers, "stream": STREAM, "subject": "a"}
        found = leader_first(sink_options(given, schema, overwrite=False))
        assert found[0].port == cluster.leader.port
        assert {address.port for address in found} == {peer.port for peer in cluster.peers}


def test_the_documentation_lists_every_option_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    page = page.split("## Options")[1].split("##")[0]
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    listed = [name.strip(" `") for names, _ in rows for name in names.split(",")]
    assert listed == list(KNOWN)
    defaults = {names.strip(" `"): text.strip(" `") for names, text in rows}
    assert int(defaults["maxRecordsPerPartition"]) == DEFAULT_RECORDS_PER_PARTITION
    assert defaults["maxBytesPerPartition"] == f"{DEFAULT_BYTES_PER_PARTITION >> 20}m"
    assert int(defaults["connectTimeoutMs"]) == Login().connect_timeout_s * 1000
    assert int(defaults["readTimeoutMs"]) == Login().read_timeout_s * 1000
    options = parse_options({"stream": "S"})
    assert defaults["readFrom"] == options.read_from.value
    assert defaults["includeHeaders"] == options.include_headers.value
    assert defaults["failOnDataLoss"] == str(options.fail_on_data_loss).lower()
