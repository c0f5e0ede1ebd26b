"""Read a stream as a table: scan(...) returns a pyarrow Table, for pandas, Polars or DuckDB.

Owns: the one-call reader over the bulk-read protocol.
May not touch: asyncio, Spark, the server.
Needs pyarrow, which the broker itself does not: pip install "jetraft[spark]"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from broker.scan.arrow import DEFAULT_COLUMNS, arrow_schema, arrow_types, batch_of
from broker.scan.client import DataLost, Login, Planner, ScanRange, endpoints_of, read_range
from broker.scan.link import login_of, parse_endpoint

if TYPE_CHECKING:
    import pyarrow as pa


__all__ = ["DataLost", "scan", "scan_batches"]


def scan(
    stream: str,
    *,
    servers: str = "127.0.0.1:4222",
    first: int | None = None,
    last: int | None = None,
    subjects: Sequence[str] = (),
    columns: Sequence[str] = DEFAULT_COLUMNS,
    user: str = "",
    password: str = "",
    token: str = "",
    fail_on_data_loss: bool = True,
    pinned: bool = False,
) -> pa.Table:
    """Messages first..last (both included; default: all that are committed now) as a table.

    Followers are read before the leader; `pinned` reads from `servers` alone.
    `columns` is any of seq, subject, time, headers, data, time_ns, stream. A `last`
    beyond the end of the stream means its end."""
    import pyarrow as pa

    batches = scan_batches(
        stream,
        servers=servers,
        first=first,
        last=last,
        subjects=subjects,
        columns=columns,
        user=user,
        password=password,
        token=token,
        fail_on_data_loss=fail_on_data_loss,
        pinned=pinned,
    )
    return pa.Table.from_batches(list(batches), schema=arrow_schema(columns))


def scan_batches(
    stream: str,
    *,
    servers: str = "127.0.0.1:4222",
    first: int | None = None,
    last: int | None = None,
    subjects: Sequence[str] = (),
    columns: Sequence[str] = DEFAULT_COLUMNS,
    user: str = "",
    password: str = "",
    token: str = "",
    fail_on_data_loss: bool = True,
    pinned: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Like scan(), one batch per block, for streams that do not fit into memory."""
    unknown = [name for name in columns if name not in arrow_types()]
    if unknown:
        raise ValueError(f"no column {unknown[0]!r}; choose from {', '.join(arrow_types())}")
    url_user, url_password, tls = login_of(servers)
    login = Login(user=user or url_user, password=password or url_password, token=token, tls=tls)
    planner = Planner(endpoints_of(servers), login)
    try:
        plan = planner.plan(stream)
    finally:
        planner.close()
    begin = plan.first_seq if first is None else first
    end = plan.last_seq if last is None else min(last, plan.last_seq)
    followers_first = sorted(plan.replicas, key=lambda replica: replica.leader)
    addresses = [] if pinned else [parse_endpoint(r.address) for r in followers_first]
    wanted = ScanRange(
        stream=stream,
        id=plan.id,
        first=begin,
        last=end,
        endpoints=tuple(dict.fromkeys([*addresses, *endpoints_of(servers)])),
        subjects=tuple(subjects),
    )
    schema = arrow_schema(columns)
    for piece in read_range(wanted, login, fail_on_data_loss=fail_on_data_loss):
        yield batch_of(piece.columns, low=piece.low, high=piece.high, schema=schema, stream=stream)
