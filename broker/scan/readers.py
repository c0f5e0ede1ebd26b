"""The positions of streaming readers, which the leader of a stream learns from their plans.

Owns: the table of readers, by account, stream and name.
May not touch: clocks (`now` is an argument), plans.
Spec: docs/spark.md, "Progress". A reader names itself and its next sequence when it asks for a
plan; one that has not asked for IDLE_S is forgotten. READERS_MAX are kept; others are not shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

IDLE_S: Final = 120.0
READERS_MAX: Final = 1024
NAME_CHARS_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class StreamingReader:
    account: str
    stream: str
    name: str
    next_seq: int
    last_seq: int  # of the stream, at that time
    seen_s: float

    @property
    def lag(self) -> int:
        return max(self.last_seq + 1 - self.next_seq, 0)


@dataclass(slots=True)
class ScanReaders:
    _known: dict[tuple[str, str, str], StreamingReader] = field(default_factory=dict)

    def seen(self, reader: StreamingReader) -> None:
        if len(reader.name) > NAME_CHARS_MAX:
            return
        self._forget(reader.seen_s)
        key = (reader.account, reader.stream, reader.name)
        if key in self._known or len(self._known) < READERS_MAX:
            self._known[key] = reader

    def present(self, now: float) -> Iterator[StreamingReader]:
        self._forget(now)
        return iter(list(self._known.values()))

    def _forget(self, now: float) -> None:
        if any(now - one.seen_s > IDLE_S for one in self._known.values()):
            kept = {k: one for k, one in self._known.items() if now - one.seen_s <= IDLE_S}
            self._known = kept
