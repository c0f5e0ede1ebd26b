"""Compressed frames: how they are marked, and the interface of the codec.

Owns: the mark, and the interface of a codec.
May not touch: the compression itself, which belongs to the application.
Spec: bulk links of version 4. The channel of a compressed frame has the bit COMPRESSED; checksum
and tag cover the compressed bytes. The size of an unpacked frame is bounded like that of any
frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from raft.types import NodeId

COMPRESSED: Final = 0x80
COMPRESSED_SINCE: Final = 4  # the version of a link


class FrameCodec(Protocol):
    """Implemented by the application."""

    def pack(self, to: NodeId, payload: bytes | Sequence[bytes], /) -> bytes | None:
        """None: the frame is sent uncompressed."""

    def unpack(self, payload: memoryview, bytes_max: int, /) -> bytes:
        """Raises ValueError."""
