"""Bulk reads for commands: the login as their options, rows, parquet files.

Owns: the translation, and errors as one line.
May not touch: how it is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from broker.cli.connect.blocking import connected
from broker.cli.connect.client_shape import CommandClient
from broker.cli.connect.failures import CommandFailed
from broker.cli.connect.options import Destination
from broker.cli.streams.reading import StreamMessage

if TYPE_CHECKING:
    from broker.client import ScanOptions


ROWS_OF_A_BATCH = 10_000


class BulkUnavailable(CommandFailed):
    """The server has no bulk reads, or pyarrow is not installed."""


@contextmanager
def scan_options(to: Destination) -> Iterator[ScanOptions]:
    """Errors of a read inside become one line."""
    from broker.client import (
        DataLost,
        LoginRefused,
        NoServer,
        PlanRefused,
        ScanFailed,
    )

    options: ScanOptions = {"servers": ",".join(to.servers), "busy_timeout_s": to.timeout_s}
    if to.user:
        options |= {"user": to.user, "password": to.password}
    if to.token:
        options["token"] = to.token
    if to.creds:
        options["credentials"] = to.creds
    if to.nkey:
        options["nkey"] = to.nkey
    if to.ca:
        options |= {"tls": True, "tls_ca": to.ca}
    if to.cert:
        options |= {"tls": True, "tls_cert": to.cert, "tls_key": to.key}
    try:
        yield options
    except PlanRefused as refused:
        kind = BulkUnavailable if refused.code == 503 else CommandFailed
        raise kind(str(refused)) from refused
    except (DataLost, LoginRefused, NoServer, ScanFailed, ValueError) as failed:
        raise CommandFailed(str(failed)) from failed


def bulk_rows(to: Destination, name: str, first: int, subject: str) -> Iterator[StreamMessage]:
    """The messages of a stream. Raises BulkUnavailable before the first one."""
    with connected(to) as client:
        require_bulk_reads(client)
    from broker.client import scan_batches

    columns = ("seq", "time_ns", "subject", "headers", "data")
    with scan_options(to) as options:
        options |= {"columns": columns, "first": first, "pinned": True}
        if subject:
            options["subjects"] = [subject]
        for batch in scan_batches(name, **options):
            for row in zip(*(batch.column(i).to_pylist() for i in range(5)), strict=True):
                seq, time_ns, where, head, data = row
                yield StreamMessage(seq, time_ns, where, head or b"", data or b"")


def require_bulk_reads(client: CommandClient) -> None:
    """Other servers leave a request for a plan without an answer: ask nobody who is not ours."""
    if not str(client.info.get("go", "")).startswith("python"):
        raise BulkUnavailable(f"{client.info.get('server_name')} has no bulk reads")
    if find_spec("pyarrow") is None:
        raise BulkUnavailable("bulk reads need pyarrow")


def write_parquet(rows: Iterator[StreamMessage], path: Path) -> int:
    """A file that appears when it is complete; returns the number of rows."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as missing:
        raise CommandFailed(f"parquet needs pyarrow: {missing}") from missing
    schema = pa.schema([
        ("seq", pa.uint64()), ("time", pa.timestamp("ns", tz="UTC")), ("subject", pa.string()),
        ("headers", pa.binary()), ("data", pa.binary()),
    ])  # fmt: skip
    partial = path.with_name(f".{path.name}.partial")
    count = 0
    try:
        with pq.ParquetWriter(partial, schema) as writer:
            while batch := list(islice(rows, ROWS_OF_A_BATCH)):
                count += len(batch)
                columns = {
                    "seq": [row.seq for row in batch], "time": [row.time_ns for row in batch],
                    "subject": [row.subject for row in batch],
                    "headers": [row.head or None for row in batch],
                    "data": [row.data for row in batch],
                }  # fmt: skip
                writer.write_table(pa.table(columns, schema=schema))
        os.replace(partial, path)
    except OSError as error:
        raise CommandFailed(f"{path}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return count
