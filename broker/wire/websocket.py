"""WebSocket frames: bytes of a socket in, protocol bytes out, and back.

Owns: headers, masks, fragments, control frames, permessage-deflate without context takeover.
May not touch: sockets, the upgrade (upgrade.py), the meaning of what the frames carry.
Spec: RFC 6455 sections 5 and 7, RFC 7692. The frames carry a byte stream, so frame boundaries mean
nothing: payload is passed on as it arrives, and only control frames are buffered until complete."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum

from broker.wire import unmask

PIECE_SIZE = 256 * 1024  # `read` returns at most about this many bytes per call
FRAMES_PER_READ = 128  # and takes at most so many frames: empty ones have no bytes
FRAME_MAX = 64 * 1024  # payload of one outgoing frame
COMPRESS_ABOVE = 64  # shorter output is not compressed
CONTROL_MAX = 125
INFLATED_MULTIPLE = 8  # a compressed message may inflate to this many payloads of maximum size,
INFLATED_MAX = 64 * 1024 * 1024  # but never to more than this

FINAL, COMPRESSED, RESERVED, MASKED = 0x80, 0x40, 0x30, 0x80
FLUSHED = b"\x00\x00\xff\xff"  # the end of a flushed block; omitted on the wire (RFC 7692)


class Opcode(IntEnum):
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class CloseStatus(IntEnum):
    """Status codes of close frames."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    INVALID_DATA = 1007
    POLICY = 1008
    TOO_BIG = 1009
    INTERNAL = 1011


class FrameViolation(Exception):
    """The peer broke the framing rules; nothing after that is read."""

    def __init__(self, text: str, status: CloseStatus = CloseStatus.PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.status = status


def header(opcode: int, size: int, flags: int = FINAL, *, masked: int = 0) -> bytes:
    first = flags | opcode
    if size <= CONTROL_MAX:
        return bytes((first, masked | size))
    if size <= 0xFFFF:
        return bytes((first, masked | 126)) + size.to_bytes(2, "big")
    return bytes((first, masked | 127)) + size.to_bytes(8, "big")


def control_frame(opcode: Opcode, payload: bytes = b"") -> bytes:
    return header(opcode, len(payload)) + payload


def masked_control(frame: bytes, key: bytes) -> bytes:
    """A control frame as the side that has dialed sends it."""
    return bytes((frame[0], frame[1] | MASKED)) + key + unmask(frame[2:], key)


def close_frame(status: int, text: str = "") -> bytes:
    body = text.encode()[: CONTROL_MAX - 2].decode(errors="ignore").encode()
    return control_frame(Opcode.CLOSE, status.to_bytes(2, "big") + body)


class Deflater:
    """Compresses messages one by one. A full flush resets the dictionary, so all connections of a
    listener can share one Deflater: no message refers to an earlier one."""

    __slots__ = ("_stream",)

    def __init__(self) -> None:
        self._stream = zlib.compressobj(zlib.Z_BEST_SPEED, zlib.DEFLATED, -zlib.MAX_WBITS)

    def message(self, data: bytes) -> bytes:
        packed = self._stream.compress(data) + self._stream.flush(zlib.Z_FULL_FLUSH)
        return packed.removesuffix(FLUSHED)


class FrameWriter:
    """Wraps protocol bytes into binary frames, unmasked as RFC 6455 requires of a server; the side
    that has dialed gives a source of keys."""

    __slots__ = ("_deflater", "_frame_max", "_key")

    def __init__(
        self,
        *,
        frame_max: int = FRAME_MAX,
        deflater: Deflater | None = None,
        key: Callable[[], bytes] | None = None,
    ) -> None:
        self._frame_max = frame_max
        self._deflater = deflater
        self._key = key

    def write(self, data: bytes) -> bytes:
        step = self._frame_max
        if len(data) <= step:
            return self._message(data)
        return b"".join([self._message(data[at : at + step]) for at in range(0, len(data), step)])

    def _message(self, data: bytes) -> bytes:
        if self._deflater is not None and len(data) > COMPRESS_ABOVE:
            packed = self._deflater.message(data)
            if len(packed) < len(data):
                return self._frame(packed, FINAL | COMPRESSED)
        return self._frame(data, FINAL)

    def _frame(self, data: bytes, flags: int) -> bytes:
        if self._key is None:
            return header(Opcode.BINARY, len(data), flags) + data
        key = self._key()
        return header(Opcode.BINARY, len(data), flags, masked=MASKED) + key + unmask(data, key)


class FrameReader:
    """Frames of one peer: `feed` received bytes, then call `read` until there is no `more`.

    `pong` and `closing` are frames to send to the peer: the answer to its latest ping (earlier
    ones need no answer, RFC 6455 section 5.5.3) and to its close. Nothing is read after a close."""

    __slots__ = (
        "_at",
        "_budget",
        "_buffer",
        "_compression",
        "_end",
        "_fragmented",
        "_inflated_max",
        "_inflater",
        "_key",
        "_left",
        "_masked",
        "_waiting",
        "closing",
        "more",
        "pong",
    )

    def __init__(self, *, max_payload: int, masked: bool = True, compression: bool = False) -> None:
        self._masked = masked
        self._compression = compression
        largest = max_payload * INFLATED_MULTIPLE if max_payload > 0 else INFLATED_MAX
        self._inflated_max = min(largest, INFLATED_MAX)
        self._buffer = b""
        self._at = 0  # bytes of the buffer already read
        self._left = 0  # unread payload bytes of the current frame
        self._key = b""  # rotated so that key[0] masks the next payload byte
        self._end = True  # the current frame is the last one of its message
        self._fragmented = False  # inside a fragmented message
        self._inflater: zlib._Decompress | None = None  # of a compressed message
        self._waiting: bytes | None = None  # input that the inflater has not consumed yet
        self._budget = 0  # bytes that the current compressed message may still consume and produce
        self.pong: bytes | None = None
        self.closing: bytes | None = None
        self.more = False  # whether `read` has stopped before the end of what was fed

    def feed(self, chunk: bytes) -> None:
        rest = self._buffer[self._at :]  # rare: at most one incomplete control frame
        self._buffer = rest + chunk if rest else chunk
        self._at = 0
        self.more = True

    def read(self) -> bytes:
        """At most about PIECE_SIZE protocol bytes, maybe none; call again while there is `more`.
        Raises FrameViolation."""
        parts: list[bytes] = []
        size = frames = 0
        while size < PIECE_SIZE and self.closing is None:
            if self._waiting is not None:
                part = self._inflate(self._waiting)
            elif self._left:
                if self._at == len(self._buffer):
                    self.more = False
                    break
                part = self._payload()
            else:
                if frames == FRAMES_PER_READ:
                    break
                frames += 1
                try:
                    if not self._next_frame():
                        self.more = False
                        break
                except FrameViolation:
                    if parts:  # returned first; the next call raises again
                        break
                    self.more = False
                    raise
                continue
            parts.append(part)
            size += len(part)
        if self.closing is not None:
            self.more = False
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # -- data -------------------------------------------------------------------------------

    def _payload(self) -> bytes:
        at = self._at
        part = self._buffer[at : at + self._left]
        self._at = at + len(part)
        self._left -= len(part)
        if self._key:
            part = unmask(part, self._key)
            if self._left:
                turn = len(part) & 3
                self._key = self._key[turn:] + self._key[:turn]
        if self._inflater is None:
            return part
        return self._inflate(part + FLUSHED if self._end and not self._left else part)

    def _inflate(self, packed: bytes) -> bytes:
        inflater = self._inflater
        assert inflater is not None
        try:
            part = inflater.decompress(packed, PIECE_SIZE)
        except zlib.error as error:
            text = "invalid compressed data"
            raise FrameViolation(text, CloseStatus.INVALID_DATA) from error
        tail = inflater.unconsumed_tail
        self._budget -= len(packed) - len(tail) + len(part)
        if self._budget < 0:
            raise FrameViolation("message too big", CloseStatus.TOO_BIG)
        # The flush marker goes in last, so that nothing stays inside when a message ends.
        self._waiting = tail or None
        if not tail and self._end and not self._left:
            self._inflater = None
        return part

    # -- headers ----------------------------------------------------------------------------

    def _next_frame(self) -> bool:
        """Read the next frame header, or a whole control frame. False: more bytes are needed."""
        buffer, at = self._buffer, self._at
        available = len(buffer) - at
        if available < 2:
            return False
        first, second = buffer[at], buffer[at + 1]
        opcode, size = first & 0x0F, second & 0x7F
        self._check(first, second)
        at += 2
        extended = 0 if size < 126 else 2 if size == 126 else 8
        if available < 2 + extended + 4 * self._masked:
            return False
        if extended:
            size = int.from_bytes(buffer[at : at + extended], "big")
            at += extended
            if size >> 63:
                raise FrameViolation("invalid 64-bit payload length")
        key = b""
        if self._masked:
            key = buffer[at : at + 4]
            at += 4
        if opcode >= Opcode.CLOSE:
            if len(buffer) - at < size:
                return False
            self._at = at + size
            payload = buffer[at : at + size]
            self._control(opcode, unmask(payload, key) if key else payload)
            return True
        self._begin(opcode, first)
        self._at, self._left, self._key = at, size, key
        if not size and self._end and self._inflater is not None:
            self._waiting = FLUSHED
        return True

    def _check(self, first: int, second: int) -> None:
        """Checks that need only the first two bytes."""
        opcode, compressed = first & 0x0F, first & COMPRESSED
        if first & RESERVED:
            raise FrameViolation("RSV2 and RSV3 must be clear")
        if compressed and not self._compression:
            raise FrameViolation("compressed frame without negotiated permessage-deflate")
        if self._masked and not second & MASKED:
            raise FrameViolation("mask bit missing")
        if not self._masked and second & MASKED:
            raise FrameViolation("mask bit set though masking was declined")
        if opcode in (Opcode.TEXT, Opcode.BINARY):
            if self._fragmented:
                raise FrameViolation("new message started before the previous one has ended")
        elif opcode == Opcode.CONTINUATION:
            if not self._fragmented or compressed:
                raise FrameViolation("invalid continuation frame")
        elif opcode not in (Opcode.CLOSE, Opcode.PING, Opcode.PONG):
            raise FrameViolation(f"unknown opcode {opcode}")
        else:
            _check_control(first, second)

    def _begin(self, opcode: int, first: int) -> None:
        self._end = bool(first & FINAL)
        self._fragmented = not self._end
        if opcode != Opcode.CONTINUATION:
            self._inflater = None
            if first & COMPRESSED:
                self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)
                self._budget = self._inflated_max

    # -- control frames ---------------------------------------------------------------------

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == Opcode.PING:
            self.pong = control_frame(Opcode.PONG, payload)
        elif opcode == Opcode.CLOSE:
            self.closing = _close_answer(payload)


def _check_control(first: int, second: int) -> None:
    if not first & FINAL:
        raise FrameViolation("control frame does not have final bit set")
    if first & COMPRESSED:
        raise FrameViolation("control frame must not be compressed")
    if second & 0x7F > CONTROL_MAX:
        raise FrameViolation(f"control frame longer than {CONTROL_MAX} bytes")


def _close_answer(payload: bytes) -> bytes:
    """Echo the status and reason of the close frame; empty if it had none."""
    if not payload:
        return control_frame(Opcode.CLOSE)
    if len(payload) == 1:
        raise FrameViolation("close frame payload cannot be 1 byte")
    status = int.from_bytes(payload[:2], "big")
    if not _sendable(status):
        raise FrameViolation(f"invalid close status code {status}")
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        return close_frame(CloseStatus.INVALID_DATA, "invalid utf8 body in close frame")
    return control_frame(Opcode.CLOSE, payload)


def _sendable(status: int) -> bool:
    """RFC 6455 section 7.4: a defined code that is not reserved, or one of the open ranges."""
    return status in range(1000, 1004) or status in range(1007, 1012) or status in range(3000, 5000)
