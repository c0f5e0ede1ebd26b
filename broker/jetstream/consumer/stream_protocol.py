"""What consumers need from their stream and its message store, as narrow Protocols.

Owns: the boundary between consumers on one side, Stream and broker.store on the other.
May not touch: storage itself.
Spec: sequences start at 1; empty filters mean every subject."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from broker.jetstream.config import StreamConfig
from broker.store.block.codec import Rows
from broker.store.search import MatchedRows
from broker.subjects import Steps


class MessageSource(Protocol):
    """The reading side of a stream's MessageStore."""

    @property
    def first_seq(self) -> int: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def messages(self) -> int: ...
    @property
    def num_deleted(self) -> int: ...

    def has(self, seq: int, /) -> bool: ...
    def rows(self, seq: int, /) -> tuple[Rows, int] | None: ...
    def examine(
        self, filters: tuple[bytes, ...], start: int, limit_rows: int, limit_bytes: int, /
    ) -> MatchedRows: ...
    def next_matching(self, filters: tuple[bytes, ...], start: int, /) -> int: ...
    def last_matching_steps(self, filters: tuple[bytes, ...], /) -> Steps[int]: ...
    def count_matching(self, filters: tuple[bytes, ...], start: int, /) -> int: ...
    def count_matching_steps(
        self, filters: tuple[bytes, ...], start: int, last: int, /
    ) -> Steps[int]: ...
    def first_at_time(self, time_ns: int, /) -> int: ...
    def subject_parts(self, *patterns: bytes) -> Iterable[list[bytes]]: ...
    def last_of_subject(self, subject: bytes, /) -> int: ...


class AckingConsumer(Protocol):
    """A consumer as its stream sees it when it reports acked messages."""

    @property
    def filters(self) -> tuple[bytes, ...]: ...  # empty: it wants every subject

    def wants(self, subject: bytes, /) -> bool: ...


class HomeStream(Protocol):
    """The stream a consumer belongs to, as the consumer sees it."""

    @property
    def config(self) -> StreamConfig: ...
    @property
    def store(self) -> MessageSource: ...

    def consumer_acked(self, consumer: AckingConsumer, seqs: Sequence[int], /) -> None: ...
