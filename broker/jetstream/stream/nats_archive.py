"""The archive format of nats-server 2.15, inside the S2 stream: reads and writes its records.

Owns: the layout of a record, and the contents of the records of state and consumers.
May not touch: S2 chunks (archive.py), streams and stores.
Spec: observed in archives written by nats-server 2.15.1. Numbers are varints, times zigzag varints
of nanoseconds.

    archive  "NATSARC1", records, a record of zeros
    record   size of the name, time, sequence, size of headers, size of data; name, headers, data
    names    sequence 0: state.json, consumers/<name>; other sequences: the subject"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from broker.jetstream.config.consumer_config import ConsumerConfig
from broker.jetstream.consumer.ack_floor import AckFloor
from broker.jetstream.consumer.consumer import image_of
from broker.jetstream.errors import JetStreamError
from broker.jetstream.stream.sourcing import SOURCE_HEADER
from broker.jetstream.strict_json import SEQUENCE_MAX, Unsigned, decode, to_wire
from broker.jetstream.times import parse_rfc3339
from broker.store.block.codec import Block, BlockBuilder
from broker.wire import headers as wire_headers

MAGIC: Final = b"NATSARC1"
END: Final = bytes(5)
_STATE: Final = b"state.json"
_CONSUMER: Final = b"consumers/"
_MSG_ID: Final = b"Nats-Msg-Id"
_BLOCK_BYTES: Final = 1 << 20
_SIZE_MAX: Final = 128 << 20
_VARINT_BYTES_MAX: Final = 10
_SEQUENCE_DIGITS_MAX: Final = 19


class BadRecord(ValueError):
    """These bytes are not a record of an archive."""


class KeptConsumer(NamedTuple):
    """A consumer in an archive."""

    name: str
    config: ConsumerConfig
    state: AckFloor
    delivered_ns: int


class _State(msgspec.Struct):
    first_seq: Unsigned = 0
    last_seq: Unsigned = 0
    last_ts: str = ""


class _Pair(msgspec.Struct):
    consumer_seq: Unsigned = 0
    stream_seq: Unsigned = 0


class _Pending(msgspec.Struct, rename={"sequence": "Sequence", "timestamp": "Timestamp"}):
    sequence: Unsigned
    timestamp: int = 0


class _ConsumerState(msgspec.Struct, omit_defaults=True):
    delivered: _Pair = msgspec.field(default_factory=_Pair)
    ack_floor: _Pair = msgspec.field(default_factory=_Pair)
    pending: dict[str, _Pending] = {}
    redelivered: dict[str, Unsigned] = {}


class _ArchivedConsumer(msgspec.Struct):
    config: msgspec.Raw
    state: _ConsumerState | None = None


# -- writing


def encode_head(state: object, consumers: Sequence[KeptConsumer], *, now_ns: int) -> bytes:
    """The records before the messages."""
    parts = [MAGIC, _record(_STATE, msgspec.json.encode(to_wire(state)), now_ns=now_ns)]
    for consumer in consumers:
        name = _CONSUMER + consumer.name.encode()
        parts.append(_record(name, _consumer_json(consumer), now_ns=now_ns))
    return b"".join(parts)


def encode_block(raw: bytes) -> bytes:
    """The records of the messages of a block."""
    block, parts = Block(raw), []
    for row in range(block.rows):
        subject, headers, data = block.subject(row), block.headers(row), block.data(row)
        sizes = _varint(len(headers)) + _varint(len(data))
        time_ns = block.time(row)
        zigzag = time_ns << 1 if time_ns >= 0 else ~(time_ns << 1)
        place = _varint(len(subject)) + _varint(zigzag) + _varint(block.seq(row))
        parts += [place, sizes, subject, headers, data]
    return b"".join(parts)


def _record(name: bytes, data: bytes, *, now_ns: int) -> bytes:
    head = _varint(len(name)) + _varint(now_ns << 1) + b"\0\0" + _varint(len(data))
    return head + name + data


def _varint(value: int) -> bytes:
    if value < 128:
        return bytes((value,))
    found = bytearray()
    while value >= 128:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _consumer_json(consumer: KeptConsumer) -> bytes:
    floor = consumer.state
    pending = {
        str(seq): {"Sequence": number, "Timestamp": consumer.delivered_ns}
        for seq, number in floor.pending.items()
    }
    state: dict[str, Any] = {
        "delivered": {"consumer_seq": floor.consumer_seq, "stream_seq": floor.stream_seq},
        "ack_floor": {
            "consumer_seq": floor.floor_consumer_seq,
            "stream_seq": floor.floor_stream_seq,
        },
    }
    if pending:
        state["pending"] = pending
    again = {str(seq): count - 1 for seq, count in floor.redelivered.items() if str(seq) in pending}
    if again:
        state["redelivered"] = again
    return msgspec.json.encode({"config": to_wire(consumer.config), "state": state})


# -- reading


class RecordReader:
    """Reads the records in order, in pieces of any size. Collects what it finds, except messages,
    which are returned as blocks."""

    def __init__(self, *, window_ns: int = 0) -> None:
        """`window_ns`: the duplicate window of the stream."""
        self.complete = False
        self.first_seq = self.last_seq = self.last_time = 0
        self.images: list[bytes] = []
        self.message_ids: deque[tuple[bytes, int, int]] = deque()
        self.sources: dict[str, int] = {}
        self._window_ns = window_ns
        self._held = bytearray()
        self._wanted = 0  # known minimum size of the next record
        self._begun = False
        self._rows = BlockBuilder()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields blocks. Raises BadRecord."""
        held = self._held
        held += data
        # Do not copy the buffer for every piece: a record may be large and come byte by byte.
        if len(held) < self._wanted:
            return
        at = self._wanted = 0
        if not self._begun:
            if len(held) < len(MAGIC):
                return
            if not held.startswith(MAGIC):
                raise BadRecord("not an archive of a stream")
            self._begun, at = True, len(MAGIC)
        view = bytes(held)
        while (found := _fields(view, at)) is not None:
            numbers, body = found
            name_size, zigzag, seq, header_size, data_size = numbers
            stop = body + name_size + header_size + data_size
            if self.complete:
                raise BadRecord("unexpected bytes after the end")
            if stop > len(view):
                self._wanted = stop - at
                break
            name = view[body : body + name_size]
            headers = view[body + name_size : body + name_size + header_size]
            self._take(
                name, seq, zigzag >> 1 ^ -(zigzag & 1), headers, view[stop - data_size : stop]
            )
            at = stop
            if self._rows.nbytes >= _BLOCK_BYTES:
                yield self._block()
        del held[:at]
        if self.complete and self._rows.rows:
            yield self._block()

    def _take(self, name: bytes, seq: int, time_ns: int, headers: bytes, data: bytes) -> None:
        if seq:
            self._message(name, seq, time_ns, headers, data)
        elif not name:
            self.complete = True
        elif name == _STATE:
            state = _decoded(data, _State)
            self.first_seq, self.last_seq = state.first_seq, state.last_seq
            self.last_time = _time(state.last_ts)
        elif name.startswith(_CONSUMER):
            self.images.append(_image(name.removeprefix(_CONSUMER), data))
        else:
            raise BadRecord(f"a record {name[:40]!r}, which is not known here")

    def _message(self, name: bytes, seq: int, time_ns: int, headers: bytes, data: bytes) -> None:
        if seq > SEQUENCE_MAX:
            raise BadRecord(f"a sequence of {seq}")
        try:
            self._rows.append(name, headers, data, time_ns=time_ns, seq=seq)
        except (ValueError, OverflowError) as error:
            raise BadRecord(str(error)) from error
        self.last_seq, self.last_time = max(self.last_seq, seq), max(self.last_time, time_ns)
        if b"\nNats-" not in headers:
            return
        source = wire_headers.get(headers, SOURCE_HEADER)
        words = source.decode(errors="replace").split(" ") if source else []
        if len(words) >= 4 and _is_sequence(words[1]):
            self.sources[f"{words[0]} {words[2]} {words[3]}"] = int(words[1])
        msg_id = wire_headers.get(headers, _MSG_ID)
        if msg_id and self._window_ns:
            self.message_ids.append((msg_id, seq, time_ns))
            while self.message_ids[0][2] < time_ns - self._window_ns:
                self.message_ids.popleft()

    def _block(self) -> bytes:
        raw = self._rows.build()
        self._rows = BlockBuilder()
        return raw


def _fields(data: bytes, at: int) -> tuple[list[int], int] | None:
    """The five numbers of a record and where its name begins; None if it is cut short."""
    numbers = []
    for _ in range(5):
        value = shift = 0
        while True:
            if at >= len(data):
                return None
            one = data[at]
            at += 1
            value |= (one & 127) << shift
            shift += 7
            if one < 128:
                break
            if shift >= 7 * _VARINT_BYTES_MAX:
                raise BadRecord("a number is too long")
        numbers.append(value)
    if numbers[0] + numbers[3] + numbers[4] > _SIZE_MAX:
        raise BadRecord("a record is too large")
    return numbers, at


def _time(text: str) -> int:
    try:
        return max(parse_rfc3339(text), 0) if text else 0
    except ValueError as error:
        raise BadRecord(str(error)) from error


def _decoded(data: bytes, shape: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord(f"a record cannot be decoded: {error}") from error


def _is_sequence(text: str) -> bool:
    digits = text.isascii() and text.isdigit() and len(text) <= _SEQUENCE_DIGITS_MAX
    return digits and int(text) <= SEQUENCE_MAX


def _sequence(text: str) -> int:
    if not _is_sequence(text):
        raise BadRecord(f"a sequence of {text[:40]!r}")
    return int(text)


def _image(raw_name: bytes, data: bytes) -> bytes:
    """The image of a consumer (consumer.py)."""
    try:
        name = raw_name.decode()
    except UnicodeDecodeError as error:
        raise BadRecord(f"a consumer with the name {raw_name[:40]!r}") from error
    found = _decoded(data, _ArchivedConsumer)
    try:
        config = decode(bytes(found.config), ConsumerConfig, strict=False)
    except JetStreamError as error:
        raise BadRecord(f"consumer {name}: {error}") from error
    state = found.state or _ConsumerState()
    floor = AckFloor(state.ack_floor.stream_seq)
    floor.floor_consumer_seq = floor.consumer_seq = state.ack_floor.consumer_seq
    pending = {_sequence(text): one.sequence for text, one in state.pending.items()}
    for seq in sorted(pending):
        floor.deliver(seq, seq, consumer_seq=pending[seq])
    for text, count in state.redelivered.items():
        floor.deliver_again(_sequence(text), deliveries=count + 1)
    floor.delivered_up_to(
        stream_seq=state.delivered.stream_seq, consumer_seq=state.delivered.consumer_seq
    )
    return image_of(name, config, floor, created_ns=0)
