"""Compressed blocks on disk, for streams with `compression: s2`.

Owns: the stored form: a mark, the size of the block, the block compressed by DEFLATE.
May not touch: what is in a block. Blocks are compressed when they are written and decompressed when
they are read, so memory, snapshots, scans and backups only see plain ones. The setting is called s2
for compatibility; on disk DEFLATE is used, because no other program reads it and it is smaller."""

from __future__ import annotations

from struct import Struct
from typing import Final

from isal import isal_zlib

from broker.store.block.block_format import BlockDamaged

_HEAD: Final = Struct("<4sI")  # the mark, the size of the block
_MARK: Final = b"JRZ1"
_LEVEL: Final = 1
_SIZE_MAX: Final = 1 << 30


def pack(raw: bytes) -> bytes:
    """The stored form of the block: the block itself, if compressing gains nothing."""
    packed = isal_zlib.compress(raw, _LEVEL)
    return _HEAD.pack(_MARK, len(raw)) + packed if len(packed) < len(raw) * 7 // 8 else raw


def unpack(stored: bytes) -> bytes:
    """The block. Raises BlockDamaged, or the exception of the decompressor."""
    if not stored.startswith(_MARK):
        return stored
    if len(stored) < _HEAD.size:
        raise BlockDamaged("shorter than the head of a compressed block")
    _, size = _HEAD.unpack_from(stored)
    if size > _SIZE_MAX:
        raise BlockDamaged(f"a compressed block of {size} bytes")
    inflater = isal_zlib.decompressobj()
    raw: bytes = inflater.decompress(memoryview(stored)[_HEAD.size :], size + 1)
    if len(raw) != size or not inflater.eof:
        raise BlockDamaged("a compressed block of another size than it says")
    return raw
