"""What a stream and its consumers ask of each other while commands are applied.

Owns: two small Protocols. `StreamConsumer` is the replicated consumer as its stream sees it,
`ConsumerMaker` builds or reloads one.
May not touch: delivery (volatile, leader only), messages, time.
Spec: DESIGN section 7; JetStream sheet 4.2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from broker.jetstream.commands.consumer_commands import ConsumerAcks, ConsumerProgress
from broker.jetstream.commands.stream_commands import ConsumerCommand, CreateConsumer
from broker.jetstream.config import ConsumerConfig
from broker.jetstream.errors import JetStreamError

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream


class StreamConsumer(Protocol):
    """Changed only by `apply` and by the two `removed` calls, in log order, on every replica."""

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> ConsumerConfig: ...
    @property
    def filters(self) -> tuple[bytes, ...]: ...  # of the config; none: it takes every subject
    @property
    def incarnation(self) -> int: ...  # index of the entry that created it

    def apply(self, command: ConsumerCommand, *, index: int) -> object:
        """UpdateConsumer, PauseConsumer, ResetConsumer.

        The result goes back to the proposer; a JetStreamError is returned, not raised.
        """

    def apply_progress(self, progress: ConsumerProgress, *, now_ns: int) -> None:
        """Its part of a Progress. Frees messages (ack none) by `stream.consumer_acked`."""

    def apply_acks(self, acks: ConsumerAcks, *, now_ns: int) -> None:
        """Its part of an Acks. Whatever it settles, it reports by `stream.consumer_acked`."""

    def wants(self, subject: bytes) -> bool:
        """Do the filters of this consumer take the subject?"""

    def settled(self, seq: int) -> bool:
        """Has it acked (or passed, for ack none) this sequence, so that interest may end?"""

    def removed(self, seqs: Sequence[int]) -> None:
        """These messages left the stream one by one (delete, per-subject limit, acks of others)."""

    def removed_range(self, first: int, last: int) -> None:
        """No message from `first` to `last` inclusive is stored any more (front drop, purge)."""

    def purged(self, first_seq: int) -> None:
        """A purge took messages; those that went were told before. `first_seq` is the first left.

        Unlike limits, a purge moves the position of a consumer behind what it took."""

    def encode(self) -> bytes:
        """The whole replicated state; equal states give equal bytes on every replica."""


class ConsumerMaker(Protocol):
    """`broker.jetstream.consumer.Consumer` (the class itself) is the one in production."""

    def create(
        self, stream: Stream, command: CreateConsumer, *, index: int
    ) -> StreamConsumer | JetStreamError:
        """A new consumer; existence, limits and workqueue overlap have been checked."""

    def decode(self, stream: Stream, blob: bytes) -> StreamConsumer: ...
