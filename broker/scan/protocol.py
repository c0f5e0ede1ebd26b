"""The wire format of bulk reads: the request of a reader, the answer of a replica.

Owns: encoding and decoding of SCAN and of the planning request, both directions.
May not touch: sockets, storage, clocks.
Spec. A scan runs on the client port, after CONNECT, one at a time on a connection:

    SCAN {"stream","first","last","id","subjects":[],"columns":[],"max_chunk"}␍␊
    +SCAN {"id","first_seq","last_seq","applied"}␍␊                      the head, then frames:
        u32 length | u32 check | block     little-endian; `length` counts the block's bytes
        u32 0      | u32 0     | line      the end: one JSON line, or an error line
    -SCAN {"code","message",...}␍␊                                       instead of head or end

A frame's `check` is the CRC-32 of the block's first 16 bytes, which contain the CRC-32 of the rest:
so every byte is covered, yet a replica sends a block without reading it. Blocks are sent in the
order of their sequences. They may contain rows before `first` and after `last`, which the reader
trims; deleted messages, other subjects and columns that were not requested are not sent
(projection.py has the format of such a block). Between head and end the replica sends nothing else
on the connection: no PING, no INFO.
A plan is an ordinary request on $JS.API.STREAM.SCAN.PLAN.<stream>, whose body is empty or a
PlanRequest. A server that does not know `columns` refuses the field by name; the reader then
requests all columns."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

import msgspec
from isal.isal_zlib import crc32

from broker.scan.projection import COLUMNS
from broker.store.block.block_format import CRC_FROM

PLAN_SUBJECT: Final = "$JS.API.STREAM.SCAN.PLAN."
WRITE_SUBJECT: Final = "$JS.API.STREAM.WRITE."
FRAME: Final = struct.Struct("<II")
CHUNK_BYTES: Final = 256 * 1024  # written between two turns of the event loop
CHUNK_BYTES_MIN: Final = 4 * 1024
BLOCK_BYTES_MAX: Final = 64 * 1024 * 1024  # a longer frame is damaged or from a broken peer
LINE_BYTES_MAX: Final = 1024 * 1024
SUBJECTS_MAX: Final = 64  # a request is one line, which servers bound to 4 KB by default
TIMES_MAX: Final = 16
EDGES_MAX: Final = 10_000
WAIT_MS_MAX: Final = 2000

Shape = TypeVar("Shape", bound=msgspec.Struct)


class ScanCode(StrEnum):
    BEHIND = "BEHIND"  # this replica has not applied `last` yet: try another replica, or later
    GONE = "GONE"  # another incarnation of the stream, or retention overtook the scan
    NOSTREAM = "NOSTREAM"  # no replica of that stream here
    BUSY = "BUSY"  # this node serves as many scans as it allows: try another replica, or later
    DAMAGED = "DAMAGED"  # a stored block failed its checksum: another replica has it
    BAD = "BAD"  # the request itself is wrong


RETRIABLE: Final = frozenset(
    {ScanCode.BEHIND, ScanCode.GONE, ScanCode.NOSTREAM, ScanCode.BUSY, ScanCode.DAMAGED}
)


_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class ScanRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Sequences first..last, both included. An empty `id` accepts any incarnation. Fields at their
    default are not sent: a server of an earlier version refuses fields that it does not know."""

    stream: str
    first: int
    last: int
    id: str = ""
    subjects: tuple[str, ...] = ()  # patterns; none means all subjects
    columns: tuple[str, ...] = ()  # of a block; none means all of them
    max_chunk: int = CHUNK_BYTES


class ScanHead(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    first_seq: int  # of the stream on this replica; above `first` means that messages were removed
    last_seq: int
    applied: int  # highest sequence this replica has applied


class ScanEnd(msgspec.Struct, frozen=True, kw_only=True):
    """`last_sent` is the last sequence covered, whether or not it holds a row."""

    last_sent: int
    first_seq_now: int
    deleted: int = 0  # sequences of the range, from first_seq of the head, without a message


class PlanReplica(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    address: str  # host:port of its client listener
    leader: bool = False
    applied_seq: int = 0


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a reader asks for besides the state of the stream."""

    times: tuple[int, ...] = ()  # the first sequence at or after each, in nanoseconds
    # Cut [first, behind) into pieces of about this many bytes; 0: do not. At most EDGES_MAX.
    piece_bytes: int = 0
    first: int = 0
    behind: int = 0
    subjects: tuple[str, ...] = ()  # count the messages on these
    reader: str = ""  # name of a streaming query that reports its position, for metrics
    next: int = 0
    # Answer when there is a message at `next` or later, or after this time (at most WAIT_MS_MAX). A
    # server may answer earlier; one of an earlier version does.
    wait_ms: int = 0


class WriteHead(msgspec.Struct, frozen=True, kw_only=True):
    """The line before a block of a writer (docs/decisions/0034-writers.md)."""

    writer: str
    epoch: int
    row: int


class WriteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a block of a writer; see WriterAnswer (broker/jetstream/publish/writers.py)."""

    rows: int = 0
    epoch: int = 0
    first_seq: int = 0
    added: int = 0
    repeated: int = 0
    err_code: int = 0
    error: str = ""


class ScanPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of the leader. `last_seq` is committed, so a scan can be repeated."""

    stream: str
    id: str
    first_seq: int
    last_seq: int
    messages: int = 0
    bytes: int = 0
    seqs: tuple[int, ...] = ()  # one for each time; last_seq + 1 if all messages are older
    edges: tuple[int, ...] = ()  # where the pieces begin, without the first
    matching: int = -1  # messages on the subjects of the request; -1: not known without a search
    replicas: tuple[PlanReplica, ...] = ()
    retention: str = ""  # of the stream: unless it is limits, a mirror must read by consumer


class _ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    code: ScanCode
    message: str = ""
    first_seq: int = 0
    applied: int = 0


class _ApiError(msgspec.Struct, frozen=True):
    code: int = 500
    description: str = ""


class _ApiFailure(msgspec.Struct, frozen=True):
    error: _ApiError


@dataclass(eq=False)
class ScanRefused(Exception):
    """The replica refused or ended the scan. Definite: it sends nothing more of it."""

    code: ScanCode
    message: str = ""
    first_seq: int = 0
    applied: int = 0

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(eq=False)
class PlanRefused(Exception):
    """The cluster answered a plan request with an API error, e.g. 404 for an unknown stream."""

    code: int
    description: str
    stream: str = ""

    def __str__(self) -> str:
        about = f"stream {self.stream}: " if self.stream else ""
        return f"{about}{self.description} ({self.code})"


class ScanProtocolError(Exception):
    """The peer does not speak this protocol, or its bytes were damaged in transit."""


def same_incarnation(one: str, other: str) -> bool:
    """Version 0.1 identified a stream by its group number alone, with which newer ids end: its
    checkpoints stay valid, and nodes of both versions can serve the same reader."""
    return one == other or one.endswith(f"-{other}") or other.endswith(f"-{one}")


def encode_request(request: ScanRequest) -> bytes:
    return b"SCAN " + msgspec.json.encode(request) + b"\r\n"


def decode_request(body: bytes) -> ScanRequest:
    """The argument of a SCAN line. Raises ScanRefused(BAD) with the reason."""
    try:
        request = msgspec.json.decode(body, type=ScanRequest)
    except _UNREADABLE as error:
        raise ScanRefused(ScanCode.BAD, str(error)) from error
    if not request.stream:
        raise ScanRefused(ScanCode.BAD, "the stream is missing")
    if not 1 <= request.first <= request.last:
        text = f"sequences {request.first} to {request.last} are not a range"
        raise ScanRefused(ScanCode.BAD, text)
    if len(request.subjects) > SUBJECTS_MAX:
        raise ScanRefused(ScanCode.BAD, f"more than {SUBJECTS_MAX} subjects")
    unknown = [name for name in request.columns if name not in COLUMNS]
    if unknown:
        raise ScanRefused(ScanCode.BAD, f"no column {unknown[0]!r}")
    return request


def encode_plan_request(request: PlanRequest) -> bytes:
    return msgspec.json.encode(request) if request != PlanRequest() else b""


def decode_plan_request(body: bytes) -> PlanRequest:
    """Raises ScanRefused(BAD) with the reason."""
    if not body:
        return PlanRequest()
    try:
        request = msgspec.json.decode(body, type=PlanRequest)
    except _UNREADABLE as error:
        raise ScanRefused(ScanCode.BAD, str(error)) from error
    if len(request.subjects) > SUBJECTS_MAX:
        raise ScanRefused(ScanCode.BAD, f"more than {SUBJECTS_MAX} subjects")
    if len(request.times) > TIMES_MAX or request.piece_bytes < 0 or request.wait_ms < 0:
        raise ScanRefused(ScanCode.BAD, f"more than {TIMES_MAX} times, or a negative size or wait")
    return request


def encode_head(head: ScanHead) -> bytes:
    return b"+SCAN " + msgspec.json.encode(head) + b"\r\n"


def encode_error(refusal: ScanRefused) -> bytes:
    body = _ErrorBody(
        code=refusal.code,
        message=refusal.message,
        first_seq=refusal.first_seq,
        applied=refusal.applied,
    )
    return b"-SCAN " + msgspec.json.encode(body) + b"\r\n"


def encode_end(end: ScanEnd | ScanRefused) -> bytes:
    line = encode_error(end) if isinstance(end, ScanRefused) else msgspec.json.encode(end) + b"\r\n"
    return FRAME.pack(0, 0) + line


def frame_header(block: bytes | memoryview) -> bytes:
    return FRAME.pack(len(block), crc32(block[:CRC_FROM]))


def check_frame(check: int, block: bytes | memoryview) -> None:
    if crc32(block[:CRC_FROM]) != check:
        raise ScanProtocolError("a block was damaged in transit")


def decode_head(line: bytes) -> ScanHead:
    """The first line of the answer. Raises ScanRefused, or ScanProtocolError for anything else."""
    _raise_if_refused(line)
    if not line.startswith(b"+SCAN "):
        raise ScanProtocolError(f"not an answer to SCAN: {line[:80]!r}")
    return _decode(line.removeprefix(b"+SCAN "), ScanHead)


def decode_end(line: bytes) -> ScanEnd:
    _raise_if_refused(line)
    return _decode(line, ScanEnd)


def encode_plan(plan: ScanPlan) -> bytes:
    return msgspec.json.encode(plan)


def decode_plan(body: bytes) -> ScanPlan:
    """The answer to a planning request. Raises PlanRefused for a JetStream error body."""
    try:
        failure = msgspec.json.decode(body, type=_ApiFailure)
    except _UNREADABLE:  # a plan has no "error"
        return _decode(body, ScanPlan)
    raise PlanRefused(failure.error.code, failure.error.description)


def encode_write(head: WriteHead) -> bytes:
    """Padded to a multiple of eight bytes, so that the server does not have to copy the block."""
    line = msgspec.json.encode(head)
    return line + b" " * (-(len(line) + 1) % 8) + b"\n"


def decode_write_answer(body: bytes) -> WriteAnswer:
    """Raises PlanRefused for a JetStream error body."""
    try:
        failure = msgspec.json.decode(body, type=_ApiFailure)
    except _UNREADABLE:  # an answer has a text there
        return _decode(body, WriteAnswer)
    raise PlanRefused(failure.error.code, failure.error.description)


def _raise_if_refused(line: bytes) -> None:
    if line.startswith(b"-SCAN "):
        body = _decode(line.removeprefix(b"-SCAN "), _ErrorBody)
        raise ScanRefused(body.code, body.message, body.first_seq, body.applied)
    if line.startswith(b"-ERR 'Permissions Violation"):  # the same on every replica
        raise ScanRefused(ScanCode.BAD, line[5:].decode(errors="replace").strip(" '\r\n"))
    if line.startswith(b"-ERR"):
        raise ScanProtocolError(line.decode(errors="replace").strip())


def _decode(body: bytes, shape: type[Shape]) -> Shape:
    try:
        return msgspec.json.decode(body, type=shape)
    except _UNREADABLE as error:
        raise ScanProtocolError(f"cannot decode the answer of the replica: {error}") from error
