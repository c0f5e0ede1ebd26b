"""What a store needs to keep data encrypted on disk.

Owns: the protocol between a store and a cipher. Keys and algorithms are the embedder's.
May not touch: files.
Spec: docs/decisions/0040-encryption-at-rest.md."""

from __future__ import annotations

from typing import Protocol


class ScratchFile(Protocol):
    """A file that ends with the process."""

    def seek(self, offset: int, /) -> int: ...
    def read(self, size: int, /) -> bytes: ...
    def write(self, data: bytes, /) -> int: ...
    def close(self) -> None: ...


class StoreCipher(Protocol):
    """Encrypts and authenticates. `place` is not stored: bytes that were moved to another place do
    not open."""

    @property
    def overhead(self) -> int:
        """How many bytes sealed data is longer."""

    def seal(self, data: bytes, place: bytes) -> bytes: ...

    def open(self, sealed: bytes, place: bytes) -> bytes | None:
        """None if it was not sealed with this key and for this place, or is damaged."""

    def scratch(self, file: ScratchFile) -> ScratchFile:
        """The empty file, encrypted with a key that is not kept. No place is written twice."""
