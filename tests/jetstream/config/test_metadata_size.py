"""The size of metadata is known without encoding what is certainly too much."""

from __future__ import annotations

from broker.jetstream.config.names import metadata_exceeds


class Encoded(AssertionError):
    pass


class Watched(str):
    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        raise Encoded


def test_metadata_with_too_many_characters_is_not_encoded() -> None:
    metadata: dict[str, str] = {Watched("k"): Watched("v" * 200)}
    assert metadata_exceeds(metadata, 200)


def test_bytes_count_and_not_characters() -> None:
    assert metadata_exceeds({"k": "\u00e9" * 100}, 200)
    assert not metadata_exceeds({"k": "\u00e9" * 99}, 200)
    assert not metadata_exceeds({"k": "v" * 199}, 200)
