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
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from broker.scan.login import Login, LoginUnusable
from broker.scan.protocol import (
    BLOCK_BYTES_MAX,
    FRAME,
    LINE_BYTES_MAX,
    PLAN_SUBJECT,
    PlanRefused,
    PlanRequest,
    ScanEnd,
    ScanHead,
    ScanPlan,
    ScanProtocolError,
    ScanRequest,
    check_frame,
    decode_end,
    decode_head,
    decode_plan,
    encode_plan_request,
    encode_request,
)

DEFAULT_PORT: Final = 4222
RECEIVE_BYTES: Final = 64 * 1024
JOINED_BYTES_MAX: Final = 16 * 1024  # smaller parts are joined: a system call costs more than that
NO_REQUEST: Final = PlanRequest()


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class LoginRefused(ScanProtocolError):
    """The credentials are wrong or unusable; another replica would refuse them too."""


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


class InboxMessage(NamedTuple):
    reply: bytes
    status: bytes  # of its headers, "" for an ordinary message
    body: bytes


class ScanLink:
    """The constructor logs in. Not thread-safe; one plan or one scan at a time."""

    def __init__(self, endpoint: ReplicaAddress, login: Login) -> None:
        self._endpoint = endpoint
        self._received = bytearray()
        self._inbox = f"_INBOX.{os.urandom(12).hex()}"
        self._subscribed = False
        address = (endpoint.host, endpoint.port)
        self._socket = socket.create_connection(address, timeout=login.connect_timeout_s)
        self.max_payload = 0  # the server's limit
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._log_in(login)
            self._socket.settimeout(login.read_timeout_s)
        except BaseException as problem:
            self._socket.close()
            if isinstance(problem, TimeoutError):
                wait_s = login.connect_timeout_s
                text = f"accepts connections, but said nothing for {wait_s:g} s"
                raise TimeoutError(text) from problem
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

    def plan(self, stream: str, request: PlanRequest = NO_REQUEST) -> ScanPlan:
        """Ask the cluster through this node. Raises PlanRefused if the answer is an error."""
        return decode_plan(self.ask(PLAN_SUBJECT + stream, encode_plan_request(request)))

    def ask(self, subject: str, body: bytes = b"") -> bytes:
        """The answer to a request. Raises PlanRefused if nobody serves the subject."""
        self.send_request(subject, body)
        return self.next_answer()

    def send_request(self, subject: str, *body: bytes | memoryview) -> None:
        """Send a request. Read the answers with `next_answer`, in the order the server sends."""
        self._subscribe()
        size = sum(map(len, body))
        head = f"PUB {subject} {self._inbox} {size}\r\n".encode()
        self._send_parts([head, *body, b"\r\n"])

    def _send_parts(self, parts: list[bytes | memoryview]) -> None:
        """Send the parts, without joining them if possible."""
        if isinstance(self._socket, ssl.SSLSocket) or sum(map(len, parts)) < JOINED_BYTES_MAX:
            self._socket.sendall(b"".join(parts))
            return
        left = deque(parts)
        while left:
            sent = self._socket.sendmsg(left)
            while left and sent >= len(left[0]):
                sent -= len(left.popleft())
            if sent:
                left[0] = memoryview(left[0])[sent:]

    def send_lines(self, lines: bytes) -> None:
        """Operations of the client protocol that are not answered."""
        self._socket.sendall(lines)

    def next_answer(self) -> bytes:
        """Raises PlanRefused if nobody serves the subject."""
        return self._message()

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
        block = _memory()(size)
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
        try:
            if login.tls_first:
                self._encrypt(login)
            info = self._info()
            if not login.tls_first and (login.tls or info.get("tls_required")):
                if self._received:
                    raise ScanProtocolError("unencrypted bytes after the INFO of a TLS server")
                self._encrypt(login)
                if info.get("tls_verify") and not login.tls_cert:
                    raise LoginRefused(
                        f"{self._endpoint} requires a client certificate: set the options tlsCert "
                        "and tlsKey"
                    )
            self.max_payload = int(info.get("max_payload", 0))
            proof = login.connect_fields(str(info.get("nonce", "")))
        except LoginUnusable as unusable:
            raise LoginRefused(str(unusable)) from unusable
        connect: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 0,  # no INFO later: it would arrive in the middle of a block
            "lang": "jetraft-scan",
            "version": "1",
        }
        connect |= proof
        try:
            self._socket.sendall(b"CONNECT " + json.dumps(connect).encode() + b"\r\nPING\r\n")
            line = self._operation()
        except ssl.SSLError as alert:  # TLS 1.3: the server checks after our handshake is complete
            reason = alert.reason or ""
            if "CERTIFICATE" not in reason and "UNKNOWN_CA" not in reason:
                raise
            raise LoginRefused(
                f"{self._endpoint} refuses the client certificate ({reason}): check the options "
                "tlsCert and tlsKey"
            ) from alert
        if b"Authorization Violation" in line or b"Authentication" in line:
            hint = "; it asks for an nkey or a JWT" if info.get("nonce") else ""
            raise LoginRefused(
                f"{self._endpoint} refuses the login with {login.kind}{hint}: set the options user "
                "and password, token, credentials or nkey"
            )
        if line != b"PONG":
            raise ScanProtocolError(f"{self._endpoint} answers {line[:80]!r} to PING")

    def _encrypt(self, login: Login) -> None:
        context = login.tls_context()
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=self._endpoint.host)
        except ssl.SSLCertVerificationError as refused:
            raise LoginRefused(
                f"{self._endpoint}: its certificate is not trusted ({refused.verify_message}): set "
                "the option tlsCa to the authority that signed it"
            ) from refused

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
        message = self.next_message()
        if message.status.startswith(b"503"):
            raise PlanRefused(503, "nobody answers: JetStream is off or starting, or not JetRaft")
        return message.body

    def next_message(self) -> InboxMessage:
        """Raises PlanRefused for a missing permission."""
        line = self._operation()
        fields = line.split()
        if line.startswith(b"-ERR 'Permissions Violation"):
            raise PlanRefused(403, line[5:].decode(errors="replace").strip(" '"))
        if line.startswith(b"-ERR"):
            raise ScanProtocolError(line.decode(errors="replace"))
        if fields[0] not in {b"MSG", b"HMSG"}:
            raise ScanProtocolError(f"{self._endpoint} answers {line[:80]!r} to a request")
        body = bytes(self.read_exactly(int(fields[-1]) + 2))[:-2]
        sizes = 1 if fields[0] == b"MSG" else 2
        reply = fields[3] if len(fields) > 3 + sizes else b""
        if sizes == 1:
            return InboxMessage(reply, b"", body)
        header_size = int(fields[-2])
        status = body[:header_size].split(b"\r\n", 1)[0].removeprefix(b"NATS/1.0").strip()
        return InboxMessage(reply, status, body[header_size:])


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


@cache
def _memory() -> Callable[[int], memoryview]:
    """How to get writable memory: with numpy, which comes with Arrow, it is not zeroed first."""
    try:
        import numpy as np
    except ImportError:
        return lambda size: memoryview(bytearray(size))
    return lambda size: np.empty(size, np.uint8).data
