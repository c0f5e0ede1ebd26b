"""Spark as a cluster stays exact while brokers and executors die:
`python -m tests.benchmarks.spark_cluster_proof [--rows 10000000] [--sink-rows 3000000] [--plain]`.

Three nodes, a standalone Spark (a master, two workers). Unless `--plain` is given, everything goes
over TLS with client certificates to users of an operator. The stages:
- batch: the whole stream, while a follower or the leader is killed or paused in the middle of a
  partition; then the digest of all rows.
- streaming: into parquet files, the same faults; the query is stopped after each and goes on from
  its checkpoint; then the digest.
- sink: into a stream, while executors and the leader die in the middle of a batch, and the query is
  stopped there; every row is stored once. Then the same in one batch write.
- expiry: a purge in front of the reader is an error that names the range; with
  failOnDataLoss=false the query goes on, and the rest is exact.

That a scan was under way is read from the node (open scans, bytes sent since it began) before the
fault, and from the log of the task afterwards: the sequence at which another replica went on."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from broker.client import ScanOptions, scan_batches
from broker.local import LocalCluster, LocalNode
from broker.scan.arrow_blocks import BlockCutter
from broker.scan.client import Login, NoServer, Planner, endpoints_of
from broker.scan.protocol import PlanRefused, ScanPlan
from broker.scan.writer import BlockWriter
from tests.benchmarks.spark_queries import WITHIN_S, Background, ProofFailed, Query
from tests.benchmarks.spark_standalone import StandaloneSpark
from tests.support.operator_cluster import OperatorFiles

SIZE, DIGITS, BATCH, SUBJECTS = 128, 12, 10_000, 1000
PARTITION = 128 << 20
FAULTS = (("kill", "follower"), ("pause", "follower"), ("kill", "leader"), ("pause", "leader"))
DIGEST = ("count(*)", "sum(seq)", "sum(crc)", "bit_xor(crc * seq)")
WITH_CRC = ("seq", "crc32(concat(cast(subject as binary), data)) as crc")


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Each row has its number in digits, then noise."""
    table = np.random.default_rng(7).integers(0, 256, (BATCH, SIZE), np.uint8)
    subjects = pa.array([f"ROWS.{i % SUBJECTS}" for i in range(BATCH)])
    ends = pa.py_buffer(np.arange(0, (BATCH + 1) * SIZE, SIZE, np.int32))
    for first in range(0, rows, BATCH):
        numbers = np.arange(first, first + BATCH)
        for place in range(DIGITS):
            table[:, place] = 48 + numbers // 10 ** (DIGITS - 1 - place) % 10
        data = pa.Array.from_buffers(
            pa.binary(), BATCH, [None, ends, pa.py_buffer(table.tobytes())]
        )
        whole = pa.RecordBatch.from_arrays([subjects, data], ["subject", "data"])
        yield whole.slice(0, min(BATCH, rows - first))


def numbers_of(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The digits that the data of each row begins with."""
    array = batch.column("data")
    _, ends, text = array.buffers()
    starts = np.frombuffer(ends, np.int32)[array.offset : array.offset + len(array)]
    raw = np.frombuffer(text, np.uint8)
    found = np.zeros(len(array), np.int64)
    for place in range(DIGITS):
        found = found * 10 + raw[starts + place] - 48
    return found


@dataclass
class Proof:
    cluster: LocalCluster
    spark: StandaloneSpark
    session: Any
    folder: Path
    login: dict[str, str]
    rows: int
    sink_rows: int
    expected: list[int] = field(default_factory=lambda: [0, 0, 0, 0])

    @property
    def options(self) -> dict[str, str]:
        servers = ",".join(f"127.0.0.1:{node.client_port}" for node in self.cluster.nodes)
        return {"servers": servers, **self.login}

    def broker_login(self) -> Login:
        return Login(
            credentials=self.login.get("credentials", ""),
            tls_ca=self.login.get("tlsCa", ""),
            tls_cert=self.login.get("tlsCert", ""),
            tls_key=self.login.get("tlsKey", ""),
        )

    def planner(self) -> Planner:
        return Planner(endpoints_of(self.options["servers"]), self.broker_login())

    # -- the cluster ------------------------------------------------------------------------------

    def ask(self, subject: str, **body: Any) -> dict[str, Any]:
        with closing(self.planner()) as planner:
            answer: dict[str, Any] = json.loads(planner.request(subject, json.dumps(body).encode()))
        if "error" in answer:
            raise ProofFailed(f"{subject}: {answer['error']}")
        return answer

    def create(self, name: str) -> None:
        subjects = [f"{name}.>"]
        self.ask(f"$JS.API.STREAM.CREATE.{name}", name=name, subjects=subjects, num_replicas=3)

    def plan(self, stream: str) -> ScanPlan:
        with closing(self.planner()) as planner:
            return planner.plan(stream)

    def fill(self) -> None:
        self.create("ROWS")
        begun = time.monotonic()
        servers = endpoints_of(self.options["servers"])
        out = BlockWriter(servers, self.broker_login(), stream="ROWS", writer="fill", epoch=0)
        cutter = BlockCutter(subject="", bytes_max=out.max_block(), rows_max=8192)
        seq, crcs, mixed = 0, 0, 0
        for batch in batches(self.rows):
            for block, count in cutter.take(batch):
                out.write(block, count)
            text = batch.column("data").buffers()[2]
            body = memoryview(text)
            for row in range(batch.num_rows):
                seq += 1
                subject = b"ROWS.%d" % ((seq - 1) % SUBJECTS)
                crc = crc32(body[row * SIZE : (row + 1) * SIZE], crc32(subject))
                crcs += crc
                mixed ^= crc * seq
        for block, count in cutter.rest():
            out.write(block, count)
        out.finish()
        self.expected = [seq, seq * (seq + 1) // 2, crcs, mixed]
        print(f"{seq:,} rows of {SIZE} B stored, {time.monotonic() - begun:.0f} s", flush=True)

    def settled(self, stream: str = "ROWS") -> ScanPlan:
        """All replicas have everything."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                plan = self.plan(stream)
                ready = [r for r in plan.replicas if r.applied_seq >= plan.last_seq]
                if len(ready) == 3 and any(r.leader for r in plan.replicas):
                    return plan
            except (NoServer, PlanRefused):
                pass  # no leader at the moment
            if time.monotonic() > deadline:
                raise ProofFailed(f"the replicas of {stream} do not catch up")
            time.sleep(0.2)

    def nodes_in(self, role: str, stream: str = "ROWS") -> list[LocalNode]:
        found = [r.name for r in self.settled(stream).replicas if r.leader == (role == "leader")]
        return [node for node in self.cluster.nodes if node.name in found]

    def hit_scanning(self, kind: str, role: str, alive: Callable[[], bool]) -> LocalNode:
        """Kill or pause a node that is in the middle of sending a partition."""
        candidates = self.nodes_in(role)
        begins: dict[str, tuple[int, int]] = {}  # scans that were completed, bytes sent by then
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            for node in candidates:
                document: Any = node.http("/varz", timeout_s=30)
                scans = document["jetstream"]["scans"]
                done, sent = begins.get(node.name, (-1, 0))
                if done != scans["total"] or not scans["open"]:
                    begins[node.name] = (scans["total"], scans["sent_bytes"])
                elif 0.2 * PARTITION < scans["sent_bytes"] - sent < 0.7 * PARTITION:
                    if kind == "kill":
                        node.kill()
                    else:
                        node.pause()
                    print(
                        f"  {kind} of {role} {node.name}: {scans['open']} scan open, "
                        f"{(scans['sent_bytes'] - sent) / 1e6:.0f} MB of its partition sent",
                        flush=True,
                    )
                    return node
            if not alive():
                raise ProofFailed(f"the query ended before the {role} was in a partition")
            time.sleep(0.01)
        raise ProofFailed(f"the {role} serves no partition")

    def heal(self, node: LocalNode, kind: str) -> None:
        if kind == "kill":
            node.start()
        else:
            node.resume()
        node.wait_healthy(timeout_s=120)
        self.settled()

    def moved_inside(self, what: str) -> None:
        """The log of the tasks: a scan was cut after its first row and before its last."""
        moves = self.spark.moves()
        if not moves:
            raise ProofFailed(f"{what}: no task had to change its replica in the middle")
        print(f"  tasks went on elsewhere at sequence {sorted(set(moves))[:6]}", flush=True)

    # -- Spark ------------------------------------------------------------------------------------

    def reading(self, read: Any, role: str, **more: str) -> Any:
        options = {
            "maxRecordsPerPartition": str(10**9), "maxBytesPerPartition": str(PARTITION),
            "readTimeoutMs": "4000", "readFrom": role, **more,
        }  # fmt: skip
        return read.format("jetraft").options(**self.options, **options).load("ROWS")

    def check(self, what: str, frame: Any) -> None:
        found = tuple(frame.selectExpr(*WITH_CRC).selectExpr(*DIGEST).first())
        if found != tuple(self.expected):
            raise ProofFailed(f"{what}: {found}, expected {self.expected}")
        print(f"{what}: exact, {found[0]:,} rows, digest {found[3] & 0xFFFFFFFF:08x}", flush=True)

    def batch(self) -> None:
        for kind, role in FAULTS:
            begun = time.monotonic()
            result = Background(
                self.session,
                lambda role=role, kind=kind: self.check(
                    f"batch, {kind} of {role}", self.reading(self.session.read, role)
                ),
            )
            node = self.hit_scanning(kind, role, result.goes_on)
            result.finish()
            self.heal(node, kind)
            self.moved_inside(f"batch, {kind} of {role}")
            print(f"  {time.monotonic() - begun:.0f} s", flush=True)

    def streaming(self) -> None:
        place = self.folder / "streamed"
        share = str(max(self.rows // 10, 1))

        def start(role: str = "follower") -> Query:
            rows = self.reading(
                self.session.readStream, role, startingOffsets="earliest",
                maxRecordsPerTrigger=share,
            )  # fmt: skip
            writer = (
                rows.writeStream.format("parquet")
                .option("checkpointLocation", str(self.folder / "checkpoint"))
                .option("path", str(place))
            )
            return Query(writer.start)

        for kind, role in FAULTS:
            query = start(role)
            node = self.hit_scanning(kind, role, lambda q=query: q.go_on())
            query.one_more_batch()
            query.stop()
            self.heal(node, kind)
            self.moved_inside(f"streaming, {kind} of {role}")
        query = start()
        query.until(lambda p: p["sources"][0]["endOffset"]["next"] > self.rows)
        query.stop()
        self.check("streaming into parquet", self.session.read.parquet(str(place)))

    # -- the sink ---------------------------------------------------------------------------------

    def in_the_middle(self, stream: str, share: int, go_on: Callable[[], bool]) -> int:
        """Wait until a part of a batch is stored, and not all of it."""
        with closing(self.planner()) as planner:
            deadline = time.monotonic() + WITHIN_S
            begin = planner.plan(stream).last_seq
            while time.monotonic() < deadline:
                stored = int(planner.plan(stream).last_seq)
                if stored - begin > share // 20 and 0.1 < stored % share / share < 0.7:
                    return stored
                if not go_on():
                    raise ProofFailed(f"{stream}: all was written before a fault")
                time.sleep(0.01)
        raise ProofFailed(f"nothing is written to {stream}")

    def sink(self) -> None:
        self.create("COPY")
        share = self.sink_rows // 6

        def start() -> Query:
            rows = self.reading(
                self.session.readStream, "follower", startingOffsets="earliest",
                maxRecordsPerTrigger=str(share), minPartitions="2",
            )  # fmt: skip
            writer = (
                rows.where(f"seq <= {self.sink_rows}")
                .select("data")
                .writeStream.format("jetraft")
                .options(**self.options, stream="COPY", subject="COPY.a")
                .option("checkpointLocation", str(self.folder / "checkpoint-copy"))
            )
            return Query(writer.start)

        for what in ("kill of an executor", "kill of the leader", "kill of an executor and a stop"):
            query = start()
            stored = self.in_the_middle("COPY", share, query.go_on)
            node = None
            if "leader" in what:
                (node,) = self.nodes_in("leader", "COPY")
                node.kill()
            else:
                self.spark.kill_executor()
            print(f"  {what}: {stored % share:,} of {share:,} rows of a batch stored", flush=True)
            if "stop" not in what:
                query.one_more_batch()
            query.stop()
            if node is not None:
                self.heal(node, "kill")
        query = start()
        query.until(lambda p: p["sources"][0]["endOffset"]["next"] > self.sink_rows)
        query.stop()
        self.once("streaming sink", "COPY")

    def batch_sink(self) -> None:
        self.create("TABLE")
        rows = self.reading(self.session.read, "follower", minPartitions="2")
        writer = rows.where(f"seq <= {self.sink_rows}").select("data").write.format("jetraft")
        writer = writer.options(**self.options, subject="TABLE.a").mode("append")
        result = Background(self.session, lambda: writer.save("TABLE"))
        stored = self.in_the_middle("TABLE", self.sink_rows, result.goes_on)
        self.spark.kill_executor()
        print(f"  kill of an executor: {stored:,} of {self.sink_rows:,} rows stored", flush=True)
        result.finish()
        self.once("batch sink", "TABLE")

    def once(self, what: str, stream: str) -> None:
        times = np.zeros(self.rows, np.int64)
        for batch in scan_batches(stream, **self.scan_options(), columns=["data"]):
            np.add.at(times, numbers_of(batch), 1)
        lost = int((times[: self.sink_rows] == 0).sum())
        repeated = int(times.sum() - np.count_nonzero(times))
        foreign = int(times[self.sink_rows :].sum())
        if lost or repeated or foreign:
            raise ProofFailed(f"{what}: {lost} lost, {repeated} repeated, {foreign} not asked for")
        print(f"{what}: {self.sink_rows:,} rows, each stored once", flush=True)

    def scan_options(self) -> ScanOptions:
        login = self.broker_login()
        return {
            "servers": self.options["servers"], "credentials": login.credentials,
            "tls_ca": login.tls_ca, "tls_cert": login.tls_cert, "tls_key": login.tls_key,
        }  # fmt: skip

    # -- expiry -----------------------------------------------------------------------------------

    def expiry(self) -> None:
        place, share = self.folder / "expired", self.rows // 10

        def start(**more: str) -> Query:
            rows = self.reading(
                self.session.readStream, "follower", startingOffsets="earliest",
                maxRecordsPerTrigger=str(share), **more,
            )  # fmt: skip
            writer = (
                rows.select("seq")
                .writeStream.format("parquet")
                .option("checkpointLocation", str(self.folder / "checkpoint-expired"))
                .option("path", str(place))
            )
            return Query(writer.start, fails_for="no longer has the messages")

        query = start()
        query.one_more_batch()
        first = self.rows * 7 // 10
        self.ask("$JS.API.STREAM.PURGE.ROWS", seq=first)
        said = query.failure()
        print(f"  {said}", flush=True)
        before = self.session.read.parquet(str(place)).selectExpr("max(seq)").first()[0]
        query = start(failOnDataLoss="false")
        query.until(lambda p: p["sources"][0]["endOffset"]["next"] > self.rows)
        query.stop()
        found = self.session.read.parquet(str(place)).where(f"seq >= {first}")
        count, total = found.selectExpr("count(*)", "sum(seq)").first()
        rest = range(first, self.rows + 1)
        whole = (self.rows - first + 1, (rest[0] + rest[-1]) * len(rest) // 2)
        if (count, total) != whole or before >= first:
            raise ProofFailed(f"expiry: {count} rows of sum {total}, expected {whole}")
        print(f"expiry: {before:,} rows before the purge, then {count:,}, each once", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--sink-rows", type=int, default=3_000_000)
    parser.add_argument("--plain", action="store_true", help="no TLS, no users")
    parser.add_argument(
        "--only", action="append", help="batch, streaming, sink, batch-sink, expiry"
    )
    parser.add_argument("--directory", type=Path, help="keep the data and the logs here")
    given = parser.parse_args()
    if given.rows < 2_000_000 or given.sink_rows > given.rows:
        parser.error("partitions of 128 MB need --rows 2000000 and more")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="proof-") as scratch:
        folder = (given.directory or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        files = None if given.plain else OperatorFiles.write(folder / "keys")
        login = files.certificates | files.credentials if files else {}
        config = files.config if files else ""
        with (
            LocalCluster(folder / "nodes", name="proof", more=config) as cluster,
            StandaloneSpark(folder / "spark") as spark,
        ):
            session = spark.session()
            try:
                proof = Proof(cluster, spark, session, folder, login, given.rows, given.sink_rows)
                proof.fill()
                stages = {
                    "batch": proof.batch, "streaming": proof.streaming, "sink": proof.sink,
                    "batch-sink": proof.batch_sink, "expiry": proof.expiry,
                }  # fmt: skip
                for name, stage in stages.items():
                    if given.only is None or name in given.only:
                        stage()
            finally:
                session.stop()
    how = "plain" if given.plain else "TLS with client certificates, operator mode"
    print(f"proved ({how}) in {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
