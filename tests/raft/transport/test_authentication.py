"""Mutual authentication of nodes: who cannot prove the password learns no name and sends no frame.

Every attack here was possible before version 3 of the protocol."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from itertools import pairwise
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.transport.frame_guard import Checksums, FrameGuard
from raft.transport.frame_tags import Tags
from raft.transport.handshake import MAGIC, VERSIONS, LinkClass, Nonces, PeerCredentials
from raft.transport.transport import TransportLimits
from tests.support.listener import Listener
from tests.support.transport_rig import Cluster, Proxy, cluster_test, loop_kind, until

__all__ = ["loop_kind"]  # a fixture: every test here runs on both event loops

SECRET = ("u", "a long secret")
QUIET = TransportLimits(ping_seconds=5.0, retry_last_seconds=0.1)  # no pings between the frames
GREETING = struct.pack("<IB", 23, 0) + b"G" + MAGIC + bytes((VERSIONS.oldest,)) + bytes(16)
NAMES = (b"heron", b"marsh", b"127.0.0.1", b"client")  # server, cluster, addresses, details


def checksummed(channel: int, payload: bytes) -> bytes:
    size = len(payload)
    crc = crc32(payload, size ^ channel << 24)
    return struct.pack("<IIIB", size, 0xFFFFFFFF - size, crc, channel) + payload


# Two of them, because a frame with a tag is longer: the first is complete either way.
FORGED = checksummed(16, b"forged") * 2


def test_a_node_tells_no_name_to_a_server_that_proves_nothing() -> None:
    heard: list[bytes] = []

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING)
        heard.append(await reader.read(1 << 16))
        writer.write(checksummed(0, b'A{"proof":"AAAA"}'))
        heard.append(await reader.read())

    async def body(c: Cluster) -> None:
        listener = Listener(impostor)
        a = await c.start("heron", listener.port, cluster="marsh", credentials=SECRET)
        await until(lambda: a.statistics().refused.get("credentials", 0) >= 1)
        await until(lambda: len(heard) >= 2)
        await listener.close()

    cluster_test(body)
    assert heard[0]
    assert heard[1] == b""
    assert not any(name in heard[0] for name in NAMES)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b'C{"link":"bulk","nonce":"AAAAAAAAAAAAAAAAAAAAAA==","proof":""}',
        b'C{"link":"bulk","nonce":"AAAA","proof":""}',
        b'H{"version":3}',
        b"C\xff",
        b"R{}",
    ],
)
def test_a_stranger_is_told_no_name(sent: bytes) -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("heron", cluster="marsh", credentials=SECRET)
        await c.start("ibis", a.port, cluster="marsh", credentials=SECRET)
        await until(c.is_full_mesh)
        reader, writer = await asyncio.open_connection("127.0.0.1", a.port)
        writer.write(checksummed(0, sent))
        told = await reader.read()
        writer.close()
        assert told.startswith(GREETING[:11])
        assert not any(name in told for name in (*NAMES, b"ibis"))

    cluster_test(body)


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(lambda data: data + FORGED, id="inject"),
        pytest.param(lambda data: FORGED + data, id="inject before"),
        pytest.param(lambda data: data + data, id="repeat"),
        pytest.param(lambda data: data.replace(b"honest", b"forged"), id="alter"),
    ],
)
def test_who_relays_the_handshake_can_send_nothing_of_his_own(
    attack: Callable[[bytes], bytes],
) -> None:
    """A man in the middle passes every byte of the handshake on, then tries to use the link."""

    async def body(c: Cluster) -> None:
        async with Proxy() as proxy:
            a = await c.start(
                "a", limits=QUIET, credentials=SECRET, advertise=("127.0.0.1", proxy.port)
            )
            proxy.target = a.port
            b = await c.start("b", proxy.port, limits=QUIET, credentials=SECRET)
            await until(c.is_full_mesh)
            got: list[bytes] = []
            a.register(16, lambda _node, payload: got.append(payload))
            assert b.send(a.node, 16, b"honest 1")
            await until(lambda: got == [b"honest 1"])

            def once(data: bytes) -> bytes:
                proxy.alter = None
                return attack(data)

            proxy.alter = once
            assert b.send(a.node, 16, b"honest 2")
            await until(lambda: a.statistics().refused.get("frame") == 1)
            assert got in ([b"honest 1"], [b"honest 1", b"honest 2"])
            await until(c.is_full_mesh)  # it is dialed again
            for transport in c.transports:
                await transport.stop()
            c.transports.clear()

    cluster_test(body)


def test_frames_of_any_size_pass_a_link_with_credentials() -> None:
    async def body(c: Cluster) -> None:
        a = await c.start("a", credentials=SECRET)
        b = await c.start("b", a.port, credentials=SECRET)
        await until(c.is_full_mesh)
        got: list[bytes] = []
        a.register(16, lambda _node, payload: got.append(payload))
        sent = [bytes(size) for size in (0, 1, 300, 256 << 10, 3_000_000, 5, 700_000, 0)]
        for payload in sent:
            assert b.send(a.node, 16, payload)
        assert b.send(a.node, 16, [b"in", b"pieces", bytes(2000), b""])
        assert b.send(a.node, 16, [])
        await until(lambda: len(got) == len(sent) + 2)
        assert got == [*sent, b"inpieces" + bytes(2000), b""]

    cluster_test(body)


def pair() -> tuple[FrameGuard, FrameGuard]:
    nonces = Nonces(b"a" * 16, b"d" * 16, LinkClass.BULK)
    credentials = PeerCredentials(*SECRET)
    return credentials.guard(nonces, accepting=False), credentials.guard(nonces, accepting=True)


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300)), min_size=1), st.data())
def test_a_frame_is_accepted_in_its_place_only(
    frames: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    ours, theirs = pair()
    heads = [ours.seal(channel, payload, ()) for channel, payload in frames]
    position = data.draw(st.integers(0, len(frames) - 1))
    for head, (channel, payload) in zip(heads[:position], frames[:position], strict=True):
        read = theirs.read_head(bytearray(head), 0)
        assert (read.length, read.channel) == (len(payload), channel)
        assert theirs.check(read, memoryview(payload))
    other = data.draw(st.integers(0, len(frames) - 1))
    read = theirs.read_head(bytearray(heads[other]), 0)
    assert theirs.check(read, memoryview(frames[other][1])) is (other == position)


@given(
    payload=st.binary(max_size=2000),
    cuts=st.lists(st.integers(0, 2000), max_size=5),
    damaged=st.booleans(),
)
def test_a_frame_in_parts_is_checked_like_a_whole_one(
    payload: bytes, cuts: list[int], *, damaged: bool
) -> None:
    for ours, theirs in (pair(), (Checksums(), Checksums())):
        head = theirs.read_head(bytearray(ours.seal(7, payload, (b"end",))), 0)
        arrived = payload + (b"eND" if damaged else b"end")
        check = theirs.begin(head)
        edges = [0, *sorted(min(cut, len(arrived)) for cut in cuts), len(arrived)]
        for start, stop in pairwise(edges):
            check.update(memoryview(arrived)[start:stop])
        assert check.matches() is not damaged


def test_keys_differ_by_direction_connection_and_role() -> None:
    credentials = PeerCredentials(*SECRET)
    base = Nonces(b"a" * 16, b"d" * 16, LinkClass.BULK)
    proofs = {
        credentials.proof(nonces, accepting=accepting)
        for accepting in (True, False)
        for nonces in (
            base,
            Nonces(b"a" * 16, b"e" * 16, LinkClass.BULK),
            Nonces(b"b" * 16, b"d" * 16, LinkClass.BULK),
            Nonces(b"a" * 16, b"d" * 16, LinkClass.CONTROL),
        )
    }
    assert len(proofs) == 8
    ours, _ = pair()
    reflected = ours.read_head(bytearray(ours.seal(1, b"x", ())), 0)
    assert not ours.check(reflected, memoryview(b"x"))  # our own frame, sent back to us
    assert isinstance(ours, Tags)
