"""Spark reads: a streaming query over the stream of the publishers, micro-batch after micro-batch.

Owns: the query, and the rows that its batches had.
May not touch: the stream.
The classes that Spark's driver and its tasks call (broker/spark) are called as Spark calls them: a
batch that fails is read again from where it began. There is no JVM. Needs the package pyspark.
Checks: a batch reaches at least what was acknowledged before it was planned; the rows of all
batches are the messages of the stream, each once, in order."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from chaos.campaign.work.campaign_work import READ_WITHIN_S, CampaignWork, stored_rows
from chaos.campaign.work.copies import NO_TABLE
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Result

if TYPE_CHECKING:
    from broker.spark.stream_source import JetRaftStreamReader

T = TypeVar("T")
Arguments = ParamSpec("Arguments")
EVERY_S = 1.0
BATCH = "micro-batch"
Rows = list[tuple[int, bytes]]


def missing() -> str | None:
    """Why there can be no Spark reads here; None: they work."""
    found = importlib.util.find_spec("pyspark") is not None
    return None if found else "needs the package pyspark"


@dataclass(slots=True)
class SparkReads(CampaignWork):
    origin: str
    last_acked: Callable[[], int]  # the highest sequence of an ack so far
    rows: Rows = field(default_factory=list, init=False)
    _offset: dict[str, Any] | None = field(default=None, init=False)
    name: ClassVar[str] = "Spark reads"

    async def run(self) -> None:
        reader = self._reader()
        try:
            while not self.stopping:
                await self._batch(reader)
                await asyncio.sleep(EVERY_S)
            deadline = time.monotonic() + READ_WITHIN_S
            while not await self._batch(reader) and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(EVERY_S)  # nobody tells when it can be read
        finally:
            reader.stop()

    def _reader(self) -> JetRaftStreamReader:
        from broker.spark.source import JetRaftDataSource

        source = JetRaftDataSource({
            "servers": ",".join(self.urls), "stream": self.origin, "columns": "seq,data",
            "startingOffsets": "earliest", "failOnDataLoss": "true",
        })  # fmt: skip
        return source.streamReader(source.schema())

    async def _batch(self, reader: JetRaftStreamReader) -> bool:
        """Whether a batch was read, which reaches the end of the stream."""
        operation = self.journal.invoke("spark", BATCH, acked=self.last_acked())
        try:
            if self._offset is None:
                self._offset = await on_thread(_begin, reader)
            end, rows = await on_thread(_read, reader, self._offset)
        except NO_TABLE:
            return False  # unknown: the next one begins where this one did
        self._offset = end
        self.rows += rows
        last = self.rows[-1][0] if self.rows else 0
        self.journal.ok(operation, rows_read=len(rows), last=last)
        return True

    async def check(self) -> None:
        for one in self.journal.of_kind(BATCH):
            if one.result is Result.OK and one.answer["last"] < one.fields["acked"]:
                raise BrokenPromise(
                    f"a micro-batch ended with message {one.answer['last']}; "
                    f"{one.fields['acked']} was acknowledged before it was planned"
                )
        stored = [(row.seq, row.data) for row in await stored_rows(self.urls, self.origin)]
        for number, (found, wanted) in enumerate(zip(self.rows, stored, strict=False), 1):
            if found != wanted:
                raise BrokenPromise(f"row {number} of the query is {found}, stored is {wanted}")
        if len(self.rows) > len(stored):
            raise BrokenPromise(f"the query had {len(self.rows):,} rows of {len(stored):,}")


async def on_thread(
    work: Callable[Arguments, T], *args: Arguments.args, **named: Arguments.kwargs
) -> T:
    """As asyncio.to_thread, but cancellation waits for the thread: a reader that is stopped while
    the thread still uses it would open a connection that nobody closes."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **named))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        running.exception()  # the run ends, whatever it was
        raise


def _begin(reader: JetRaftStreamReader) -> dict[str, Any]:
    """The offset of a new query, whose first batch is empty."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    start = reader.initialOffset()
    return reader.latestOffset(start, ReadAllAvailable())


def _read(reader: JetRaftStreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], Rows]:
    """One micro-batch: its end and its rows."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    end = reader.latestOffset(start, ReadAllAvailable())
    rows: Rows = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            columns = batch.to_pydict()
            rows += zip(columns["seq"], columns["data"], strict=True)
    return end, rows
