"""Fake replicas for tests of bulk reads, with real sockets, parser and scan server.

Owns: the faults: a replica that dies in the middle, lags, refuses, or sends damaged bytes.
May not touch: Raft. The replicas share one message store unless a test replaces it."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from broker.scan.admission import ScanLimits
from broker.scan.byte_cuts import edges
from broker.scan.client import NAMES_SUBJECT, NO_REQUEST
from broker.scan.protocol import (
    PLAN_SUBJECT,
    PlanReplica,
    PlanRequest,
    ScanPlan,
    decode_plan_request,
    encode_plan,
)
from broker.scan.server import ScanReader, Scans, ScanSource, ScanTurns
from broker.server.routing.fair_queue import FairQueue
from broker.store.block.codec import BlockBuilder
from broker.store.messages import MessageStore
from broker.subjects import finish
from broker.wire import ClientParser, Op
from tests.support.listener import Listener

STREAM = "ORDERS"
SECOND = 1_000_000_000
START_NS = 1_700_000_000 * SECOND


def subject_of(seq: int) -> bytes:
    return b"orders.%s.%d" % (b"eu" if seq % 2 else b"us", seq % 10)


def headers_of(seq: int) -> bytes:
    return b"NATS/1.0\r\nTrace: %d\r\n\r\n" % seq if seq % 4 == 0 else b""


def data_of(seq: int) -> bytes:
    return b"%d:" % seq + b"x" * (seq % 50)


def block_of(first: int, last: int) -> bytes:
    builder = BlockBuilder(first)
    for seq in range(first, last + 1):
        builder.append(
            subject_of(seq), headers_of(seq), data_of(seq), time_ns=START_NS + seq * 1500, seq=seq
        )
    return builder.build()


class Store(MessageStore):
    """The message store of the broker, filled by a test."""

    @staticmethod
    def filled(rows: int, *, block_rows: int = 500) -> Store:
        store = Store()
        store.grow(rows, block_rows=block_rows)
        return store

    def grow(self, rows: int, *, block_rows: int = 500) -> None:
        until = self.last_seq + rows
        while self.last_seq < until:
            seq = self.last_seq + 1
            time_ns = START_NS + seq * 1500
            self.append(subject_of(seq), headers_of(seq), data_of(seq), time_ns=time_ns)
            if seq % block_rows == 0:
                self.segments.seal()

    def expire(self, up_to: int) -> None:
        self.drop_before(up_to + 1)

    def delete(self, *seqs: int) -> None:
        for seq in seqs:
            assert self.remove(seq)

    def expected(self) -> list[int]:
        every = range(self.first_seq, self.last_seq + 1)
        return [seq for seq in every if self.get(seq) is not None]


@dataclass
class Faults:
    """Faults in the scans of one replica."""

    die_after_bytes: int | None = None  # once: the connection and the listener are closed
    flip_byte_at: int | None = None  # once: one bit of the answer is flipped
    busy: bool = False
    pause_after_bytes: int | None = None  # stop sending and wait for `resume`


class Peer:
    """The client port of one replica."""

    def __init__(self, cluster: Cluster, name: str, store: Store) -> None:
        self.cluster = cluster
        self.name = name
        self.store = store
        self.stream_id = "incarnation-1"
        self.faults = Faults()
        self.scans = Scans(ScanTurns(FairQueue()))
        self.requests: list[bytes] = []
        self.asked: list[bytes] = []  # for plans
        self.port = 0
        self._listener: Listener | None = None

    async def listen(self) -> None:
        self._listener = Listener(self._serve, port=self.port)
        self.port = self._listener.port

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()
            self._listener = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_name": self.name, "headers": True, "max_payload": 1048576}
        writer.write(b"INFO " + json.dumps(info).encode() + b" \r\n")
        parser = ClientParser(max_control_line=65536, max_payload=1048576)
        inbox_sid: dict[bytes, bytes] = {}
        try:
            while chunk := await reader.read(65536):
                for event in parser.receive(chunk):
                    await self._answer(event, writer, inbox_sid)
        except ConnectionError:
            return

    async def _answer(
        self, event: tuple, writer: asyncio.StreamWriter, inbox_sid: dict[bytes, bytes]
    ) -> None:
        match event:
            case (Op.CONNECT, body):
                given = json.loads(body)
                if self.cluster.password and given.get("pass") != self.cluster.password:
                    writer.write(b"-ERR 'Authorization Violation'\r\n")
                    raise ConnectionAbortedError
            case (Op.PING,):
                writer.write(b"PONG\r\n")
            case (Op.SUB, subject, _, sid):
                inbox_sid[subject] = sid
            case (Op.PUB, run):
                for i in range(len(run)):
                    subject, reply, _, asked = run.message(i)
                    body = self._reply(subject, bytes(asked))
                    head = b"MSG %s %s %d\r\n" % (reply, inbox_sid[reply], len(body))
                    writer.write(head + body + b"\r\n")
            case (Op.SCAN, body):
                self.requests.append(body)
                await self._scan(body, writer)

    def _reply(self, subject: bytes, asked: bytes) -> bytes:
        self.asked.append(asked)
        if subject == NAMES_SUBJECT.encode():
            return json.dumps({"total": 1, "streams": sorted(self.cluster.stores)}).encode()
        stream = subject.decode().removeprefix(PLAN_SUBJECT)
        if stream not in self.cluster.stores:
            error = {"code": 404, "err_code": 10059, "description": "stream not found"}
            return json.dumps({"type": "x", "error": error}).encode()
        return encode_plan(self.cluster.plan(stream, decode_plan_request(asked)))

    async def _scan(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        sent = 0
        open_max = 0 if self.faults.busy else 4
        self.scans.admission.limits = ScanLimits(open_max=open_max)

        def write(data: bytes | memoryview) -> None:
            nonlocal sent
            chunk = bytes(data)
            flip = self.faults.flip_byte_at
            if flip is not None and sent <= flip < sent + len(chunk):
                at = flip - sent
                chunk = chunk[:at] + bytes([chunk[at] ^ 1]) + chunk[at + 1 :]
                self.faults.flip_byte_at = None
            sent += len(chunk)
            die = self.faults.die_after_bytes
            if die is not None and sent >= die:
                self.faults.die_after_bytes = None
                self._refuse()
                writer.transport.abort()
                raise ConnectionAbortedError
            writer.write(chunk)

        async def drain() -> None:
            await writer.drain()
            pause = self.faults.pause_after_bytes
            if pause is not None and sent >= pause:
                self.faults.pause_after_bytes = None
                self.cluster.paused.set()
                await asyncio.to_thread(self.cluster.resume.wait, 20)

        def find(stream: str) -> ScanSource | None:
            if stream == STREAM:
                return ScanSource(self.store, self.stream_id)
            other = self.cluster.stores.get(stream)
            return None if other is None else ScanSource(other, stream)

        reader = ScanReader(account="A", write=write, drain=drain, permitted=lambda _stream: True)
        await self.scans.serve(reader, body, find)

    def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.refuse()


class Cluster:
    """Replicas on an event loop in a background thread. The last one is the leader."""

    def __init__(self, store: Store, *, replicas: int = 3, password: str = "") -> None:
        self.password = password
        self.stores = {STREAM: store}  # a test may add streams: their id is their name
        self.paused, self.resume = threading.Event(), threading.Event()
        self.peers = [Peer(self, f"n{k}", store) for k in range(1, replicas + 1)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def leader(self) -> Peer:
        return self.peers[-1]

    @property
    def servers(self) -> str:
        return ",".join(f"nats://127.0.0.1:{peer.port}" for peer in self.peers)

    def plan(self, stream: str = STREAM, request: PlanRequest = NO_REQUEST) -> ScanPlan:
        named = stream == STREAM
        store = self.leader.store if named else self.stores[stream]
        return ScanPlan(
            stream=stream,
            id=self.leader.stream_id if named else stream,
            first_seq=store.first_seq,
            last_seq=store.last_seq,
            messages=store.messages,
            bytes=store.bytes,
            seqs=tuple(store.first_at_time(t) or store.last_seq + 1 for t in request.times),
            edges=finish(
                edges(
                    store.segments,
                    first=request.first,
                    behind=request.behind,
                    piece_bytes=request.piece_bytes,
                )
            )
            if request.piece_bytes
            else (),
            matching=sum(
                entry.count
                for entry in map(store.index.get, map(str.encode, request.subjects))
                if entry is not None
            )
            if request.subjects
            else -1,
            replicas=tuple(
                PlanReplica(
                    name=peer.name,
                    address=f"127.0.0.1:{peer.port}",
                    leader=peer is self.leader,
                    applied_seq=peer.store.last_seq if named else store.last_seq,
                )
                for peer in self.peers
            ),
        )

    def stop_peer(self, peer: Peer) -> None:
        asyncio.run_coroutine_threadsafe(peer.close(), self._loop).result(10)

    def start_peer(self, peer: Peer) -> None:
        asyncio.run_coroutine_threadsafe(peer.listen(), self._loop).result(10)

    def __enter__(self) -> Self:
        self._thread.start()
        for peer in self.peers:
            self.start_peer(peer)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.resume.set()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        for peer in self.peers:
            await peer.close()
