"""A blocking connection of a reader: log in, request a plan, receive a scan.

Owns: the socket, its time limits, the client's side of the handshake (INFO, TLS, CONNECT, PING).
May not touch: asyncio (Spark's workers have no loop), which replica to ask, what blocks mean.
A failure that another replica may not have is an OSError or a ScanProtocolError.
Spec: NATS client protocol; broker/scan/protocol.py."""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

from broker.scan.protocol import (
    BLOCK_BYTES_MAX,
    FRAME,
    LINE_BYTES_MAX,
    PLAN_SUBJECT,
    PlanRefused,
    ScanEnd,
    ScanHead,
    ScanPlan,
    ScanProtocolError,
    ScanRequest,
    check_frame,
    decode_end,
    decode_head,
    decode_plan,
    encode_request,
)

DEFAULT_PORT: Final = 4222
RECEIVE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials and timeouts of a reader."""

    user: str = ""
    password: str = ""
    token: str = ""
    tls: bool = False  # require TLS; a server that requires it gets it in any case
    tls_ca: str = ""  # a file; "" means the certificate authorities of the machine
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0


class LoginRefused(ScanProtocolError):
    """Wrong user, password or token; another replica would refuse them too."""


def parse_endpoint(text: str) -> ReplicaAddress:
    """host, host:port, nats://host:port, tls://host:port."""
    parts = urlsplit(text if "://" in text else f"nats://{text}")
    if parts.scheme not in {"nats", "tls"} or not parts.hostname:
        raise ValueError(f"{text!r} is not a server address: write host:port or nats://host:port")
    return ReplicaAddress(parts.hostname, parts.port or DEFAULT_PORT)


def login_of(servers: str) -> tuple[str, str, bool]:
    """User, password and whether TLS is required, from the first of the addresses."""
    first = servers.split(",", maxsplit=1)[0].strip()
    parts = urlsplit(first if "://" in first else f"nats://{first}")
    return unquote(parts.username or ""), unquote(parts.password or ""), parts.scheme == "tls"


class ScanLink:
    """The constructor logs in. Not thread-safe; one plan or one scan at a time."""

    def __init__(self, endpoint: ReplicaAddress, login: Login) -> None:
        self._endpoint = endpoint
        self._received = bytearray()
        self._inbox = f"_INBOX.{os.urandom(12).hex()}"
        self._subscribed = False
        address = (endpoint.host, endpoint.port)
        self._socket = socket.create_connection(address, timeout=login.connect_timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._log_in(login)
            self._socket.settimeout(login.read_timeout_s)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def plan(self, stream: str) -> ScanPlan:
        """Ask the cluster through this node. Raises PlanRefused if the answer is an error."""
        self._subscribe()
        self._socket.sendall(f"PUB {PLAN_SUBJECT}{stream} {self._inbox} 0\r\n\r\n".encode())
        return decode_plan(self._message())

    def scan(self, request: ScanRequest) -> Scan:
        """Raises ScanRefused when the replica answers with an error line."""
        self._socket.sendall(encode_request(request))
        return Scan(self, decode_head(self._operation()))

    def read_line(self) -> bytes:
        """One line without its line end. Used between messages, never inside a block."""
        while True:
            end = self._received.find(b"\n")
            if end >= 0:
                line = bytes(self._received[:end]).removesuffix(b"\r")
                del self._received[: end + 1]
                return line
            if len(self._received) > LINE_BYTES_MAX:
                raise ScanProtocolError(f"no line end within {LINE_BYTES_MAX} bytes")
            chunk = self._socket.recv(RECEIVE_BYTES)
            if not chunk:
                raise ConnectionResetError(f"{self._endpoint} closed the connection")
            self._received += chunk

    def read_exactly(self, size: int) -> memoryview:
        """New memory each time, because Arrow arrays keep referring to it."""
        import numpy as np

        block = np.empty(size, np.uint8).data
        have = min(size, len(self._received))
        block[:have] = self._received[:have]
        del self._received[:have]
        while have < size:
            got = self._socket.recv_into(block[have:])
            if not got:
                raise ConnectionResetError(f"{self._endpoint} closed the connection")
            have += got
        return block

    def _log_in(self, login: Login) -> None:
        info = self._info()
        if login.tls or info.get("tls_required"):
            if self._received:
                raise ScanProtocolError("unencrypted bytes after the INFO of a TLS server")
            context = ssl.create_default_context(cafile=login.tls_ca or None)
            self._socket = context.wrap_socket(self._socket, server_hostname=self._endpoint.host)
        connect: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 0,  # no INFO later: it would arrive in the middle of a block
            "lang": "jetraft-scan",
            "version": "1",
        }
        if login.user:
            connect |= {"user": login.user, "pass": login.password}
        if login.token:
            connect["auth_token"] = login.token
        self._socket.sendall(b"CONNECT " + json.dumps(connect).encode() + b"\r\nPING\r\n")
        line = self._operation()
        if b"Authorization Violation" in line:
            raise LoginRefused(f"{self._endpoint}: wrong user, password or token")
        if line != b"PONG":
            raise ScanProtocolError(f"{self._endpoint} answers {line[:80]!r} to PING")

    def _info(self) -> dict[str, Any]:
        line = self.read_line()
        try:
            if not line.startswith(b"INFO "):
                raise ValueError(line[:80])
            info = json.loads(line[5:])
        except ValueError as error:
            raise ScanProtocolError(f"{self._endpoint} is not a NATS server: {error}") from error
        return dict(info)

    def _operation(self) -> bytes:
        """The next line that is not PING, INFO or +OK."""
        while True:
            line = self.read_line()
            if line.startswith(b"PING"):
                self._socket.sendall(b"PONG\r\n")
            elif not line.startswith((b"INFO", b"+OK")):
                return line

    def _subscribe(self) -> None:
        if not self._subscribed:
            self._socket.sendall(f"SUB {self._inbox} 1\r\n".encode())
            self._subscribed = True

    def _message(self) -> bytes:
        line = self._operation()
        fields = line.split()
        if line.startswith(b"-ERR"):
            raise ScanProtocolError(line.decode(errors="replace"))
        if fields[0] not in {b"MSG", b"HMSG"}:
            raise ScanProtocolError(f"{self._endpoint} answers {line[:80]!r} to a request")
        body = bytes(self.read_exactly(int(fields[-1]) + 2))[:-2]
        if fields[0] == b"MSG":
            return body
        header_size = int(fields[-2])
        status = body[:header_size].split(b"\r\n", 1)[0]
        if status.startswith(b"NATS/1.0 503"):
            raise PlanRefused(503, "no answer: JetStream is off or has no leader at the moment")
        return body[header_size:]


class Scan:
    """A scan in progress: the head has arrived, blocks() receives the rest."""

    def __init__(self, link: ScanLink, head: ScanHead) -> None:
        self._link = link
        self.head = head
        self.end: ScanEnd | None = None  # set when blocks() has finished

    def blocks(self) -> Iterator[memoryview]:
        """Raises ScanRefused if the replica gives up, OSError if the connection is lost."""
        while True:
            size, check = FRAME.unpack(self._link.read_exactly(FRAME.size))
            if size == 0:
                self.end = decode_end(self._link.read_line())
                return
            if size > BLOCK_BYTES_MAX:
                raise ScanProtocolError(f"a block of {size} bytes")
            block = self._link.read_exactly(size)
            check_frame(check, block)
            yield block
