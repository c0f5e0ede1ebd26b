"""Nodes of different versions: a link has the newest version that both speak, or there is none."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from zlib import crc32

import pytest

from raft.transport.handshake import VERSIONS, HandshakeRefused, PeerVersions, RefusalCode
from raft.transport.transport import Transport, TransportLimits
from tests.support.transport_rig import Cluster, Proxy, cluster_test, loop_kind, until

__all__ = ["loop_kind"]  # a fixture: every test here runs on both event loops

QUIET = TransportLimits(ping_seconds=5.0, retry_last_seconds=0.1)
SECRET = ("u", "a long secret")
HEAD = struct.Struct("<IIIB")  # of a frame with a checksum: size, its complement, checksum, channel


def versions(transport: Transport) -> dict[str, int]:
    return {peer.name: peer.version for peer in transport.peers().values() if peer.connected}


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [((3, 3), (3, 3), 3), ((3, 4), (3, 3), 3), ((3, 5), (4, 9), 5), ((4, 5), (3, 4), 4)],
)
def test_a_link_has_the_newest_version_that_both_speak(
    ours: tuple[int, int], theirs: tuple[int, int], agreed: int
) -> None:
    assert PeerVersions(*ours).agree(PeerVersions(*theirs)) == agreed
    assert PeerVersions(*theirs).agree(PeerVersions(*ours)) == agreed

    async def body(c: Cluster) -> None:
        a = await c.start("a", versions=PeerVersions(*ours), credentials=SECRET)
        b = await c.start("b", a.port, versions=PeerVersions(*theirs), credentials=SECRET)
        await until(c.is_full_mesh)
        assert versions(a) == {"b": agreed}
        assert versions(b) == {"a": agreed}

    cluster_test(body)


@pytest.mark.parametrize(("ours", "theirs"), [((4, 4), (3, 3)), ((3, 3), (4, 5))])
def test_nodes_without_a_common_version_say_so(
    ours: tuple[int, int], theirs: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(HandshakeRefused) as refused:
        PeerVersions(*ours).agree(PeerVersions(*theirs))
    assert refused.value.code is RefusalCode.VERSION

    async def body(c: Cluster) -> None:
        a = await c.start("a", versions=PeerVersions(*ours))
        b = await c.start("b", a.port, versions=PeerVersions(*theirs))
        await until(lambda: bool(a.statistics().refused or b.statistics().refused))
        assert not versions(a)

    with caplog.at_level(logging.WARNING, logger="raft.transport"):
        cluster_test(body)
    lines = "\n".join(record.getMessage() for record in caplog.records)
    assert "it speaks peer protocol version" in lines


def older(data: bytes) -> bytes:
    """A man in the middle lets the dialing side seem to speak version 3 only."""
    if b'"newest":4' not in data or data[HEAD.size : HEAD.size + 1] != b"C":
        return data
    payload = data[HEAD.size :].replace(b'"newest":4', b'"newest":3')
    size = len(payload)
    return HEAD.pack(size, 0xFFFFFFFF - size, crc32(payload, size), 0) + payload


@pytest.mark.parametrize(("alter", "connects"), [(None, True), (older, False)])
def test_nobody_can_make_a_link_older_than_both_sides(
    alter: Callable[[bytes], bytes] | None, connects: bool
) -> None:
    async def body(c: Cluster) -> None:
        async with Proxy() as proxy:
            proxy.alter = alter
            both = PeerVersions(3, 4)
            a = await c.start(
                "a",
                versions=both,
                limits=QUIET,
                credentials=SECRET,
                advertise=("127.0.0.1", proxy.port),
            )
            proxy.target = a.port
            b = await c.start("b", proxy.port, versions=both, limits=QUIET, credentials=SECRET)
            if connects:
                await until(lambda: versions(b) == {"a": 4})
            else:
                await until(lambda: a.statistics().refused.get("version", 0) >= 1)
                assert not versions(b)

    cluster_test(body)


def test_the_previous_version_is_spoken() -> None:
    assert VERSIONS.oldest <= 3 <= VERSIONS.newest
