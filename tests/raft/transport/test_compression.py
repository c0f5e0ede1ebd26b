"""Compressed frames between two transports."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence

import pytest

from raft.transport.handshake import PeerVersions
from raft.transport.transport import RAFT_BULK
from raft.types import NodeId
from tests.support.transport_rig import Cluster, cluster_test, loop_kind, until

__all__ = ["loop_kind"]  # a fixture: every test here runs on both event loops

TEXT = b"a text that repeats itself, " * 40_000


class Codec:
    """zlib; what it packs for a peer is damaged if the test wants that."""

    def __init__(self) -> None:
        self.packed = 0
        self.damages = False

    def pack(self, _to: NodeId, payload: bytes | Sequence[bytes]) -> bytes | None:
        whole = payload if isinstance(payload, bytes) else b"".join(payload)
        if len(whole) < 100:
            return None
        self.packed += 1
        return b"nonsense" if self.damages else zlib.compress(whole)

    def unpack(self, payload: memoryview, bytes_max: int) -> bytes:
        stream = zlib.decompressobj()
        try:
            whole = stream.decompress(payload, bytes_max)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if stream.unconsumed_tail:
            raise ValueError("too long")
        return whole


@pytest.mark.parametrize(("newest", "packed"), [(3, False), (4, True)])
def test_frames_are_compressed_where_both_sides_can_read_them(newest: int, packed: bool) -> None:
    async def body(c: Cluster) -> None:
        codec = Codec()
        a = await c.start("a", codec=Codec(), versions=PeerVersions(3, newest))
        b = await c.start("b", a.port, codec=codec)
        await until(c.is_full_mesh)
        got: list[bytes] = []
        a.register(16, lambda _node, payload: got.append(payload))
        a.register(RAFT_BULK, lambda _node, view: got.append(bytes(view)), borrowed=True)
        assert b.send(a.node, 16, b"short")
        assert b.send(a.node, 16, TEXT)
        assert b.send(a.node, 16, [TEXT[:10], TEXT[10:]])
        assert b.send(a.node, RAFT_BULK, TEXT)
        assert b.send(a.node, 16, TEXT, control=True)  # those of the control link never are
        await until(lambda: len(got) == 5)
        assert sorted(got, key=len) == [b"short", *[TEXT] * 4]
        assert codec.packed == (3 if packed else 0)
        assert (b.statistics().sent_bytes < 2 * len(TEXT)) is packed

    cluster_test(body)


def test_a_compressed_frame_that_cannot_be_unpacked_ends_its_link_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(c: Cluster) -> None:
        codec = Codec()
        a = await c.start("a", codec=Codec())
        b = await c.start("b", a.port, codec=codec)
        await until(c.is_full_mesh)
        got: list[bytes] = []
        a.register(16, lambda _node, payload: got.append(payload))
        codec.damages = True
        number = b.link_pair_number(a.node)
        assert b.send(a.node, 16, TEXT)
        await until(lambda: b.link_pair_number(a.node) not in (0, number))
        codec.damages = False
        assert b.send(a.node, 16, TEXT)
        await until(lambda: got == [TEXT])
        assert a.statistics().refused["frame"] == 1

    with caplog.at_level(logging.WARNING, logger="raft.transport"):
        cluster_test(body)
    assert "compressed frame: " in caplog.text


def test_a_compressed_frame_without_a_codec_is_not_ignored() -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a")
        b = await c.start("b", a.port, codec=Codec())
        await until(c.is_full_mesh)
        assert b.send(a.node, 16, TEXT)
        await until(lambda: a.statistics().refused.get("frame") == 1)

    cluster_test(body)
