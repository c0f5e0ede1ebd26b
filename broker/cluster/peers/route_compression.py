"""Compression of the links between nodes.

Owns: which peers get compressed frames, and the layout of one.
May not touch: links; raft/transport marks the frames that are compressed.
Spec: the modes of nats-server's `cluster { compression }`. The default, `accept`, compresses what
we send if the peer wants compression. Each side chooses for what it sends; `s2_auto` by round trip
time. A frame is cut into pieces of PIECE_BYTES, each a u32 length (little-endian) and an S2 block.
A frame that is small, or that compression shrinks by less than an eighth, is sent uncompressed."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import Final

from broker.compression.s2 import compress, decompress
from broker.config.options import LinkCompression
from broker.server.link_compression import OFF, UNCOMPRESSED, UnknownCompression, chosen, wanted
from raft import NodeId

PIECE_BYTES: Final = 1 << 20
PACKED_BYTES_MIN: Final = 512
MODE_FOR_S: Final = 1.0  # then the round trip time is checked again
_LENGTH: Final = struct.Struct("<I")


class RouteCompression:
    """The codec of a transport (FrameCodec)."""

    def __init__(
        self,
        ours: LinkCompression,
        theirs: Callable[[NodeId], str],
        rtt_s: Callable[[NodeId], float],
    ) -> None:
        """`theirs`: the mode in the hello of a peer; "" if it has none."""
        self._ours = ours
        self._theirs = theirs
        self._rtt_s = rtt_s
        self._modes: dict[NodeId, tuple[bool, float]] = {}  # compressed or not, and until when

    def configure(self, ours: LinkCompression) -> None:
        self._ours = ours
        self._modes.clear()

    def mode(self, node: NodeId) -> str:
        """The mode of what we send, as /routez shows it."""
        try:
            return chosen(self._ours, self._theirs(node), self._rtt_s(node))
        except UnknownCompression:
            return OFF

    def pack(self, to: NodeId, payload: bytes | Sequence[bytes]) -> bytes | None:
        now = time.monotonic()
        packed, until = self._modes.get(to, (False, 0.0))
        if now >= until:
            mode = self.mode(to)
            packed = wanted(mode) and mode != UNCOMPRESSED
            self._modes[to] = (packed, now + MODE_FOR_S)
        if not packed:
            return None
        whole = payload if isinstance(payload, bytes) else b"".join(payload)
        if len(whole) < PACKED_BYTES_MIN:
            return None
        parts: list[bytes] = []
        for at in range(0, len(whole), PIECE_BYTES):
            block = compress(whole[at : at + PIECE_BYTES])
            parts += (_LENGTH.pack(len(block)), block)
        made = b"".join(parts)
        return made if len(made) <= len(whole) - len(whole) // 8 else None

    def unpack(self, payload: memoryview, bytes_max: int) -> bytes:
        parts: list[bytes] = []
        at = size = 0
        while at < len(payload):
            if len(payload) - at < _LENGTH.size:
                raise ValueError("cut short")
            (length,) = _LENGTH.unpack_from(payload, at)
            at += _LENGTH.size
            if length > len(payload) - at:
                raise ValueError("cut short")
            parts.append(decompress(bytes(payload[at : at + length])))
            at += length
            size += len(parts[-1])
            if size > bytes_max:
                raise ValueError(f"more than {bytes_max} bytes when unpacked")
        return b"".join(parts)
