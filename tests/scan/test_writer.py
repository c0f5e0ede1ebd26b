"""Blocks of a writer reach a real server once, through lost connections and repeated tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.client import scan
from broker.cluster.api import write_batches
from broker.config.options import (
    Authorization,
    JetStreamOptions,
    Limits,
    Permissions,
    SubjectRules,
    User,
)
from broker.local import free_ports
from broker.scan.arrow_blocks import BlockCutter, RowRefused
from broker.scan.client import Login, NoServer, ReplicaAddress
from broker.scan.protocol import PlanRefused
from broker.scan.writer import BlockWriter, WriteRefused
from broker.store.block.codec import Block
from tests.support.server import RawClient, local, run, running_broker

CONNECT = b'CONNECT {"verbose":false,"user":"all","pass":"pw"}\r\n'


def batch(first: int, last: int, **columns: Any) -> pa.RecordBatch:
    numbers = range(first, last + 1)
    return pa.RecordBatch.from_pydict(
        {"subject": [f"s.{k % 7}" for k in numbers], "data": [b"%d" % k for k in numbers]} | columns
    )


def blocks_of(*made: pa.RecordBatch, **limits: int) -> list[tuple[bytes, int]]:
    chosen = {"bytes_max": 1 << 20, "rows_max": 8192} | limits
    cutter = BlockCutter(subject="all", **chosen)
    full = [block for batch in made for block in cutter.take(batch)]
    return [(b"".join(parts), rows) for parts, rows in (*full, *cutter.rest())]


def test_blocks_have_the_rows_of_the_batch() -> None:
    maps = pa.array([[("A", ["1", "2"])], None, []], pa.map_(pa.string(), pa.list_(pa.string())))
    made = pa.RecordBatch.from_pydict(
        {
            "subject": ["a", "bb", "c.d"],
            "data": pa.array(["one", None, "three"]),
            "headers": maps,
            "msg_id": [None, "id-2", "id-3"],
        }
    )
    for rows in (made, pa.concat_batches([made, made]).slice(3, 3)):
        ((raw, count),) = blocks_of(rows)
        block = Block(raw)
        assert count == block.rows == 3
        assert [block.subject(i) for i in range(3)] == [b"a", b"bb", b"c.d"]
        assert [block.data(i) for i in range(3)] == [b"one", b"", b"three"]
        assert block.headers(0) == b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"
        assert block.headers(1) == b"NATS/1.0\r\nNats-Msg-Id: id-2\r\n\r\n"
    (single,) = blocks_of(pa.RecordBatch.from_pydict({"data": [b"x"]}))
    assert Block(single[0]).subject(0) == b"all"


def test_a_batch_is_cut_by_bytes_and_rows() -> None:
    parts = blocks_of(batch(1, 1000), rows_max=300)
    assert [rows for _, rows in parts] == [300, 300, 300, 100]
    small = blocks_of(batch(1, 1000), bytes_max=2000)
    assert all(len(raw) <= 2000 for raw, _ in small)
    assert sum(rows for _, rows in small) == 1000
    numbers = [int(Block(raw).data(i)) for raw, rows in small for i in range(rows)]
    assert numbers == list(range(1, 1001))


def test_blocks_are_full_however_small_the_batches_are() -> None:
    small = [batch(first, first + 2) for first in range(1, 1000, 3)]
    parts = blocks_of(*small, rows_max=300)
    assert [rows for _, rows in parts] == [300, 300, 300, 99]
    cut = blocks_of(*small, bytes_max=2000)
    assert all(1900 < len(raw) <= 2000 for raw, _ in cut[:-1])
    for blocks in (parts, cut):
        found = [Block(raw) for raw, _ in blocks]
        numbers = [int(block.data(i)) for block in found for i in range(block.rows)]
        assert numbers == list(range(1, 1000))
        subjects = [block.subject(i) for block in found for i in range(block.rows)]
        assert subjects == [b"s.%d" % (k % 7) for k in numbers]


def test_rows_before_one_that_is_too_large_are_in_blocks() -> None:
    cutter = BlockCutter(subject="all", bytes_max=2000, rows_max=100)
    found = []
    with pytest.raises(RowRefused, match="row 2 of a batch has"):
        found.extend(cutter.take(pa.RecordBatch.from_pydict({"data": [b"1", b"2", bytes(5000)]})))
    assert [rows for _, rows in found] == [2]


def test_rows_that_cannot_be_messages_are_told() -> None:
    with pytest.raises(RowRefused, match="row 1 of a batch has no subject"):
        blocks_of(pa.RecordBatch.from_pydict({"subject": ["a", None], "data": ["x", "y"]}))
    with pytest.raises(RowRefused, match=r"row 1 of a batch has 50\d\d bytes"):
        blocks_of(pa.RecordBatch.from_pydict({"data": [b"", bytes(5000)]}), bytes_max=2000)
    with pytest.raises(RowRefused, match="line break"):
        blocks_of(pa.RecordBatch.from_pydict({"data": [b""], "msg_id": ["a\r\nb"]}))
    with pytest.raises(RowRefused, match=r"not a NATS.1.0 header block"):
        blocks_of(pa.RecordBatch.from_pydict({"data": [b""], "headers": [b"Odd: 1"]}))


def with_stream(tmp_path: Path, look: Callable[[int], None], config: bytes) -> None:
    async def test() -> None:
        only = Permissions(publish=SubjectRules(allow=(b"s.1", b"$JS.API.>", b"_INBOX.>")))
        options = local(
            server_name="n",
            authorization=Authorization(
                users=(User("all", "pw"), User("few", "pw", permissions=only))
            ),
            jetstream=JetStreamOptions(store_dir=str(tmp_path)),
            limits=Limits(max_payload=64 * 1024),
        )
        async with running_broker(options) as broker:
            client = await RawClient.open(broker.server, connect=CONNECT)
            client.send(b"SUB inbox 1\r\nPUB $JS.API.STREAM.CREATE.S inbox %d\r\n" % len(config))
            client.send(config + b"\r\n")
            while b'"did_create":true' not in await client.line():
                pass
            client.close()
            await asyncio.to_thread(look, broker.server.port)

    run(test())


def writer(port: int, name: str, epoch: int = 0, user: str = "all") -> BlockWriter:
    login = Login(user=user, password="pw")
    servers = [ReplicaAddress("127.0.0.1", port)]
    return BlockWriter(servers, login, stream="S", writer=name, epoch=epoch)


def test_what_is_written_again_is_stored_once(tmp_path: Path) -> None:
    def look(port: int) -> None:
        def stored() -> list[int]:
            found = scan("S", servers=f"nats://all:pw@127.0.0.1:{port}", columns=["data"])
            return [int(one) for one in found.column(0).to_pylist()]

        def write(out: BlockWriter, last: int, *, cut_after: int = 0) -> None:
            size = out.max_block()
            for number, (raw, rows) in enumerate(blocks_of(batch(1, last), bytes_max=size // 8)):
                if cut_after and number == cut_after:
                    out._link._socket.shutdown(2)  # type: ignore[union-attr]  # under way
                out.write((raw,), rows)

        first = writer(port, "w")
        write(first, 3000, cut_after=7)
        first.close()  # the task dies without waiting
        second = writer(port, "w")
        write(second, 10_000, cut_after=3)
        second.finish()
        assert stored() == list(range(1, 10_001))
        third = writer(port, "w")
        write(third, 10_000)
        third.finish()
        assert (third.added, third.repeated) == (0, 10_000)
        another = writer(port, "w", epoch=1)
        write(another, 5)
        another.finish()
        assert stored() == [*range(1, 10_001), *range(1, 6)]

    with_stream(tmp_path, look, b'{"name":"S","subjects":["s.*"]}')


def test_a_row_that_the_stream_refuses_is_named(tmp_path: Path) -> None:
    def look(port: int) -> None:
        def write(made: pa.RecordBatch, user: str = "all") -> None:
            out = writer(port, "w", user=user)
            try:
                for raw, rows in blocks_of(made, bytes_max=60_000):
                    out.write((raw,), rows)
                out.finish()
            finally:
                out.close()

        data = [b"x" * 10, b"y" * 10, b"z" * 200]
        large = pa.RecordBatch.from_pydict({"subject": ["s.1"] * 3, "data": data})
        with pytest.raises(WriteRefused, match="refuses row 2 of w: message size exceeds"):
            write(large)
        for subject, says in (
            ("t.1", "does not capture the subject 't.1'"),
            ("s.*", "subject 's.\\*' is not valid"),
        ):
            wrong = pa.RecordBatch.from_pydict({"subject": [subject], "data": [b"x"]})
            with pytest.raises(PlanRefused, match=says):
                write(wrong)
        with pytest.raises(PlanRefused, match=r"no permission to publish to .s.0."):
            write(pa.RecordBatch.from_pydict({"subject": ["s.0"], "data": [b"x"]}), user="few")

    with_stream(tmp_path, look, b'{"name":"S","subjects":["s.*"],"max_msg_size":100}')


def test_what_waits_for_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    less_than_two_blocks = write_batches.REQUEST_BYTES + 20_000
    monkeypatch.setattr(write_batches, "HELD_BYTES_MAX", less_than_two_blocks)

    def look(port: int) -> None:
        out = writer(port, "w")
        for raw, rows in blocks_of(batch(1, 3000), bytes_max=15_000):
            out.write((raw,), rows)
        out.finish()
        found = scan("S", servers=f"nats://all:pw@127.0.0.1:{port}", columns=["data"])
        assert [int(one) for one in found.column(0).to_pylist()] == list(range(1, 3001))

    with_stream(tmp_path, look, b'{"name":"S","subjects":["s.*"]}')


def test_every_server_that_fails_is_named() -> None:
    servers = [ReplicaAddress("127.0.0.1", port) for port in free_ports(2)]
    writer = BlockWriter(
        servers, Login(), stream="S", writer="w", epoch=0, pause=lambda seconds: None
    )
    with pytest.raises(NoServer) as failed:
        writer.max_block()
    assert set(failed.value.reasons) == {str(server) for server in servers}
