"""A WebSocket under the blocking client.

Owns: the upgrade and the frames of one connection.
May not touch: what the bytes mean.
Spec: RFC 6455; a client masks its frames."""

from __future__ import annotations

import base64
import os
import socket
from typing import Any
from urllib.parse import SplitResult

from broker.cli.connect.options import Destination

BINARY, CLOSE, PING, PONG = 2, 8, 9, 10
FRAME_BYTES_MAX = 1 << 27
HEAD_BYTES_MAX = 1 << 16


class WebSocketBytes:
    """A socket's methods, as far as the client uses them."""

    def __init__(self, plain: Any, rest: bytes) -> None:
        self._socket = plain
        self._in = bytearray(rest)

    def settimeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def sendall(self, data: bytes) -> None:
        self._socket.sendall(_frame(BINARY, bytes(data)))

    def recv(self, _size: int) -> bytes:
        """The data of the next frame that has some; nothing when the server closes."""
        while True:
            kind, data = self._next()
            if kind == CLOSE:
                return b""
            if kind == PING:
                self._socket.sendall(_frame(PONG, data))
            elif data and kind != PONG:
                return data

    def close(self) -> None:
        self._socket.close()

    def _next(self) -> tuple[int, bytes]:
        first, second = self._peek(2)
        length, at = second & 0x7F, 2
        if length >= 126:
            at += 2 if length == 126 else 8
            length = int.from_bytes(self._peek(at)[2:at], "big")
        if length > FRAME_BYTES_MAX:
            raise OSError(f"a frame of {length} bytes")
        data = bytes(self._peek(at + length)[at : at + length])
        del self._in[: at + length]  # only now: a timeout must not lose a part of a frame
        return first & 0x0F, data

    def _peek(self, count: int) -> bytearray:
        while len(self._in) < count:
            chunk = self._socket.recv(1 << 16)
            if not chunk:
                raise EOFError("the server closed the connection")
            self._in += chunk
        return self._in[:count]


def open_websocket(parts: SplitResult, to: Destination) -> WebSocketBytes:
    """Connect and upgrade."""
    secure = parts.scheme == "wss"
    host = parts.hostname or ""
    port = parts.port or (443 if secure else 80)
    plain: Any = socket.create_connection((host, port), timeout=to.timeout_s)
    try:
        if secure:
            from broker.cli.connect.tls import client_context

            plain = client_context(to).wrap_socket(plain, server_hostname=host)
        key = base64.b64encode(os.urandom(16)).decode()
        plain.sendall(
            f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
            .encode()
        )  # fmt: skip
        answer = b""
        while b"\r\n\r\n" not in answer:
            chunk = plain.recv(4096)
            if not chunk or len(answer) > HEAD_BYTES_MAX:
                raise ValueError("it does not speak WebSocket")
            answer += chunk
        if b" 101 " not in answer.partition(b"\r\n")[0]:
            raise ValueError("it does not speak WebSocket")
    except BaseException:
        plain.close()
        raise
    return WebSocketBytes(plain, answer.partition(b"\r\n\r\n")[2])


def _frame(kind: int, data: bytes) -> bytes:
    mask = os.urandom(4)
    length = len(data)
    if length < 126:
        head = bytes((0x80 | kind, 0x80 | length))
    elif length < 1 << 16:
        head = bytes((0x80 | kind, 0x80 | 126)) + length.to_bytes(2, "big")
    else:
        head = bytes((0x80 | kind, 0x80 | 127)) + length.to_bytes(8, "big")
    whole = (mask * (length // 4 + 1))[:length]
    masked = (int.from_bytes(data, "big") ^ int.from_bytes(whole, "big")).to_bytes(length, "big")
    return head + mask + masked
