"""The wire format of bulk reads: the request of a reader, the answer of a replica.

Owns: encoding and decoding of SCAN and of the planning request, both directions.
May not touch: sockets, storage, clocks.
Spec. A scan runs on the client port, after CONNECT, one at a time on a connection:

    SCAN {"stream","first","last","id","subjects":[],"max_chunk"}␍␊      reader -> replica
    +SCAN {"id","first_seq","last_seq","applied"}␍␊                      the head, then frames:
        u32 length | u32 check | block     little-endian; `length` counts the block's bytes
        u32 0      | u32 0     | line      the end: one JSON line, or an error line
    -SCAN {"code","message",...}␍␊                                       instead of head or end

A frame's `check` is the CRC-32 of the block's first 16 bytes, and those hold the CRC-32 of all the
rest: every byte is covered, yet a replica sends a block without reading it. Blocks are sent in the
order of their sequences. They may hold rows before `first` and after `last`, which the reader
trims; deleted messages and those of other subjects are not sent. Between head and end the replica
writes nothing else on the connection: no PING, no INFO.
A plan is an ordinary request on $JS.API.STREAM.SCAN.PLAN.<stream> with an empty body."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

import msgspec
from isal.isal_zlib import crc32

from broker.store.block.block_format import CRC_FROM

PLAN_SUBJECT: Final = "$JS.API.STREAM.SCAN.PLAN."
FRAME: Final = struct.Struct("<II")
CHUNK_BYTES: Final = 256 * 1024  # written between two turns of the event loop
CHUNK_BYTES_MIN: Final = 4 * 1024
BLOCK_BYTES_MAX: Final = 64 * 1024 * 1024  # a longer frame is damaged or from a broken peer
LINE_BYTES_MAX: Final = 1024 * 1024
SUBJECTS_MAX: Final = 16  # every row of a block is matched with each of them

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


class ScanRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sequences first..last, both included. An empty `id` accepts any incarnation."""

    stream: str
    first: int
    last: int
    id: str = ""
    subjects: tuple[str, ...] = ()  # patterns; none means all subjects
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


class ScanPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of the leader. `last_seq` is committed, so a scan can be repeated."""

    stream: str
    id: str
    first_seq: int
    last_seq: int
    messages: int = 0
    bytes: int = 0
    replicas: tuple[PlanReplica, ...] = ()


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

    def __str__(self) -> str:
        return f"{self.description} ({self.code})"


class ScanProtocolError(Exception):
    """The peer does not speak this protocol, or its bytes were damaged in transit."""


def encode_request(request: ScanRequest) -> bytes:
    return b"SCAN " + msgspec.json.encode(request) + b"\r\n"


def decode_request(body: bytes) -> ScanRequest:
    """The argument of a SCAN line. Raises ScanRefused(BAD) with the reason."""
    try:
        request = msgspec.json.decode(body, type=ScanRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ScanRefused(ScanCode.BAD, str(error)) from error
    if not request.stream:
        raise ScanRefused(ScanCode.BAD, "the stream is missing")
    if not 1 <= request.first <= request.last:
        text = f"sequences {request.first} to {request.last} are not a range"
        raise ScanRefused(ScanCode.BAD, text)
    if len(request.subjects) > SUBJECTS_MAX:
        raise ScanRefused(ScanCode.BAD, f"more than {SUBJECTS_MAX} subjects")
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


def frame_header(block: bytes) -> bytes:
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
    except (msgspec.DecodeError, UnicodeDecodeError):  # a plan has no "error"
        return _decode(body, ScanPlan)
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
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ScanProtocolError(f"cannot decode the answer of the replica: {error}") from error
