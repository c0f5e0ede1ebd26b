"""An origin may belong to somebody else: what it sends is checked before it is proposed."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from broker.cluster.origins import origin_connection
from broker.cluster.origins import origin_reader as module
from broker.cluster.origins.mirroring import Mirror
from broker.cluster.origins.origin_reader import OriginAccess, OriginReader
from broker.config.options import Remote
from broker.jetstream.commands.publish_entry import PUBLISH_PREFIX_SIZE
from broker.jetstream.config.stream_config import External, StreamSource
from broker.scan.protocol import FRAME, frame_header
from broker.store.block.codec import Block, BlockBuilder
from tests.support.cluster_fakes import run
from tests.support.origin_rig import INFO, Peer, scripted, until_closed

SOURCE = StreamSource(name="S", external=External(api="$JS.R.API"))
SCANNED = INFO.replace(b'"server_id"', b'"go":"python3","server_id"')


class Filled:
    """A stream that is filled; it keeps what is proposed."""

    group, name, account = 1, "COPY", SimpleNamespace(name="A")

    def __init__(self) -> None:
        self.proposed: list[tuple[int, bytes]] = []
        self.stream = SimpleNamespace(
            store=SimpleNamespace(last_seq=0), source_positions={}, config=None
        )

    def stamp(self) -> int:
        return 1

    def propose_raw(self, data: bytes) -> asyncio.Future[object]:
        block = Block(data[PUBLISH_PREFIX_SIZE:], verify=False)
        self.proposed += [(block.seq(row), block.subject(row)) for row in range(block.rows)]
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


def delivered(subject: bytes, seq: bytes, time_ns: bytes = b"5", number: int = 1) -> bytes:
    return b"MSG %b 1 $JS.ACK.S.c.1.%b.%d.%b.0 1\r\nx\r\n" % (subject, seq, number, time_ns)


def copied(played: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Filled, list[str]]:
    """What is proposed when the first connection plays `played`, and the next one is sound; and
    the problems on the way."""
    found: list[tuple[Filled, list[str]]] = []

    async def test() -> None:
        found.append(await _copied(played, monkeypatch))

    run(test())
    return found[0]


async def _copied(played: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Filled, list[str]]:
    monkeypatch.setattr(module, "RETRY_FIRST_S", 0.0)
    connections, done = 0, asyncio.Event()
    problems: list[str] = []

    async def script(peer: Peer) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            await played(peer)
        else:
            await peer.serve()
            peer.send(delivered(b"s.good", b"7"))
        await until_closed(peer)

    filled = Filled()
    async with scripted(script) as address:
        access = OriginAccess({"R": Remote(urls=address.urls)}, inside={}.__getitem__)
        reader = OriginReader(access, filled, SOURCE, Mirror(filled, SOURCE))
        monkeypatch.setattr(module.logger, "warning", lambda *words: problems.append(words[-1]))
        propose = filled.propose_raw

        def noticed(data: bytes) -> asyncio.Future[object]:
            future = propose(data)
            if (7, b"s.good") in filled.proposed:
                done.set()
            return future

        monkeypatch.setattr(filled, "propose_raw", noticed)
        task = asyncio.create_task(reader.run())
        waiting = asyncio.create_task(done.wait())
        async with asyncio.timeout(10):
            await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
    return filled, problems


@pytest.mark.parametrize(
    "sent",
    [
        delivered(b"s\nMSG", b"1"),
        delivered(b"s\tx", b"1"),
        delivered(b"", b"1"),
        delivered(b"s", b"0"),
        delivered(b"s", b"-4"),
        delivered(b"s", b"%d" % (2**63 - 2)),
        delivered(b"s", b"9" * 20),
        delivered(b"s", b"1", time_ns=b"9" * 20),
    ],
)
def test_a_delivery_that_is_not_sound_is_not_proposed_and_reading_goes_on(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def played(peer: Peer) -> None:
        await peer.serve()
        peer.send(sent)

    filled, problems = copied(played, monkeypatch)
    assert filled.proposed == [(7, b"s.good")]
    assert len(problems) == 1


def test_what_arrives_before_the_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin_connection, "EARLY_BYTES_MAX", 10_000)

    async def played(peer: Peer) -> None:
        await peer.greet()
        await peer.asked()
        for number in range(1, 100):
            peer.send(delivered(b"s", b"%d" % number, number=number))

    filled, problems = copied(played, monkeypatch)
    assert filled.proposed == [(7, b"s.good")]
    assert problems == ["the origin delivers without an answer to the request"]


def test_sequences_of_deliveries_only_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    async def played(peer: Peer) -> None:
        await peer.serve()
        peer.send(delivered(b"s", b"5") + delivered(b"s", b"4", number=2))

    filled, problems = copied(played, monkeypatch)
    assert filled.proposed == [(5, b"s"), (7, b"s.good")]
    assert problems == ["the origin sent sequences 4 to 4 after 5"]


def scan_of(*blocks: list[tuple[int, bytes]]) -> Any:
    """A JetRaft that answers plan and scan with these rows."""

    async def played(peer: Peer) -> None:
        await peer.greet(SCANNED)
        inbox = (await peer.line()).split(b" ")[1]
        await peer.line()
        size = int((await peer.line()).split(b" ")[-1])
        await peer.reader.readexactly(size + 2)
        plan = {"stream": "S", "id": "1", "first_seq": 1, "last_seq": 100, "retention": "limits"}
        body = json.dumps(plan).encode()
        peer.send(b"MSG %b 3 %d\r\n%b\r\n" % (inbox, len(body), body))
        assert (await peer.line()).startswith(b"SCAN ")
        head = {"id": "1", "first_seq": 1, "last_seq": 100, "applied": 100}
        peer.send(b"+SCAN " + json.dumps(head).encode() + b"\r\n")
        for rows in blocks:
            builder = BlockBuilder()
            for seq, subject in rows:
                builder.append(subject, b"", b"x", time_ns=1, seq=seq)
            raw = builder.build()
            peer.send(frame_header(raw) + raw)
        peer.send(FRAME.pack(0, 0) + b'{"last_sent":100,"first_seq_now":1}\r\n')

    return played


@pytest.mark.parametrize(
    "rows",
    [
        [(1, b"a"), (2, b"a\r\nMSG secret 1 0\r\n")],
        [(1, b"a b")],
        [(1, b"a"), (2, b"")],
        [(1, b"a"), (2**63 - 2, b"a")],
        [(0, b"a")],
    ],
)
def test_a_scanned_block_that_is_not_sound_is_not_proposed(
    rows: list[tuple[int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled, _ = copied(scan_of(rows), monkeypatch)
    assert filled.proposed == [(7, b"s.good")]


def test_sequences_of_scanned_blocks_only_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    filled, problems = copied(scan_of([(1, b"a"), (3, b"a")], [(2, b"b")]), monkeypatch)
    assert filled.proposed == [(1, b"a"), (3, b"a"), (7, b"s.good")]
    assert problems == ["the origin sent sequences 2 to 2 after 3"]


def test_an_origin_whose_info_is_nested_too_deep_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def played(peer: Peer) -> None:
        peer.send(b'INFO {"x":' + b"[" * 100_000 + b"\r\n")

    filled, problems = copied(played, monkeypatch)
    assert filled.proposed == [(7, b"s.good")]
    assert len(problems) == 1
