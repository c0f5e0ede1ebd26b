"""Filters of a query become bounds of the plan; what they cannot say is left to Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from broker.scan.arrow import stored_columns
from broker.spark.options import parse_options
from broker.spark.planning import QueryPlanner
from broker.spark.pushdown import Narrowed, narrow
from tests.support.scan_peers import START_NS, STREAM, Cluster, Store

SEQ, TIME, SUBJECT = ("seq",), ("time",), ("subject",)
MOMENT = datetime(2023, 11, 14, 22, 13, 20, 5, tzinfo=UTC)  # five microseconds after START_NS


@pytest.mark.parametrize(
    ("pushed", "expected"),
    [
        (EqualTo(SEQ, 7), Narrowed(first_seq=7, behind_seq=8)),
        (GreaterThan(SEQ, 7), Narrowed(first_seq=8)),
        (GreaterThanOrEqual(SEQ, 7), Narrowed(first_seq=7)),
        (LessThan(SEQ, 7), Narrowed(behind_seq=7)),
        (LessThanOrEqual(SEQ, 7), Narrowed(behind_seq=8)),
        (In(SEQ, (5, 6, 7)), Narrowed(first_seq=5, behind_seq=8)),
        (GreaterThan(TIME, MOMENT), Narrowed(first_ns=START_NS + 6000)),
        (LessThanOrEqual(TIME, MOMENT), Narrowed(behind_ns=START_NS + 6000)),
        (LessThan(TIME, MOMENT), Narrowed(behind_ns=START_NS + 5000)),
        (
            EqualTo(TIME, MOMENT.astimezone(timezone(timedelta(hours=5)))),
            Narrowed(first_ns=START_NS + 5000, behind_ns=START_NS + 6000),
        ),
        (EqualTo(("time_ns",), 5), Narrowed(first_ns=5, behind_ns=6)),
        (EqualTo(SUBJECT, "a.b"), Narrowed(subjects=("a.b",))),
        (In(SUBJECT, ("a", "b", "a", "c d")), Narrowed(subjects=("a", "b"))),
        (EqualTo(SUBJECT, "a b"), Narrowed(behind_seq=1)),  # no message has such a subject
        (StringStartsWith(SUBJECT, "a.b."), Narrowed(subjects=("a.b.>",))),
        (In(("stream",), ("A", "B")), Narrowed(streams=frozenset("AB"))),
        (IsNotNull(SEQ), Narrowed()),
    ],
)
def test_a_filter_that_is_pushed_exactly(pushed: Filter, expected: Narrowed) -> None:
    assert narrow([pushed], ()) == (expected, [])


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (In(SEQ, (5, 9)), Narrowed(first_seq=5, behind_seq=10)),
        (StringStartsWith(SUBJECT, "a.b"), Narrowed(subjects=("a.>",))),
        (StringStartsWith(SUBJECT, "a"), Narrowed()),
        (StringContains(SUBJECT, "a"), Narrowed()),
        (Not(EqualTo(SEQ, 7)), Narrowed()),
        (EqualTo(("data",), b"x"), Narrowed()),
        (IsNotNull(("headers",)), Narrowed()),
        (GreaterThan(TIME, datetime(2023, 1, 1)), Narrowed()),  # noqa: DTZ001 - that is the point
        (In(SUBJECT, tuple(f"s.{k}" for k in range(100))), Narrowed()),
    ],
)
def test_a_filter_that_spark_evaluates(left: Filter, expected: Narrowed) -> None:
    assert narrow([left], ()) == (expected, [left])


def test_filters_narrow_each_other_and_the_option_subjects() -> None:
    found, left = narrow([GreaterThan(SEQ, 5), LessThan(SEQ, 9), GreaterThan(SEQ, 3)], ())
    assert (found, left) == (Narrowed(first_seq=6, behind_seq=9), [])
    both = [EqualTo(SUBJECT, "a.1"), In(SUBJECT, ("a.1", "a.2"))]
    found, left = narrow(both, ("a.*",))
    assert (found.subjects, left) == (("a.1",), [both[1]])
    assert narrow([EqualTo(SUBJECT, "b")], ("a.*",))[0].behind_seq == 1
    prefix = StringStartsWith(SUBJECT, "a.")
    assert narrow([prefix], ("a.*",)) == (Narrowed(), [prefix])


@pytest.mark.parametrize(
    ("narrowed", "options", "seqs"),
    [
        (Narrowed(), {}, (1, 1000)),
        (Narrowed(first_seq=100, behind_seq=200), {}, (100, 199)),
        (Narrowed(first_ns=START_NS + 100 * 1500, behind_ns=START_NS + 300_001), {}, (100, 200)),
        (Narrowed(first_seq=50), {"endingOffsets": "61"}, (50, 60)),
        (Narrowed(), {"startingTimestamp": "2023-11-14T22:13:20.001400Z"}, (934, 1000)),
        (Narrowed(), {"endingTimestamp": "2023-11-14T22:13:20.000150Z"}, (1, 99)),
        (Narrowed(), {"startingTimestamp": "2030-01-01"}, None),
        (Narrowed(behind_seq=1), {}, None),
        (Narrowed(streams=frozenset({"X"})), {}, None),
    ],
)
def test_bounds_reach_the_plan(
    narrowed: Narrowed, options: dict[str, str], seqs: tuple[int, int] | None
) -> None:
    with Cluster(Store.filled(1000)) as cluster:
        given = parse_options({"servers": cluster.servers, "stream": STREAM, **options})
        planner = QueryPlanner(given)
        found = planner.batch(narrowed, stored_columns(("seq",)))
        planner.close()
    assert [(one.first, one.last) for one in found] == ([seqs] if seqs else [])
    assert all(one.columns == ("seq",) for one in found)


def test_partitions_are_cut_by_bytes() -> None:
    with Cluster(Store.filled(3000)) as cluster:
        size = cluster.leader.store.bytes // 4
        given = {"servers": cluster.servers, "stream": STREAM, "maxBytesPerPartition": str(size)}
        planner = QueryPlanner(parse_options(given))
        pieces = [(one.first, one.last) for one in planner.batch(Narrowed(), ())]
        small = planner.batch(Narrowed(), stored_columns(("seq", "subject", "time")))
        large = planner.batch(Narrowed(), stored_columns(("seq", "headers")))
        planner.close()
    assert len(small) == 1  # bytes that are not read do not count
    assert len(large) == len(pieces)
    assert len(pieces) in (4, 5)
    assert (pieces[0][0], pieces[-1][1]) == (1, 3000)
