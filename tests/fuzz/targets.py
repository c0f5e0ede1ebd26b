"""What is fuzzed: one function per format, with inputs to start from.

A target takes any bytes. It may raise only what is not documented: the errors that a format has for
wrong input are caught here, everything else is a finding. Where a format has a twin or can be
split, the target checks that the result is the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from isal.isal_zlib import crc32

from broker.config.draft import BadOptions, Draft
from broker.config.file.apply import BadConfiguration, apply
from broker.config.file.parser import ParseError, parse
from broker.jetstream.api.requests import decode_request, parse_direct_get
from broker.jetstream.api.subjects import ApiKind, parse_api_subject
from broker.jetstream.config.consumer_config import ConsumerCreateRequest
from broker.jetstream.config.consumer_rules import check_consumer_config
from broker.jetstream.config.limits import AccountView
from broker.jetstream.config.stream_config import StreamConfig, StreamConfigRequest
from broker.jetstream.config.stream_rules import stream_create_steps
from broker.jetstream.errors import JetStreamError
from broker.jetstream.publish.counters import _read as counter_values
from broker.jetstream.stream import nats_archive
from broker.jetstream.stream.archive import (
    FORMAT,
    ArchiveReader,
    ArchiveWriter,
    BadArchive,
    Head,
    Part,
    read_head,
)
from broker.monitor.system.requests import BadRequest
from broker.monitor.system.requests import read as system_request
from broker.scan.columns import read_columns
from broker.scan.protocol import ScanProtocolError, ScanRefused, decode_head
from broker.scan.protocol import decode_request as decode_scan
from broker.server.client.connect_options import BadConnect, parse_connect
from broker.store.block.block_format import CRC_FROM as BLOCK_CRC_FROM
from broker.store.block.codec import Block, BlockBuilder, BlockDamaged
from broker.subjects import TooManySteps, finish
from broker.wire import _parser, parser_py, proxy_header  # type: ignore[attr-defined]
from broker.wire.upgrade import Terms, UpgradeRefused, upgrade
from broker.wire.websocket import FrameReader, FrameViolation
from raft.core.messages import Entry, EntryKind, Message, MessageKind
from raft.store.records import (
    DamagedLog,
    GroupRecord,
    group_value,
    read_entry,
    read_group,
)
from raft.store.segments.format import (
    FRAME_BYTES,
    RECORD_BYTES,
    SegmentHeader,
    encode_frame,
    encode_header,
    encode_record,
    read_frame,
    read_header,
    read_record,
    read_records,
)
from raft.transport.codec import CodecError, decode_frame, encode_frames
from raft.transport.frame_guard import Checksums, FrameError
from raft.transport.handshake import (
    CHALLENGE,
    HELLO,
    VERSIONS,
    Challenge,
    HandshakeRefused,
    LinkClass,
    LocalPeer,
    PeerVersions,
    check_hello,
    frame,
    greeting,
    read_answer,
    read_challenge,
    read_greeting,
    read_hello,
)
from raft.types import GroupId, Index, NodeId, Term
from tests.support.log_format_1 import entry_value

GROUP, INDEX = GroupId(3), Index(7)
SALT = 12345
OURSELVES = LocalPeer(NodeId(1), "a", "c", None, dict, port=1)
KINDS = sorted(ApiKind, key=lambda kind: kind.name)
STREAM = StreamConfig(name="S", subjects=["a.>"])
BODIES = [kind for kind in KINDS if kind is not ApiKind.CONSUMER_MSG_NEXT]


@dataclass(frozen=True)
class Target:
    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    modules: tuple[str, ...]  # whose coverage guides the search
    longest: int = 4096  # bytes of an input; parsers that work by the character get shorter ones


def _parsed(parser: Any, pieces: list[bytes]) -> tuple[list[Any], str | None]:
    events: list[Any] = []
    try:
        for piece in pieces:
            events += parser.receive(piece)
    except parser_py.ProtocolViolation as violation:
        return [*events, *violation.events], violation.text or "closed"
    return events, None


def _shown(events: list[Any]) -> list[Any]:
    """Runs of publishes as messages: where a run is cut depends on the chunks."""
    shown: list[Any] = []
    for event in events:
        if event[0].name in ("PUB", "LMSG"):
            rest = event[2:]  # the queue groups of a leaf node's message
            shown += [(event[1].message(row), *rest) for row in range(len(event[1]))]
        else:
            shown.append(tuple(str(part) for part in event))
    return shown


def _both_parsers(data: bytes, *, leaf: bool) -> None:
    """They see the same; one of them, in turns, also when the input comes in two pieces."""
    cut = data[0] % max(len(data), 1) if data else 0
    kinds = (parser_py.ClientParser, _parser.ClientParser)
    pieces = [data[:cut], data[cut:]]
    runs = [(kind, [data]) for kind in kinds] + [(kinds[cut & 1], pieces)]
    found = []
    for kind, fed in runs:
        parser = kind(max_control_line=128, max_payload=256, leaf=leaf)
        events, text = _parsed(parser, fed)
        found.append((_shown(events), text))
    assert all(one == other for one, other in pairwise(found)), found


def leaf(data: bytes) -> None:
    _both_parsers(data, leaf=True)


def client(data: bytes) -> None:
    _both_parsers(data, leaf=False)
    for line in data.split(b"\r\n"):
        if line.startswith(b"CONNECT "):
            with suppress(BadConnect):
                parse_connect(line[8:])
        if line.startswith(b"SCAN "):
            with suppress(ScanRefused):
                decode_scan(line[5:])


def websocket(data: bytes) -> None:
    for compression in (False, True):
        reader = FrameReader(max_payload=4096, masked=False, compression=compression)
        with suppress(FrameViolation):
            reader.feed(data)
            while reader.more:
                reader.read()
    with suppress(UpgradeRefused):
        upgrade(data, Terms(same_origin=True, compression=True))


def peer(data: bytes) -> None:
    with suppress(CodecError):
        decode_frame(data)
    with suppress(HandshakeRefused):
        read_greeting(data, VERSIONS)
    with suppress(HandshakeRefused):
        challenge = read_challenge(data)
        VERSIONS.agree(PeerVersions(challenge.oldest, challenge.newest))
    with suppress(HandshakeRefused):
        read_answer(data)
    with suppress(HandshakeRefused):
        check_hello(read_hello(data, HELLO), VERSIONS.newest, ours=OURSELVES)
    guard = Checksums()
    if len(data) >= guard.head_bytes:
        with suppress(FrameError):
            head = guard.read_head(bytearray(data), 0)
            guard.check(head, memoryview(data)[guard.head_bytes :])
    with suppress(ScanRefused, ScanProtocolError):
        decode_head(data)


def api(data: bytes) -> None:
    parse_api_subject(data, domain=b"hub")
    kind = BODIES[data[0] % len(BODIES)] if data else ApiKind.INFO
    for strict in (True, False):
        with suppress(JetStreamError, TooManySteps):
            body = decode_request(kind, data[1:], strict=strict)
            if isinstance(body, StreamConfigRequest):
                finish(stream_create_steps(body, named=body.name, view=AccountView()))
            if isinstance(body, ConsumerCreateRequest):
                check_consumer_config(body.config, stream=STREAM, view=AccountView())
    parse_direct_get("", data[1:])


def config(data: bytes) -> None:
    text = data.decode(errors="replace")
    if "include" in text.lower() or "operator" in text.lower():
        return  # these read other files
    with suppress(ParseError, BadConfiguration, BadOptions, OSError):
        draft = Draft()
        apply(parse(text, environ={}), draft, path="fuzz.conf")
        draft.build()


def archive(data: bytes) -> None:
    reader = ArchiveReader()
    with suppress(BadArchive):
        for part, payload in reader.feed(data):
            if part is Part.HEAD:
                read_head(payload)


def block(data: bytes) -> None:
    """As it is, then with the right checksum: what a peer or a disk could hold on purpose."""
    sealed = data
    if len(data) > BLOCK_CRC_FROM:
        crc = crc32(memoryview(data)[BLOCK_CRC_FROM:])
        sealed = data[: BLOCK_CRC_FROM - 4] + crc.to_bytes(4, "little") + data[BLOCK_CRC_FROM:]
    for content in (data, sealed):
        with suppress(BlockDamaged):
            for _ in Block(content, verify=True).subject_runs():
                pass
    with suppress(BlockDamaged):
        read_columns(sealed, verify=True)


def counters(data: bytes) -> None:
    """What `apply` and the system account read of messages: nothing may leave these functions."""
    counter_values(data)
    with suppress(BadRequest):
        system_request(data)


def records(data: bytes) -> None:
    with suppress(DamagedLog):
        read_entry(GROUP, INDEX, data)
    with suppress(DamagedLog):
        read_group(GROUP, data)
    read_header(data)
    for content in (data, _resealed(data)):
        found = read_frame(SALT, content, 0, 0)
        if found is not None:
            list(read_records(SALT, memoryview(content), found, 0))
        read_record(SALT, content, 0, 0)


def _resealed(data: bytes) -> bytes:
    """The frame with the checksums of its header and of its first record put right."""
    if len(data) < FRAME_BYTES + RECORD_BYTES:
        return data
    head = data[: FRAME_BYTES - 8]
    record = data[FRAME_BYTES + 4 :]
    size = min(int.from_bytes(record[:4], "little"), len(record) - RECORD_BYTES + 4)
    end = RECORD_BYTES - 4
    content = crc32(record[end : end + size], crc32(record[:end], SALT & 0xFFFFFFFF))
    crcs = [crc.to_bytes(4, "little") for crc in (crc32(head), content)]
    return head + crcs[0] + bytes(4) + crcs[1] + record


def _log_frame_seed() -> bytes:
    record = (
        encode_record(
            SALT, group=GROUP, index=INDEX, term=2, before=1, kind=EntryKind.CONFIG, data=b"data"
        )
        + b"data"
    )
    size = FRAME_BYTES + len(record)
    return encode_frame(SALT, position=0, flushed=0, size=size, records=1) + record


def _archive_seed() -> bytes:
    writer = ArchiveWriter()
    head = writer.begin(Head(FORMAT, "S", 1, 3, b"id", []), nats_archive.MAGIC)
    parts = [head, writer.part(Part.BLOCK, b"x" * 50), writer.messages(_block_seed())]
    return b"".join([*parts, writer.end()])


def _block_seed() -> bytes:
    builder = BlockBuilder()
    for number in range(3):
        builder.append(b"a.%d" % number, b"", b"payload", time_ns=number)
    return builder.build()


def _frame_seed() -> bytes:
    entry = Entry(INDEX, Term(2), b"data", EntryKind.NORMAL)
    message = Message(MessageKind.APPEND, NodeId(1), NodeId(2), Term(2), entries=[entry])
    return b"".join(encode_frames([(GROUP, message)])[0])


_STREAM = {"name": "S", "subjects": ["a.>", "b"], "republish": {"dest": "c"}, "max_age": 10**9}
_CONSUMER = {"stream_name": "S", "config": {"durable_name": "C", "backoff": [1], "max_deliver": 3}}
_HEAD = b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


def proxy(data: bytes) -> None:
    """More bytes after a header change nothing in it."""
    with suppress(proxy_header.BadProxyHeader):
        found = proxy_header.read_header(data)
        if found is not None and found[0]:
            assert proxy_header.read_header(data[: found[0]]) == found
            assert proxy_header.read_header(data + b"x") == found


TARGETS: dict[str, Target] = {
    "proxy": Target(
        proxy,
        (
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
            proxy_header.SIGNATURE + b"\x21\x11\0\x0c" + bytes(12),
            proxy_header.SIGNATURE + b"\x20\0\0\0",
        ),
        ("broker.wire.proxy_header",),
    ),
    "client": Target(
        client,
        (
            b'CONNECT {"verbose":false,"user":"a"}\r\nPING\r\nSUB a.* q 1\r\nUNSUB 1 5\r\n',
            b"PUB a r 2\r\nhi\r\nHPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\nPONG\r\n-ERR 'x'\r\n",
            b'SCAN {"stream":"S","first":1,"last":3,"subjects":["a.>"]}\r\n',
        ),
        ("broker.wire.parser_py", "broker.server.client.connect_options", "broker.scan.protocol"),
        longest=384,
    ),
    "leaf": Target(
        leaf,
        (
            b'INFO {"nonce":"x"}\r\nCONNECT {"user":"a"}\r\nPING\r\nLS+ a.*\r\nLS+ b q 3\r\n',
            b"LS- b q\r\nLMSG a 2\r\nhi\r\nLMSG a r 2\r\nhi\r\nLMSG a + r q1 q2 2\r\nhi\r\n",
            b"LMSG a | q 2\r\nhi\r\nHMSG a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n-ERR 'x'\r\n",
            b"HMSG a + r q 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
        ),
        ("broker.wire.parser_py",),
        longest=384,
    ),
    "websocket": Target(
        websocket,
        (
            b"\x82\x05hello\x89\x00\x88\x02\x03\xe8",
            b"\x02\x03abc\x80\x7e\x00\x02de",
            _HEAD + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + b"A" * 22 + b"==\r\n",
        ),
        ("broker.wire.websocket", "broker.wire.upgrade"),
    ),
    "peer": Target(
        peer,
        (
            greeting(bytes(16), VERSIONS),
            frame(CHALLENGE, Challenge(LinkClass.BULK, bytes(16), b"proof")),
            frame(HELLO, OURSELVES.hello(LinkClass.BULK, VERSIONS.newest, peers=[])),
            Checksums().seal(16, b"payload") + b"payload",
            _frame_seed(),
        ),
        ("raft.transport.codec", "raft.transport.handshake", "raft.transport.frame_guard"),
    ),
    "api": Target(
        api,
        (
            *(bytes((at,)) + json.dumps(_STREAM).encode() for at in range(len(BODIES))),
            bytes((BODIES.index(ApiKind.CONSUMER_CREATE),)) + json.dumps(_CONSUMER).encode(),
            b'\x00{"multi_last":["a.*"],"batch":10,"up_to_seq":5}',
            b"$JS.API.CONSUMER.CREATE.S.C.a.b",
        ),
        (
            "broker.jetstream.api.requests",
            "broker.jetstream.api.subjects",
            "broker.jetstream.strict_json",
            "broker.jetstream.config.stream_rules",
            "broker.jetstream.config.consumer_rules",
        ),
        longest=1024,
    ),
    "config": Target(
        config,
        (
            b"port: 4222\nhttp: '127.0.0.1:8222'\ncluster { name: c, routes: [nats://h:1] }\n",
            b"authorization { users: [ {user: a, password: $2a$11, permissions: {publish: x}} ] }",
            b'accounts { A { users: [{nkey: U}], exports: [{stream: "a.>"}] } } # c\n',
            b"jetstream { store_dir: /x, max_mem: 1G }\nX = (\nblock\n)\ny: $X\nping_interval: 2m",
        ),
        ("broker.config.file.parser", "broker.config.file.apply", "broker.config.file.values"),
        longest=256,
    ),
    "archive": Target(archive, (_archive_seed(),), ("broker.jetstream.stream.archive",)),
    "block": Target(
        block, (_block_seed(),), ("broker.scan.columns", "broker.store.block.block_format")
    ),
    "counters": Target(
        counters,
        (b'{"val":"12"}', b'{"val":"\xff"}', b'{"server_name":"a","tags":["b"]}', b"[" * 3000),
        ("broker.jetstream.publish.counters", "broker.monitor.system.requests"),
    ),
    "records": Target(
        records,
        (
            entry_value(GROUP, Entry(INDEX, Term(2), b"data", EntryKind.NORMAL)),
            group_value(GROUP, GroupRecord()),
            encode_header(SegmentHeader(1, SALT, 1 << 20, 0)),
            _log_frame_seed(),
        ),
        ("raft.store.records", "raft.store.segments.format"),
    ),
}
