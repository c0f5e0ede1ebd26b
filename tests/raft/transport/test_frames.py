"""Frames that are damaged, too long or of another version close their connection only."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from zlib import crc32

import msgspec
import pytest
from msgspec import to_builtins

from raft.transport.handshake import (
    ANSWER,
    CHALLENGE,
    HELLO,
    MAGIC,
    VERSIONS,
    Answer,
    Challenge,
    LinkClass,
    LocalPeer,
    frame,
)
from raft.transport.transport import Transport, TransportLimits
from raft.types import node_id
from tests.support.listener import Listener
from tests.support.transport_rig import Cluster, Proxy, cluster_test, loop_kind, until

__all__ = ["loop_kind"]  # a fixture: every test here runs on both event loops

QUIET = TransportLimits(ping_seconds=5.0, retry_last_seconds=0.1)  # no pings between the frames
HEAD = 13  # length, its complement, checksum: 4 bytes each, then the channel


def sealed(channel: int, payload: bytes) -> bytes:
    """The layout of a sealed frame, written down independently."""
    size = len(payload)
    crc = crc32(payload, size ^ channel << 24)
    return struct.pack("<IIIB", size, 0xFFFFFFFF - size, crc, channel) + payload


STRANGER = LocalPeer(node_id("x"), "x", "c", None, dict, port=1)
GREETING_BYTES = 4 + 1 + 22


def challenge() -> bytes:
    """Without credentials: an answer comes, and checksums stay."""
    return sealed(
        0,
        frame(
            CHALLENGE, Challenge(LinkClass.BULK, bytes(16), b"", VERSIONS.oldest, VERSIONS.newest)
        ),
    )


@asynccontextmanager
async def behind_a_proxy(c: Cluster) -> AsyncIterator[tuple[Transport, Transport, Proxy]]:
    """`b` reaches `a` only through the proxy; `d` is a bystander."""
    async with Proxy() as proxy:
        a = await c.start("a", limits=QUIET, advertise=("127.0.0.1", proxy.port))
        proxy.target = a.port
        b = await c.start("b", proxy.port, limits=QUIET)
        await c.start("d", proxy.port, limits=QUIET)
        await until(c.is_full_mesh)
        yield a, b, proxy
        for transport in c.transports:
            await transport.stop()
        c.transports.clear()


@pytest.mark.parametrize(
    ("offset", "size", "reason"),
    [
        pytest.param(0, 1000, "with a wrong length field", id="length"),
        pytest.param(7, 1000, "with a wrong length field", id="complement"),
        pytest.param(8, 1000, "1000 bytes on channel 16 has a wrong checksum", id="checksum"),
        pytest.param(12, 1000, "on channel 20 has a wrong checksum", id="channel"),
        pytest.param(HEAD, 1000, "has a wrong checksum", id="first byte"),
        pytest.param(HEAD + 999, 1000, "has a wrong checksum", id="last byte"),
        pytest.param(HEAD, 500_000, "500000 bytes on channel 16 has a wrong", id="large frame"),
    ],
)
def test_a_damaged_frame_ends_its_connection_only(
    caplog: pytest.LogCaptureFixture, offset: int, size: int, reason: str
) -> None:
    async def body(c: Cluster) -> None:
        async with behind_a_proxy(c) as (a, b, proxy):
            got: list[bytes] = []
            a.register(16, lambda _node, payload: got.append(payload))
            proxy.flip(offset, of_at_least=1000)
            assert b.send(a.node, 16, bytes(size))
            await until(lambda: a.statistics().refused.get("frame") == 1)
            await until(lambda: ("a", False) in c.events["b"])
            await until(c.is_full_mesh)
            assert b.send(a.node, 16, [b"whole", b" again"])
            await until(lambda: bool(got))
            assert got == [b"whole again"]  # nothing of the damaged frame was handed on
            assert ("a", False) not in c.events["d"]
            assert ("d", False) not in c.events["a"]

    with caplog.at_level(logging.WARNING, logger="raft.transport"):
        cluster_test(body)
    (line,) = [r.getMessage() for r in caplog.records]
    assert line.startswith("a: link from b lost: frame")
    assert reason in line


def test_a_frame_beyond_the_limit_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def body(c: Cluster) -> None:
        small = TransportLimits(frame_bytes_max=1000, retry_last_seconds=0.1)
        a = await c.start("a", limits=small)
        b = await c.start("b", a.port)
        await until(c.is_full_mesh)
        assert b.send(a.node, 16, bytes(1001))
        await until(lambda: a.statistics().refused.get("frame") == 1)
        await until(c.is_full_mesh)

    with caplog.at_level(logging.WARNING, logger="raft.transport"):
        cluster_test(body)
    (line,) = [r.getMessage() for r in caplog.records]
    assert line == "a: link from b lost: frame of 1001 bytes exceeds the limit of 1000"


def test_frames_do_not_depend_on_how_the_bytes_are_split() -> None:
    """A raw peer writes byte by byte what a link would write at once."""

    async def body(c: Cluster) -> None:
        a = await c.start("a")
        got: list[bytes] = []
        a.register(16, lambda _node, payload: got.append(payload))
        reader, writer = await asyncio.open_connection("127.0.0.1", a.port)
        await reader.readexactly(GREETING_BYTES)
        hello = STRANGER.hello(LinkClass.BULK, VERSIONS.newest, peers=[])
        frames = [b"", b"y", b"three", bytes(300)]
        stream = challenge() + sealed(0, frame(HELLO, hello))
        stream += b"".join(sealed(16, f) for f in frames)
        for position in range(len(stream)):
            writer.write(stream[position : position + 1])
            await asyncio.sleep(0)
        await until(lambda: len(got) == len(frames))
        assert got == frames
        b = await c.start("b", a.port)
        await until(lambda: b.connected(a.node))
        assert b.send(a.node, 16, [b"%03d" % i for i in range(500)])
        await until(lambda: len(got) == len(frames) + 1)
        assert got[-1] == b"".join(b"%03d" % i for i in range(500))
        writer.close()

    cluster_test(body)


@pytest.mark.parametrize(
    ("wrong", "kind", "reason"),
    [
        ({"version": 1}, "version", f"peer protocol version 1, expected {VERSIONS.newest}"),
        (
            {"cluster": "other"},
            "cluster",
            'server "x" belongs to cluster "other", server "a" to cluster "c"',
        ),
        ({"node": 0}, "malformed", "its name, id or port is wrong"),
        ({"port": 70_000}, "malformed", "its name, id or port is wrong"),
        ({"name": 5}, "malformed", "its hello is malformed: Expected `str`, got `int`"),
    ],
)
def test_a_wrong_hello_is_refused(
    caplog: pytest.LogCaptureFixture, wrong: dict[str, Any], kind: str, reason: str
) -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a")
        reader, writer = await asyncio.open_connection("127.0.0.1", a.port)
        await reader.readexactly(GREETING_BYTES)
        hello = STRANGER.hello(LinkClass.BULK, VERSIONS.newest, peers=[])
        writer.write(challenge() + sealed(0, frame(HELLO, {**to_builtins(hello), **wrong})))
        await reader.readexactly(len(sealed(0, frame(ANSWER, Answer(b"")))))
        answer = await reader.read()
        assert msgspec.json.decode(answer[HEAD + 1 :])["reason"].startswith(reason)
        writer.close()
        assert a.statistics().refused == {kind: 1}
        assert not a.peers()

    with caplog.at_level(logging.WARNING, logger="raft.transport"):
        cluster_test(body)
    (line,) = [r.getMessage() for r in caplog.records]
    assert line.startswith(f"a: we refused the server at 127.0.0.1: {reason}")


def test_a_server_of_an_older_version_is_refused_with_a_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its greeting is read although its frames have no checksums."""

    async def older(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(struct.pack("<IB", 23, 0) + b"G" + MAGIC + b"\x01" + bytes(16))
        await reader.read()

    async def body(c: Cluster) -> None:
        listener = Listener(older)
        a = await c.start("a", listener.port)
        await until(lambda: a.statistics().refused.get("version", 0) >= 2)
        await listener.close()

    with caplog.at_level(logging.WARNING, logger="raft.transport"):
        cluster_test(body)
    (line,) = [r.getMessage() for r in caplog.records]
    assert line.endswith(f"it speaks peer protocol version 1, we speak {VERSIONS}")


def test_an_older_version_can_read_the_greeting() -> None:
    """Version 1 read u32 length, u8 channel, then "G", the magic, the version, a nonce."""

    async def body(c: Cluster) -> None:
        a = await c.start("a")
        reader, writer = await asyncio.open_connection("127.0.0.1", a.port)
        greeting = await reader.readexactly(GREETING_BYTES)
        assert greeting[:11] == struct.pack("<IB", 23, 0) + b"G" + MAGIC + bytes((VERSIONS.oldest,))
        writer.close()

    cluster_test(body)
