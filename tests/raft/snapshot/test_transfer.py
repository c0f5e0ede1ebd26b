"""Snapshot transfers between two transports: interrupted, resumed, replaced, rate-limited."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from raft.snapshot import outbound
from raft.snapshot.frames import FrameKind, SnapshotFrame, read_frame
from raft.snapshot.inbound import Incoming, SnapshotReceiver
from raft.snapshot.outbound import PIECE_BYTES, WINDOW_BYTES, SnapshotSender
from raft.transport.transport import SNAPSHOTS, Transport
from raft.types import GroupId, Index, NodeId, SnapshotMeta, Term
from tests.support.transport_rig import Cluster, Proxy, cluster_test, loop_kind, until

__all__ = ["loop_kind"]  # a fixture: every test here runs on both event loops

G = GroupId(7)
META = SnapshotMeta(Index(100), Term(3))
RATE = 16 << 20


class Pair:
    """Node `a` receives snapshots, node `b` sends them; only what b sends crosses the proxy."""

    def __init__(self, a: Transport, b: Transport, proxy: Proxy, directory: Path) -> None:
        self.a, self.b, self.proxy = a, b, proxy
        self.receiver = SnapshotReceiver(a, directory=str(directory))
        self.sender = SnapshotSender(b, bytes_per_second=RATE)
        self.whole: list[list[bytes]] = []
        self.metas: list[SnapshotMeta] = []
        self.finish_at_once = True
        self.drop: set[int] = set()  # numbers of pieces to lose, each once
        a.register(SNAPSHOTS, self._to_receiver, borrowed=True)
        b.register(SNAPSHOTS, lambda node, v: self.sender.answered(node, read_frame(v)))

    def _to_receiver(self, node: NodeId, view: memoryview) -> None:
        frame = read_frame(view)
        if frame.kind in (FrameKind.CHUNK, FrameKind.PIECE) and frame.number in self.drop:
            self.drop.remove(frame.number)
            return
        incoming = self.receiver.received(node, frame)
        if incoming is not None:
            self.whole.append(list(incoming.chunks))
            self.metas.append(incoming.meta)
            if self.finish_at_once:
                self.receiver.finish(G, incoming, ok=True)

    def incoming(self) -> Incoming | None:
        return self.receiver._transfers.get(G)

    def pieces(self) -> int:
        incoming = self.incoming()
        return incoming.pieces if incoming is not None else 0

    async def send(self, chunks: Iterable[bytes], *, term: int = 3, index: int = 100) -> bool:
        return await self.sender.send(
            group=G,
            to=self.a.node,
            term=Term(term),
            meta=SnapshotMeta(Index(index), Term(3)),
            chunks=chunks,
            wanted=lambda: True,
        )


@asynccontextmanager
async def a_pair(c: Cluster, directory: Path) -> AsyncIterator[Pair]:
    async with Proxy() as proxy:
        a = await c.start("a", advertise=("127.0.0.1", proxy.port))
        proxy.target = a.port
        b = await c.start("b", proxy.port)
        await until(c.is_full_mesh)
        pair = Pair(a, b, proxy, directory)
        yield pair
        pair.receiver.drop_all()
        for transport in c.transports:
            await transport.stop()
        c.transports.clear()


def some_chunks(nbytes: int) -> list[bytes]:
    """Chunks of about the size of a piece, and an empty one."""
    sizes = [1000, PIECE_BYTES, PIECE_BYTES + 1, 0, 3 * PIECE_BYTES - 1, 5 * PIECE_BYTES]
    chunks: list[bytes] = []
    while sum(map(len, chunks)) < nbytes:
        chunks.append(os.urandom(sizes[len(chunks) % len(sizes)]))
    return chunks


def test_after_a_lost_link_the_transfer_resumes_at_the_position_of_the_receiver(
    tmp_path: Path,
) -> None:
    async def body(c: Cluster) -> None:
        async with a_pair(c, tmp_path) as pair:
            chunks = some_chunks(8 << 20)
            total = sum(map(len, chunks))
            before = pair.proxy.bytes_to_target
            sending = asyncio.create_task(pair.send(chunks))
            for share in (0.3, 0.7):  # twice
                await until(lambda: pair.pieces() * PIECE_BYTES > total * share)  # noqa: B023
                pair.proxy.cut()
                await until(lambda: not pair.b.connected(pair.a.node))
                await until(lambda: pair.b.connected(pair.a.node))
            assert await sending
            assert pair.whole == [chunks]
            assert pair.sender.resumed == 2
            # Only what was in flight when the link was lost is sent again.
            again = pair.sender.sent_bytes - total
            assert 0 <= again <= 2 * (WINDOW_BYTES + PIECE_BYTES)
            assert pair.proxy.bytes_to_target - before < total + again + (1 << 18)

    cluster_test(body)


def test_the_transfer_goes_back_to_a_lost_piece_and_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "raft.snapshot.outbound.ASK_SECONDS", 60.0
    )  # the sender would not ask by itself

    async def body(c: Cluster) -> None:
        async with a_pair(c, tmp_path) as pair:
            pair.drop = {1, 20, 40}
            chunks = some_chunks(6 << 20)
            assert await pair.send(chunks)
            assert not pair.drop
            assert pair.whole == [chunks]
            again = pair.sender.sent_bytes - sum(map(len, chunks))
            assert 0 < again <= 3 * (WINDOW_BYTES + PIECE_BYTES)

    cluster_test(body)


def test_lost_last_pieces_are_noticed_at_the_end(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        async with a_pair(c, tmp_path) as pair:
            pair.drop = {3}
            assert await pair.send([b"one", b"two", b"three"])
            assert pair.whole == [[b"one", b"two", b"three"]]

    cluster_test(body)


def test_the_sender_asks_again_for_a_lost_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The final answer is lost with its connection; the sender asks, and gets it again."""
    monkeypatch.setattr("raft.snapshot.outbound.ASK_SECONDS", 0.05)

    async def body(c: Cluster) -> None:
        async with a_pair(c, tmp_path) as pair:
            heard = pair.sender.answered
            verdicts = 0

            def answered(node: NodeId, frame: SnapshotFrame) -> None:
                nonlocal verdicts
                verdicts += frame.kind is FrameKind.DONE
                if frame.kind is not FrameKind.DONE or verdicts > 1:
                    heard(node, frame)

            pair.sender.answered = answered  # type: ignore[method-assign]
            assert await pair.send([b"one"])
            assert verdicts == 2
            assert pair.whole == [[b"one"]]

    cluster_test(body)


class Silent:
    def send(self, *_: object) -> bool:
        return True


class LateAnswers:
    """A transport to a receiver that answers in order; its first answer is late."""

    def __init__(self, first_s: float) -> None:
        self.sender = SnapshotSender(cast(Transport, self), bytes_per_second=RATE)
        self.questions = 0
        self._due = asyncio.get_running_loop().time() + first_s

    def link_pair_number(self, _to: NodeId) -> int:
        return 1

    def send(self, to: NodeId, _kind: int, pieces: Iterable[bytes]) -> bool:
        frame = read_frame(memoryview(b"".join(pieces)))
        answers = {FrameKind.PIECE: FrameKind.TAKEN, FrameKind.CHUNK: FrameKind.TAKEN}
        answers |= {FrameKind.BEGIN: FrameKind.HELD, FrameKind.WHERE: FrameKind.HELD}
        answers |= {FrameKind.END: FrameKind.DONE}
        self.questions += frame.kind in (FrameKind.BEGIN, FrameKind.WHERE)
        answer = SnapshotFrame(answers[frame.kind], frame.group, frame.transfer, frame.number)
        answer.asked = frame.asked
        loop = asyncio.get_running_loop()
        self._due = max(self._due + 0.001, loop.time() + 0.02)
        loop.call_at(self._due, self.sender.answered, to, answer)
        return True


def test_an_answer_that_comes_late_does_not_make_all_others_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbound, "ASK_SECONDS", 0.05)

    async def body() -> int:
        link = LateAnswers(first_s=0.08)
        async with asyncio.timeout(20):
            assert await link.sender.send(
                group=G, to=NodeId(2), term=Term(3), meta=META, chunks=[b"x"], wanted=lambda: True
            )
        return link.questions

    assert asyncio.run(body()) < 20


def test_a_sender_that_has_restarted_does_not_continue_its_former_snapshot(tmp_path: Path) -> None:
    """It counts its transfers from one again."""

    receiver = SnapshotReceiver(cast(Transport, Silent()), directory=str(tmp_path))
    begin = SnapshotFrame(FrameKind.BEGIN, G, 1, 0, Term(3), Index(100), Term(3))
    piece = SnapshotFrame(FrameKind.CHUNK, G, 1, 1, data=b"old")
    receiver.received(NodeId(2), begin)
    receiver.received(NodeId(2), piece)
    receiver.received(NodeId(2), begin)  # the same transfer, over a new connection
    assert receiver._transfers[G].pieces == 1
    later = SnapshotFrame(FrameKind.BEGIN, G, 1, 0, Term(4), Index(140), Term(4))
    receiver.received(NodeId(2), later)
    assert (receiver._transfers[G].pieces, receiver._transfers[G].meta.index) == (0, 140)
    receiver.drop_all()


def test_a_slow_installation_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions of the sender neither disturb it nor offer the snapshot twice."""
    monkeypatch.setattr("raft.snapshot.outbound.ASK_SECONDS", 0.02)

    async def body(c: Cluster) -> None:
        async with a_pair(c, tmp_path) as pair:
            pair.finish_at_once = False
            sending = asyncio.create_task(pair.send([]))
            await until(lambda: pair.incoming() is not None and pair.incoming().asked > 5)  # type: ignore[union-attr]
            incoming = pair.incoming()
            assert incoming is not None
            assert incoming.offered
            pair.receiver.finish(G, incoming, ok=True)
            assert await sending
            assert pair.whole == [[]]

    cluster_test(body)


def test_a_receiver_that_lost_the_transfer_refuses_it_and_the_sender_gives_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="raft.snapshot")

    async def body(c: Cluster) -> None:
        async with a_pair(c, tmp_path) as pair:
            sending = asyncio.create_task(pair.send(some_chunks(8 << 20)))
            await until(lambda: pair.pieces() > 5)
            pair.receiver.drop_all()  # as after a restart
            pair.proxy.cut()
            assert not await sending
            chunks = some_chunks(1 << 20)
            assert await pair.send(chunks, index=101)  # a new snapshot
            assert pair.whole == [chunks]

    cluster_test(body)
    assert "the receiver does not want it" in caplog.text


def test_a_new_snapshot_replaces_a_stale_one(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        async with a_pair(c, tmp_path) as pair:
            stale = asyncio.create_task(pair.send(some_chunks(8 << 20)))
            await until(lambda: pair.pieces() > 5)
            assert await pair.send([b"newer"], term=4, index=200)
            assert not await stale
            assert pair.whole == [[b"newer"]]
            assert pair.metas[0].index == 200
            begun = asyncio.create_task(pair.send(some_chunks(8 << 20), term=5, index=300))
            await until(lambda: pair.pieces() > 5)
            assert not await pair.send([b"of a leader of old"], term=4, index=201)
            assert await begun

    cluster_test(body)


def test_memory_is_bounded_and_large_chunks_travel_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raft.snapshot.outbound.ASK_SECONDS", 0.1)

    async def body(c: Cluster) -> None:
        async with a_pair(c, tmp_path) as pair:
            drawn = 0

            def chunks() -> Iterator[bytes]:
                nonlocal drawn
                for _ in range(200):
                    drawn += 1
                    yield bytes(PIECE_BYTES)

            pair.drop = set(range(1, 10_000))  # the receiver reads nothing
            sending = asyncio.create_task(pair.send(chunks()))
            await until(lambda: pair.incoming() is not None)
            (transfer,) = pair.sender._transfers.values()
            await until(lambda: transfer.asked > 1)  # it waits
            assert transfer.kept_bytes <= WINDOW_BYTES
            assert drawn == WINDOW_BYTES // PIECE_BYTES
            sending.cancel()
            await asyncio.wait([sending])
            largest = 0
            take = pair._to_receiver

            def watch(node: NodeId, view: memoryview) -> None:
                nonlocal largest
                largest = max(largest, len(view))
                take(node, view)

            pair.drop = set()
            pair.a.register(SNAPSHOTS, watch, borrowed=True)
            assert await pair.send([bytes(9 << 20)])
            assert pair.whole == [[bytes(9 << 20)]]
            assert PIECE_BYTES < largest < PIECE_BYTES + 100

    cluster_test(body)


def test_all_transfers_together_stay_below_the_rate(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        async with a_pair(c, tmp_path) as pair:
            began = time.monotonic()
            assert await pair.send(some_chunks(8 << 20))
            assert time.monotonic() - began > (8 << 20) / RATE * 0.9

    cluster_test(body)


def test_a_receiver_without_disk_space_refuses_only_the_transfer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(c: Cluster) -> None:
        async with a_pair(c, tmp_path) as pair:

            def full(*_: object, **__: object) -> None:
                raise OSError(28, "No space left on device")

            with monkeypatch.context() as patch:
                patch.setattr("raft.snapshot.inbound.SpooledChunks.append", full)
                assert not await pair.send([b"x"])
            assert await pair.send([b"x"])
            assert ("a", False) not in c.events["b"]

    cluster_test(body)
    assert "cannot be stored: [Errno 28]" in caplog.text
