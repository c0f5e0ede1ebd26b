"""A stream under test: each method applies one command as a log entry and returns its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker.jetstream.commands.consumer_commands import (
    Acks,
    ConsumerAcks,
    ConsumerProgress,
    DeliveryProgress,
)
from broker.jetstream.commands.publish_entry import (
    Bounds,
    encode_marks,
    fast_spans,
    mirror_prefix,
    noted_prefix,
    publish_prefix,
)
from broker.jetstream.commands.stream_commands import (
    AnyCommand,
    CreateConsumer,
    DeleteConsumer,
    DeleteMessage,
    Expire,
    Purge,
    UpdateConfig,
    encode,
)
from broker.jetstream.config import AckPolicy, ConsumerConfig, StreamConfig
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.errors import JetStreamError
from broker.jetstream.publish.sessions import PublishResult
from broker.jetstream.stream.stream import Stream
from broker.store.block.codec import BlockBuilder
from broker.store.memory_db import MemoryDb
from broker.wire import headers as wire_headers

SECOND = 1_000_000_000
Row = tuple[bytes, dict[str, str], bytes]


def headers(pairs: dict[str, str]) -> bytes:
    if not pairs:
        return b""
    return wire_headers.build(b"", [(k.encode(), v.encode()) for k, v in pairs.items()])


def block(rows: list[Row]) -> bytes:
    builder = BlockBuilder()
    for subject, pairs, data in rows:
        builder.append(subject, headers(pairs), data)
    return builder.build(seal=False)


def comparable(result: object) -> object:
    """The result as plain values, so that errors compare by code and text."""
    if isinstance(result, JetStreamError):
        return (int(result.err_code), result.description)
    if isinstance(result, PublishResult):
        exceptions = [(row, comparable(what)) for row, what in result.exceptions]
        return (result.batch_no, result.first_seq, result.count, exceptions)
    return result


class Driver:
    """Applies commands at rising indexes; a replica can replay `log`."""

    def __init__(self, db: Any = None, **config: Any) -> None:
        config.setdefault("subjects", ("s.>",))
        config.setdefault("duplicate_window", 120 * SECOND)
        self.config = StreamConfig(name="S", **config)
        self.first_config = self.config  # as the stream was created
        self.db = db if db is not None else MemoryDb()
        self.stream = self.open()
        self.now = 1_000 * SECOND
        self.log: list[bytes] = []
        self.results: list[object] = []  # as `comparable` shows them

    def open(self) -> Stream:
        files = self.db.files(9)
        return Stream.open(self.config, created_ns=1, files=files)

    def entry(self, data: bytes) -> Any:
        self.log.append(data)
        result = self.stream.apply(len(self.log), data)
        self.results.append(comparable(result))
        return result

    def run(self, command: AnyCommand) -> Any:
        return self.entry(encode(command))

    # -- messages ---------------------------------------------------------------------------------

    def batch(
        self, rows: list[Row], *, from_node: int = 0, session: int = 0, batch_no: int = 0
    ) -> Any:
        prefix = publish_prefix(
            time_ns=self.now, from_node=from_node, session=session, batch_no=batch_no
        )
        return self.entry(prefix + block(rows))

    def noted(
        self, rows: list[Row], *, bounds: Bounds | None = None, replies: Sequence[str] = ()
    ) -> Any:
        """A batch with bounds, or with reply subjects that may be fast batch marks. Returns the
        exceptions as (row, answer)."""
        prefix = noted_prefix(time_ns=self.now, from_node=0, session=0, batch_no=0, bounds=bounds)
        marked = [(row, reply.encode()) for row, reply in enumerate(replies) if reply]
        result = self.entry(prefix + encode_marks(fast_spans(marked)) + block(rows))
        assert isinstance(result, PublishResult)
        return [(row, comparable(what)) for row, what in result.exceptions]

    def publish(self, subject: str = "s.a", data: str = "x", **pairs: str) -> Any:
        """The sequence, or the exception of the row. In header names `_` stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in pairs.items()}
        result = self.batch([(subject.encode(), named, data.encode())])
        assert isinstance(result, PublishResult)
        if result.exceptions:
            assert result.count == 0
            return result.exceptions[0][1]
        assert result.count == 1
        return result.first_seq

    def mirror(self, rows: list[tuple[int, int, bytes, bytes]]) -> Any:
        builder = BlockBuilder()
        for seq, time_ns, subject, data in rows:
            builder.append(subject, b"", data, time_ns=time_ns, seq=seq)
        return self.entry(mirror_prefix(time_ns=self.now) + builder.build(seal=False))

    def seqs(self) -> list[int]:
        store = self.stream.store
        return [s for s in range(store.first_seq, store.last_seq + 1) if store.get(s) is not None]

    def purge(self, subject: str = "", *, seq: int = 0, keep: int = 0) -> Any:
        return self.run(Purge(self.now, subject.encode(), seq, keep))

    def delete(self, seq: int, *, no_erase: bool = True) -> Any:
        return self.run(DeleteMessage(self.now, seq, no_erase))

    def configure(self, **changes: Any) -> Any:
        fields = {name: getattr(self.config, name) for name in self.config.__struct_fields__}
        self.config = StreamConfig(**(fields | changes))
        return self.run(UpdateConfig(self.now, self.config))

    def expire(self) -> Any:
        return self.run(Expire(self.now))

    # -- consumers --------------------------------------------------------------------------------

    def consumer(self, name: str, *filters: str, **config: Any) -> Any:
        config.setdefault("ack_policy", AckPolicy.EXPLICIT)
        config.setdefault("durable_name", name)
        made = ConsumerConfig(name=name, filter_subjects=filters, **config)
        return self.run(CreateConsumer(self.now, name, made))

    def drop_consumer(self, name: str) -> Any:
        return self.run(DeleteConsumer(self.now, name))

    def deliver(self, name: str, *seqs: int) -> None:
        """Apply first deliveries of these messages to the consumer."""
        consumer = self.stream.consumers[name]
        assert isinstance(consumer, Consumer)
        state = consumer.state
        first = [n for k, seq in enumerate(seqs) for n in (seq, state.consumer_seq + 1 + k, 1)]
        progress = ConsumerProgress(
            consumer=name,
            epoch=consumer.epoch,
            consumer_seq=state.consumer_seq + len(seqs),
            stream_seq=max(state.stream_seq, *seqs),
            first=first,
        )
        self.run(DeliveryProgress(self.now, [progress]))

    def ack(self, name: str, *seqs: int) -> None:
        consumer = self.stream.consumers[name]
        assert isinstance(consumer, Consumer)
        runs = [n for seq in seqs for n in (seq, 1)]
        self.run(Acks(self.now, [ConsumerAcks(consumer=name, epoch=consumer.epoch, acked=runs)]))
