"""The S2 codec in use: compiled, or the Python twin.

Owns: the choice, by the same switch as broker.wire.
May not touch: the format (s2_py.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.compression.s2_py import BLOCK_BYTES_MAX, BadS2
from broker.wire import IMPLEMENTATION

if TYPE_CHECKING or IMPLEMENTATION == "python":
    from broker.compression.s2_py import compress, crc32c, decompress
else:
    from broker.compression._s2 import compress, crc32c, decompress

__all__ = ["BLOCK_BYTES_MAX", "BadS2", "compress", "crc32c", "decompress"]
