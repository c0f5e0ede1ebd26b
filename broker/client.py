"""Read a stream as a table: scan(...) returns a pyarrow Table, for pandas, Polars or DuckDB.

Owns: the one-call reader over the bulk-read protocol.
May not touch: asyncio, Spark, the server.
Tables need pyarrow, which the broker itself does not: pip install "jetraft[spark]".
scan_messages() does not.
Spec: docs/spark.md, "Without Spark"."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypedDict, Unpack

from broker.scan.arrow import (
    DEFAULT_COLUMNS,
    arrow_names,
    arrow_schema,
    batch_of,
    stored_columns,
)
from broker.scan.client import (
    BUSY_TIMEOUT_S,
    DataLost,
    Login,
    NoServer,
    Planner,
    ScanFailed,
    ScanRange,
    endpoints_of,
    read_blocks,
    read_range,
)
from broker.scan.link import LoginRefused, login_of, parse_endpoint
from broker.scan.protocol import PlanRefused, PlanRequest

if TYPE_CHECKING:
    import pyarrow as pa


__all__ = [
    "DataLost",
    "LoginRefused",
    "NoServer",
    "PlanRefused",
    "ScanFailed",
    "ScanOptions",
    "scan",
    "scan_batches",
    "scan_messages",
]

Progress = Callable[[int, int], None]  # sequences that are done, and all of them


class ScanOptions(TypedDict, total=False):
    """Keywords of scan() and scan_batches()."""

    servers: str  # addresses, separated by commas; default 127.0.0.1:4222
    first: int | None  # the first sequence; default: that of the stream
    last: int | None  # the last one; beyond the end of the stream means its end
    since: datetime | None  # only messages stored at this time or later
    until: datetime | None  # only messages stored before this time
    subjects: Sequence[str]  # patterns; default: all
    columns: Sequence[str]  # of seq, subject, time, headers, data, time_ns, stream
    header_map: bool  # headers as names and lists of values instead of bytes
    user: str
    password: str  # this and the other secrets may be file:<path> or env:<name>
    token: str
    credentials: str  # a creds file
    nkey: str  # a seed, or a file with one
    jwt: str  # with its seed in `nkey`
    tls: bool  # require TLS; a server that requires it gets it in any case
    tls_ca: str
    tls_cert: str
    tls_key: str
    fail_on_data_loss: bool  # default True: raise DataLost; False: go on without them
    busy_timeout_s: float  # default 600: how long to wait while every replica is busy
    pinned: bool  # read from `servers` alone; otherwise followers come before the leader
    progress: bool | Progress  # True: a progress bar on the terminal


def scan(stream: str, **options: Unpack[ScanOptions]) -> pa.Table:
    """The messages of a stream (default: all that are committed now) as a table."""
    schema = _schema(options)
    import pyarrow as pa

    return pa.Table.from_batches(list(scan_batches(stream, **options)), schema=schema)


def scan_batches(stream: str, **options: Unpack[ScanOptions]) -> Iterator[pa.RecordBatch]:
    """Like scan(), one batch per block, for streams that do not fit into memory."""
    names, schema = _names(options), _schema(options)
    login = _login(options)
    wanted = _range(stream, login, options)
    slices = read_range(
        wanted,
        login,
        fail_on_data_loss=options.get("fail_on_data_loss", True),
        busy_timeout_s=options.get("busy_timeout_s", BUSY_TIMEOUT_S),
    )
    with _told(stream, options.get("progress")) as tell:
        for piece in slices:
            yield batch_of(
                piece.columns,
                low=piece.low,
                high=piece.high,
                names=names,
                schema=schema,
                stream=stream,
            )
            tell(piece.high + 1 - wanted.first, wanted.last + 1 - wanted.first)


def scan_messages(stream: str, **options: Unpack[ScanOptions]) -> Iterator[tuple[int, bytes]]:
    """Sequence and payload of each message, without pyarrow: for checks, not for speed. `columns`,
    `header_map` and `progress` have no meaning here."""
    from broker.store.block.codec import Block

    login = _login(options)
    blocks = read_blocks(
        replace(_range(stream, login, options), columns=()),
        login,
        Block,
        fail_on_data_loss=options.get("fail_on_data_loss", True),
        busy_timeout_s=options.get("busy_timeout_s", BUSY_TIMEOUT_S),
    )
    for block, low, high in blocks:
        for row in range(block.rows):
            if low <= (seq := block.seq(row)) <= high:
                yield seq, bytes(block.data(row))


def _login(options: ScanOptions) -> Login:
    user, password, tls = login_of(options.get("servers", "127.0.0.1:4222"))
    return Login(
        user=options.get("user") or user,
        password=options.get("password") or password,
        token=options.get("token", ""),
        credentials=options.get("credentials", ""),
        nkey=options.get("nkey", ""),
        jwt=options.get("jwt", ""),
        tls=options.get("tls", tls),
        tls_ca=options.get("tls_ca", ""),
        tls_cert=options.get("tls_cert", ""),
        tls_key=options.get("tls_key", ""),
    )


def _names(options: ScanOptions) -> tuple[str, ...]:
    """As arrow.py calls the columns. Raises ValueError for a name that is none of them."""
    columns = options.get("columns", DEFAULT_COLUMNS)
    unknown = [name for name in columns if name not in arrow_names()]
    if unknown:
        raise ValueError(f"no column {unknown[0]!r}; choose from {', '.join(arrow_names())}")
    headers = "header_map" if options.get("header_map", False) else "headers"
    return tuple(headers if name == "headers" else name for name in columns)


def _schema(options: ScanOptions) -> pa.Schema:
    if find_spec("pyarrow") is None:
        raise ImportError("tables need pyarrow: pip install pyarrow")
    return arrow_schema(_names(options), renamed=options.get("columns", DEFAULT_COLUMNS))


def _range(stream: str, login: Login, options: ScanOptions) -> ScanRange:
    servers = endpoints_of(options.get("servers", "127.0.0.1:4222"))
    since, until = options.get("since"), options.get("until")
    times = tuple(_nanoseconds(moment) for moment in (since, until) if moment is not None)
    with closing(Planner(servers, login)) as planner:
        plan = planner.plan(stream, PlanRequest(times=times))
    first, last = options.get("first"), options.get("last")
    begin = plan.first_seq if first is None else first
    end = plan.last_seq if last is None else min(last, plan.last_seq)
    if since is not None:
        begin = max(begin, plan.seqs[0])
    if until is not None:
        end = min(end, plan.seqs[-1] - 1)
    followers_first = sorted(plan.replicas, key=lambda replica: replica.leader)
    pinned = options.get("pinned", False)
    addresses = [] if pinned else [parse_endpoint(r.address) for r in followers_first]
    return ScanRange(
        stream=stream,
        id=plan.id,
        first=begin,
        last=end,
        endpoints=tuple(dict.fromkeys([*addresses, *servers])),
        subjects=tuple(options.get("subjects", ())),
        columns=stored_columns(_names(options)),
    )


def _nanoseconds(moment: datetime) -> int:
    """A time without a zone is UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


@contextmanager
def _told(stream: str, progress: object) -> Iterator[Progress]:
    if callable(progress):
        yield progress
    elif not progress:
        yield lambda _done, _total: None
    else:
        from rich.progress import Progress as Bar

        with Bar() as bar:
            task = bar.add_task(stream, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
