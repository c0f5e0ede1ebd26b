"""Sources: copies messages of other streams into this one, and stores how far each was read.

Owns: the position of each source, its name in headers and state, its subject mapping, and the
layout and effect of a SOURCE_BATCH entry.
May not touch: how origins are read (broker/cluster/origins).
Spec: NATS JetStream stream configuration, sources; header Nats-Stream-Source.

A batch names the origin sequence that it follows. If that is not the position of the source, the
batch is ignored: after a refusal, everything from the refused message on comes again, in order."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct as Packing
from typing import Final

from broker.jetstream.commands.stream_commands import CommandKind
from broker.jetstream.config import Discard, Retention
from broker.jetstream.config.names import get_hash
from broker.jetstream.config.stream_config import StreamSource
from broker.jetstream.config.transforms import mapping_of
from broker.jetstream.errors import JetStreamError
from broker.jetstream.incoming_message import IncomingMessage
from broker.jetstream.publish.counters import add_sourced
from broker.jetstream.publish.message_writer import MessageWriter
from broker.jetstream.publish.stream_limits import limit_refusal
from broker.store.block.codec import Block
from broker.store.block.columns import header_text
from broker.subjects import matches

SOURCE_HEADER: Final = b"Nats-Stream-Source"
# kind, length of the source's name, time_ns, the origin sequence it follows. Then come the name,
# padded to eight bytes, and a Block with the sequences of the origin.
_PREFIX: Final = Packing("<B3xIqQ")
_SEPARATOR: Final = "\f"  # between several filters or destinations in one name


@dataclass(frozen=True, slots=True)
class Sourced:
    """The result of a batch. `position` is the last origin sequence that was taken; `refused` is
    set if a limit of this stream ended the batch there."""

    position: int
    refused: JetStreamError | None = None


def source_key(source: StreamSource) -> str:
    """The name under which its position is kept. A source whose name changes starts over."""
    origin, filters, destinations = _parts(source)
    return f"{origin} {filters} {destinations}"


def source_header(source: StreamSource, *, seq: int, subject: bytes) -> bytes:
    """Value of Nats-Stream-Source; `subject` is the subject in the origin."""
    origin, filters, destinations = _parts(source)
    shown = subject.decode(errors="replace")
    return f"{origin} {seq} {filters} {destinations} {shown}".encode()


def source_line(source: StreamSource) -> tuple[bytes, bytes]:
    """The header line of a message, without its end: what comes before the sequence, and what is
    between the sequence and the subject."""
    origin, filters, destinations = _parts(source)
    return SOURCE_HEADER + f": {origin} ".encode(), f" {filters} {destinations} ".encode()


def _parts(source: StreamSource) -> tuple[str, str, str]:
    origin = source.name
    if source.external is not None and source.external.api:
        origin += ":" + get_hash(source.external.api)
    if source.consumer is not None:
        origin += ":C=" + get_hash(source.consumer.name)
    transforms = source.subject_transforms
    filters = [t.src or ">" for t in transforms] or [source.filter_subject or ">"]
    destinations = [t.dest or ">" for t in transforms] or [">"]
    return origin, _SEPARATOR.join(filters), _SEPARATOR.join(destinations)


class SourceMapping:
    """Maps subjects of an origin to subjects of this stream, for sources and mirrors."""

    def __init__(self, source: StreamSource) -> None:
        self._mappings = [
            (transform.src.encode() or b">", mapping_of(transform))
            for transform in source.subject_transforms
        ]
        self.filters = tuple(t.src for t in source.subject_transforms if t.src) or (
            (source.filter_subject,) if source.filter_subject else ()
        )

    @property
    def plain(self) -> bool:
        """Subjects stay as they are."""
        return not self._mappings

    def __call__(self, subject: bytes, *, seed: int) -> bytes:
        for pattern, mapping in self._mappings:
            if matches(subject, pattern):
                return (mapping(subject, seed=seed) if mapping is not None else None) or subject
        return subject


def source_prefix(*, key: str, after: int, time_ns: int) -> bytes:
    name = key.encode()
    padding = -len(name) % 8
    return (
        _PREFIX.pack(CommandKind.SOURCE_BATCH, len(name), time_ns, after) + name + b"\0" * padding
    )


class SourceIntake:
    """Applies SOURCE_BATCH entries. `positions`: the last origin sequence taken, by source name,
    also of sources that are no longer configured."""

    def __init__(self, writer: MessageWriter) -> None:
        self.positions: dict[str, int] = {}
        self._writer = writer

    def apply(self, entry: bytes) -> Sourced:
        """Store the messages of a batch. A message that can never be stored here is skipped."""
        _, size, time_ns, after = _PREFIX.unpack_from(entry)
        begin = _PREFIX.size
        key = entry[begin : begin + size].decode()
        position = self.positions.get(key, 0)
        if after != position:
            return Sourced(position)
        writer = self._writer
        time_ns = max(time_ns, writer.store.last_time)
        if writer.config.duplicate_window > 0:
            writer.dedup.expire(now_ns=time_ns, window_ns=writer.config.duplicate_window)
        block = Block(memoryview(entry)[begin + size + -size % 8 :], verify=False)
        if block.rows and _needs_no_checks(writer, block):
            writer.store_block(block, time_ns)
            self.positions[key] = block.last_seq
            return Sourced(block.last_seq)
        for row in range(block.rows):
            refused = _store(writer, block, row, time_ns)
            if refused is not None:
                return Sourced(self.positions.get(key, 0), refused)
            self.positions[key] = block.seq(row)
        return Sourced(self.positions.get(key, 0))


def _needs_no_checks(writer: MessageWriter, block: Block) -> bool:
    """True if every row is certain to be stored, and has no header with an effect here."""
    config, store = writer.config, writer.store
    if config.sealed or (config.retention is Retention.INTEREST and not writer.interest.wants_all):
        return False
    if config.allow_msg_counter or config.allow_msg_schedules or writer.transform is not None:
        return False
    if 0 <= config.max_msg_size < block.max_row_size:
        return False
    text = header_text(block)
    if text.count(b"\nNats-") != text.count(b"\n" + SOURCE_HEADER + b":"):
        return False
    if text.count(b"NATS/1.0\r\n") != block.rows:  # a status, or headers that are stored otherwise
        return False
    if config.discard is not Discard.NEW:
        return True
    within_msgs = config.max_msgs <= 0 or store.messages + block.rows <= config.max_msgs
    size = store.bytes + store.sizing.of_block(block)
    within_bytes = config.max_bytes <= 0 or size <= config.max_bytes
    return within_msgs and within_bytes and not config.discard_new_per_subject


def _store(writer: MessageWriter, block: Block, row: int, time_ns: int) -> JetStreamError | None:
    """None: the message is stored, or skipped."""
    config, store, subject = writer.config, writer.store, block.subject(row)
    if writer.transform is not None:
        subject = writer.transform(subject, seed=time_ns + row) or subject
    message = IncomingMessage.of(subject, block.headers(row), block.data(row), time_ns)
    if config.sealed or 0 <= config.max_msg_size < message.size:
        return None
    if config.duplicate_window > 0 and message.msg_id and writer.dedup.find(message.msg_id):
        return None
    if not config.allow_msg_ttl:
        message.named.pop(b"Nats-TTL", None)  # the header is stored, but has no effect
    if config.allow_msg_counter and add_sourced(message, store.last_row) is not None:
        return None
    if writer.interest.wants(subject):
        refused = limit_refusal(config, store, message)
        if refused is not None:
            return refused
    writer.store_message(message)
    return None
