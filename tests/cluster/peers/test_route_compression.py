"""Compressed frames of routes: who gets them, and what they hold."""

from __future__ import annotations

import os

import pytest

from broker.cluster.peers import route_compression
from broker.cluster.peers.route_compression import PIECE_BYTES, RouteCompression
from broker.compression.s2 import compress
from broker.config.options import LinkCompression
from raft import NodeId

PEER = NodeId(2)
TEXT = b"".join(b'{"order": %d, "state": "open"}' % i for i in range(2000))


def codec(ours: str = "s2_fast", theirs: str = "s2_fast", rtt_s: float = 0.0) -> RouteCompression:
    return RouteCompression(LinkCompression(ours), lambda _: theirs, lambda _: rtt_s)


@pytest.mark.parametrize(
    ("ours", "theirs", "rtt_s", "mode"),
    [
        ("s2_fast", "accept", 0.0, "s2_fast"),
        ("accept", "s2_fast", 0.0, "s2_fast"),
        ("accept", "accept", 0.0, "off"),
        ("accept", "s2_auto", 0.0, "s2_fast"),
        ("s2_auto", "accept", 0.001, "s2_uncompressed"),
        ("s2_auto", "accept", 0.030, "s2_fast"),
        ("s2_fast", "off", 0.0, "off"),
        ("off", "s2_fast", 0.0, "off"),
        ("s2_fast", "", 0.0, "not supported"),  # a node of an earlier version
        ("s2_fast", "zstd", 0.0, "off"),
    ],
)
def test_both_sides_decide(ours: str, theirs: str, rtt_s: float, mode: str) -> None:
    made = codec(ours, theirs, rtt_s)
    assert made.mode(PEER) == mode
    packs = made.pack(PEER, TEXT) is not None
    assert packs is (mode.startswith("s2") and mode != "s2_uncompressed")


@pytest.mark.parametrize("size", [512, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5])
def test_what_was_packed_is_unpacked(size: int) -> None:
    whole = (TEXT * (size // len(TEXT) + 1))[:size]
    one, other = codec(), codec()
    packed = one.pack(PEER, whole)
    assert packed is not None
    assert len(packed) < size
    assert other.unpack(memoryview(packed), size) == whole
    assert one.pack(PEER, [whole[:100], whole[100:]]) == packed
    with pytest.raises(ValueError, match="more than"):
        other.unpack(memoryview(packed), size - 1)


def test_small_frames_and_those_that_do_not_shrink_are_sent_as_they_are() -> None:
    assert codec().pack(PEER, b"x" * 100) is None
    assert codec().pack(PEER, os.urandom(5000)) is None


@pytest.mark.parametrize(
    "bad", [b"\0", b"\5\0\0\0abc", b"\3\0\0\0\xff\xff\xff", compress(TEXT)], ids=str
)
def test_a_damaged_frame_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any reason will do
        codec().unpack(memoryview(bad), 1 << 20)


def test_the_round_trip_time_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rtts = [0.001]
    made = RouteCompression(LinkCompression("s2_auto"), lambda _: "accept", lambda _: rtts[0])
    assert made.pack(PEER, TEXT) is None
    rtts[0] = 0.030
    assert made.pack(PEER, TEXT) is None
    monkeypatch.setattr(route_compression, "MODE_FOR_S", 0.0)
    made.configure(LinkCompression("s2_auto"))
    assert made.pack(PEER, TEXT) is not None
    rtts[0] = 0.001
    assert made.pack(PEER, TEXT) is None
