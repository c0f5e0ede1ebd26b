"""Sources: messages of other streams taken into this one, with how far each origin was read.

Owns: the name of a source in headers and state, its subject mapping, the entry that carries its
messages, and the applying of it.
May not touch: how origins are read (cluster/following.py).
Spec: JetStream sheet 8.2, 3.2 (Nats-Stream-Source).

A batch says which sequence of the origin it follows. One that does not follow what was taken last
is ignored: after a refusal everything behind the refused message comes again, in order."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct as Packing
from typing import TYPE_CHECKING, Final

from broker.jetstream.commands.stream_commands import CommandKind
from broker.jetstream.config.names import get_hash
from broker.jetstream.config.stream_config import StreamSource
from broker.jetstream.config.transforms import mapping_of
from broker.jetstream.errors import JetStreamError
from broker.jetstream.publish.checks import full
from broker.jetstream.publish.counters import add_sourced
from broker.jetstream.publish.message import IncomingMessage
from broker.jetstream.publish.store_message import store_message
from broker.store.block.block import Block
from broker.subjects import matches

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream

SOURCE_HEADER: Final = b"Nats-Stream-Source"
# kind, length of the source's name, time_ns, the origin sequence it follows; the name padded to
# eight bytes and a Block follow, whose sequences are the origin's
_PREFIX: Final = Packing("<B3xIqQ")
_BETWEEN: Final = "\f"  # several filters or destinations in one name


@dataclass(frozen=True, slots=True)
class Sourced:
    """What became of a batch. `refused`: the stream is full, `position` is what was taken."""

    position: int
    refused: JetStreamError | None = None


def source_key(source: StreamSource) -> str:
    """The name under which its position is kept: as long as it reads the same, it resumes."""
    origin, filters, destinations = _parts(source)
    return f"{origin} {filters} {destinations}"


def source_header(source: StreamSource, *, seq: int, subject: bytes) -> bytes:
    """Value of Nats-Stream-Source; `subject` is the one it had in the origin."""
    origin, filters, destinations = _parts(source)
    shown = subject.decode(errors="replace")
    return f"{origin} {seq} {filters} {destinations} {shown}".encode()


def _parts(source: StreamSource) -> tuple[str, str, str]:
    origin = source.name
    if source.external is not None and source.external.api:
        origin += ":" + get_hash(source.external.api)
    if source.consumer is not None:
        origin += ":C=" + get_hash(source.consumer.name)
    transforms = source.subject_transforms
    filters = [t.src or ">" for t in transforms] or [source.filter_subject or ">"]
    destinations = [t.dest or ">" for t in transforms] or [">"]
    return origin, _BETWEEN.join(filters), _BETWEEN.join(destinations)


class SourceMapping:
    """The subject a message gets here. Also of mirrors."""

    def __init__(self, source: StreamSource) -> None:
        self._mappings = [
            (transform.src.encode() or b">", mapping_of(transform))
            for transform in source.subject_transforms
        ]
        self.filters = tuple(t.src for t in source.subject_transforms if t.src) or (
            (source.filter_subject,) if source.filter_subject else ()
        )

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


def take_sourced(stream: Stream, entry: bytes) -> Sourced:
    """Apply a batch. A message that can never be stored here is passed over."""
    _, size, time_ns, after = _PREFIX.unpack_from(entry)
    begin = _PREFIX.size
    key = entry[begin : begin + size].decode()
    position = stream.sources.get(key, 0)
    if after != position:
        return Sourced(position)
    config = stream.config
    time_ns = max(time_ns, stream.store.last_time)
    if config.duplicate_window > 0:
        stream.dedup.expire(now_ns=time_ns, window_ns=config.duplicate_window)
    block = Block(memoryview(entry)[begin + size + -size % 8 :], verify=False)
    for row in range(block.rows):
        refused = _take(stream, block, row, time_ns)
        if refused is not None:
            return Sourced(stream.sources.get(key, 0), refused)
        stream.sources[key] = block.seq(row)
    return Sourced(stream.sources.get(key, 0))


def _take(stream: Stream, block: Block, row: int, time_ns: int) -> JetStreamError | None:
    """None: it is stored, or nothing to be stored."""
    config, subject = stream.config, block.subject(row)
    if stream.transform is not None:
        subject = stream.transform(subject, seed=time_ns + row) or subject
    message = IncomingMessage.of(subject, block.headers(row), block.data(row), time_ns)
    if config.sealed or 0 <= config.max_msg_size < message.size:
        return None
    if config.duplicate_window > 0 and message.msg_id and stream.dedup.find(message.msg_id):
        return None
    if not config.allow_msg_ttl:
        message.named.pop(b"Nats-TTL", None)  # stays in the headers, means nothing here
    if config.allow_msg_counter and add_sourced(stream, message) is not None:
        return None
    if stream.wants(subject):
        refused = full(stream, message)
        if refused is not None:
            return refused
    store_message(stream, message)
    return None
