"""The interface of a cipher that encrypts data on disk.

Owns: the Protocol between a store and a cipher. The application provides keys and algorithms.
May not touch: files.
Spec: docs/decisions/0040-encryption-at-rest.md."""

from __future__ import annotations

from typing import Protocol


class ScratchFile(Protocol):
    """A temporary file, which does not outlive the process."""

    def seek(self, offset: int, /) -> int: ...
    def read(self, size: int, /) -> bytes: ...
    def write(self, data: bytes, /) -> int: ...
    def close(self) -> None: ...


class StoreCipher(Protocol):
    """Encrypts and authenticates. `place` is authenticated but not stored: bytes that were moved to
    another place cannot be decrypted."""

    @property
    def overhead(self) -> int:
        """How many bytes longer sealed data is."""

    def seal(self, data: bytes, place: bytes) -> bytes: ...

    def open(self, sealed: bytes, place: bytes) -> bytes | None:
        """None if it was not sealed with this key and for this place, or is damaged."""

    def scratch(self, file: ScratchFile) -> ScratchFile:
        """Wraps an empty file; it is encrypted with a key that is not stored. The caller writes
        each offset at most once."""
