"""Archives come from clients: whatever is in one, it is refused, and nothing else is raised."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest

from broker.cluster.api.restore import _checked_head
from broker.jetstream.config import ConsumerConfig, StreamConfig
from broker.jetstream.consumer.ack_floor import AckFloor
from broker.jetstream.consumer.consumer import BadImage, check_image, image_of
from broker.jetstream.errors import JetStreamError
from broker.jetstream.stream import nats_archive
from broker.jetstream.stream.archive import FORMAT, ArchiveWriter, BadArchive, Head, Part
from broker.jetstream.stream.nats_archive import END, MAGIC, RecordReader
from broker.store.block.codec import BlockBuilder

CONFIG = StreamConfig(name="S", subjects=("s.>",), duplicate_window=10**12)
HUGE = b"9" * 23


def record(name: bytes, data: bytes = b"x", *, seq: int = 0, headers: bytes = b"") -> bytes:
    varint = nats_archive._varint
    sizes = (len(name), 0, seq, len(headers), len(data))
    return b"".join(map(varint, sizes)) + name + headers + data


def consumer(state: bytes, *, name: bytes = b"c", config: bytes = b"{}") -> bytes:
    return record(b"consumers/" + name, b'{"config":%b,"state":%b}' % (config, state))


def source(seq: bytes) -> bytes:
    return b"NATS/1.0\r\nNats-Stream-Source: S %b > >\r\n\r\n" % seq


def checked(*records: bytes) -> Head:
    """What restore checks before it creates a stream."""
    writer = ArchiveWriter()
    data = writer.data(MAGIC + b"".join(records) + END)
    return _checked_head(io.BytesIO(b"\xff\x06\x00\x00S2sTwO" + data), CONFIG)


@pytest.mark.parametrize(
    "bad",
    [
        record(b"state.json", b'{"first_seq":-5}'),
        record(b"state.json", b'{"last_seq":%b}' % HUGE),
        record(b"state.json", b'{"last_seq":18446744073709551615}'),
        record(b"state.json", b'{"x":' + b"[" * 100_000),
        consumer(b"{}", name=b"\xff"),
        consumer(b"{}", name=b"a.b"),
        consumer(b"{}", name=b"a\r\nb"),
        consumer(b"{}", name=b""),
        consumer(b"{}", config=b'{"ack_wait":-5}'),
        consumer(b"{}", config=b'{"deliver_subject":"a b"}'),
        consumer(b"{}", config=b'{"deliver_subject":"s.x"}'),
        consumer(b'{"pending":{"x":{"Sequence":1}}}'),
        consumer(b'{"pending":{"-7":{"Sequence":1}}}'),
        consumer(b'{"pending":{"7":{"Sequence":-1}}}'),
        consumer(b'{"pending":{"%b":{"Sequence":1}}}' % (b"9" * 5000)),
        consumer(b'{"redelivered":{"x":1}}'),
        consumer(b'{"redelivered":{"1":%b}}' % HUGE),
        consumer(b'{"ack_floor":{"stream_seq":%b}}' % HUGE),
        record(b"a", seq=2**63 - 2),
        record(b"a", seq=2**64),
        record(b"a\r\nMSG b 1 0", seq=5),
        record(b"a b", seq=5),
    ],
)
def test_a_record_that_no_server_writes_is_refused(bad: bytes) -> None:
    with pytest.raises((BadArchive, JetStreamError)):
        checked(bad)


@pytest.mark.parametrize("seq", [HUGE, "²".encode(), b"9" * 5000, b"-1", b"x"])
def test_a_source_header_that_is_no_position_counts_as_any_header(seq: bytes) -> None:
    assert checked(record(b"a", seq=5, headers=source(seq))).sources == {}
    assert checked(record(b"a", seq=5, headers=source(b"12"))).sources == {"S > >": 12}


def ours(head: Head, *parts: tuple[Part, bytes]) -> Head:
    """An archive with parts, as this server writes it."""
    writer = ArchiveWriter()
    pieces = [writer.begin(head, MAGIC), *(writer.part(*one) for one in parts), writer.end()]
    return _checked_head(io.BytesIO(b"".join(pieces)), CONFIG)


@pytest.mark.parametrize(
    "wrong",
    [
        {"last_seq": 2**63},
        {"first_seq": -1},
        {"sources": {"x": 2**63}},
        {"message_ids": [(b"id", 2**64 - 1, 0)]},
        {"message_ids": [(b"id", 1, 2**64 - 1)]},
        {"last_time": 2**64 - 1},
    ],
)
def test_a_head_with_impossible_numbers_is_refused(wrong: dict[str, Any]) -> None:
    sound: dict[str, Any] = {"format": FORMAT, "stream": "S", "first_seq": 1, "last_seq": 3}
    assert ours(Head(**sound)).last_seq == 3
    with pytest.raises(BadArchive):
        ours(Head(**(sound | wrong)))


def test_blocks_and_consumers_in_parts_are_checked_too() -> None:
    head = Head(FORMAT, "S", 1, 3)
    rows = BlockBuilder()
    rows.append(b"a\r\nb", b"", b"x", time_ns=1, seq=1)
    with pytest.raises(BadArchive, match="subject"):
        ours(head, (Part.BLOCK, rows.build()))
    unnumbered = BlockBuilder()
    unnumbered.append(b"a", b"", b"x")
    with pytest.raises(BadArchive, match="sequences"):
        ours(head, (Part.BLOCK, unnumbered.build()))
    with pytest.raises(BadArchive):
        ours(head, (Part.CONSUMER, b"\xc1"))
    state = AckFloor(3)
    state.deliver(5, 6, consumer_seq=1)
    good = image_of("c", ConsumerConfig(), state, created_ns=1)
    assert check_image(good) == ("c", ConsumerConfig())
    assert ours(head, (Part.CONSUMER, good)) == head


@pytest.mark.parametrize(
    "state",
    [
        [],
        [[1, 2, 3]],
        [[1, 2, 3, 4], [5], [], [], [], []],
        [[1, 2, 3, 4], [6, 5], [1, 2], [], [], []],
        [[1, -2, 3, 4], [], [], [], [], []],
        [[1, 2**63, 3, 4], [], [], [], [], []],
    ],
)
def test_an_image_that_no_replica_could_hold_is_refused(state: list[list[int]]) -> None:
    good = image_of("c", ConsumerConfig(), AckFloor(), created_ns=1)
    fields = msgspec.msgpack.decode(good)
    fields[5] = state
    with pytest.raises(BadImage):
        check_image(msgspec.msgpack.encode(fields))


def test_a_large_record_in_small_pieces_is_not_copied_for_each_of_them() -> None:
    class Counted(bytearray):
        copies = 0

        def __bytes__(self) -> bytes:
            Counted.copies += 1
            return bytes(memoryview(self))

    reader = RecordReader()
    reader._held = Counted()
    raw = MAGIC + record(b"a", bytes(50_000), seq=1) + END
    found = [block for at in range(0, len(raw), 100) for block in reader.feed(raw[at : at + 100])]
    assert reader.complete
    assert len(found) == 1
    assert Counted.copies < 10
