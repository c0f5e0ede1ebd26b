"""A small blocking client: enough NATS for a command, and quick to import.

Owns: one socket, its handshake, its subscriptions, the requests in flight.
May not touch: asyncio, what messages mean.
A lost connection ends the command, unless it asked for patience: then the client connects again to
any known server and repeats its subscriptions.
Spec: NATS client protocol."""

from __future__ import annotations

import json
import os
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from broker.cli.connect.client_shape import Headers, ReceivedMessage
from broker.cli.connect.failures import CannotConnect, CommandFailed, NoAnswerInTime
from broker.cli.connect.options import Destination, shown
from broker.cli.connect.sentences import refused_login, why_not_connected

RECEIVE_BYTES: Final = 1 << 18
BUFFERED_BYTES: Final = 1 << 16
RETRY_EVERY_S: Final = 0.25
LINE_BYTES_MAX: Final = 1 << 20


class BlockingClient:
    """One connection. Not thread-safe."""

    def __init__(self, to: Destination, *, patience_s: float = 0.0) -> None:
        self.to = to
        self.patience_s = patience_s
        self.info: dict[str, Any] = {}
        self.url = ""
        self._out = bytearray()
        self._in = bytearray()
        self._at = 0  # consumed bytes of _in
        self._sids = 0
        self._subscriptions: dict[int, bytes] = {}
        self._queued: deque[ReceivedMessage] = deque()
        self._inbox = f"{to.inbox_prefix}.{os.urandom(11).hex()}"
        self._inbox_sid = 0
        self._requests = 0
        self._pongs = 0
        self._socket = self._connect(to.servers)

    # -- messages

    def publish(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: Headers = ()
    ) -> None:
        """Buffered: sent when there is enough, and before anything is waited for."""
        self._out += message_bytes(subject, data, reply=reply, headers=headers)
        if len(self._out) > BUFFERED_BYTES:
            self.send()

    def send(self) -> None:
        """Give the socket what is buffered."""
        if not self._out:
            return
        out, self._out = self._out, bytearray()
        try:
            self._socket.settimeout(max(self.to.timeout_s, 30.0))
            self._socket.sendall(out)
        except OSError as error:
            self._lost(error)

    def subscribe(self, subject: str, queue: str = "", *, most: int = 0) -> int:
        checked(subject)
        self._sids += 1
        line = f"SUB {subject} {checked(queue) + ' ' if queue else ''}{self._sids}\r\n".encode()
        if most:
            line += f"UNSUB {self._sids} {most}\r\n".encode()
        self._subscriptions[self._sids] = line
        self._out += line
        return self._sids

    def unsubscribe(self, sid: int) -> None:
        self._subscriptions.pop(sid, None)
        self._out += f"UNSUB {sid}\r\n".encode()
        self._queued = deque(one for one in self._queued if one.sid != sid)

    def next(self, timeout_s: float | None = None) -> ReceivedMessage | None:
        """The next message of any subscription; None if none comes in time."""
        if self._queued:
            return self._queued.popleft()
        self.send()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = self._operation(deadline)
            if isinstance(found, ReceivedMessage):
                return found
            if found is False:
                return None

    def messages(self, timeout_s: float | None = None) -> Iterator[ReceivedMessage]:
        """Until none comes for so long."""
        while (message := self.next(timeout_s)) is not None:
            yield message

    def request(
        self, subject: str, data: bytes = b"", *, headers: Headers = (),
        timeout_s: float | None = None,
    ) -> ReceivedMessage:  # fmt: skip
        """The first answer. Raises NoAnswerInTime; an answer without responders has status 503."""
        reply = self.new_reply()
        self.publish(subject, data, reply=reply, headers=headers)
        within = self.to.timeout_s if timeout_s is None else timeout_s
        found = self.answer(reply, within)
        if found is None:
            raise NoAnswerInTime(f"no answer to {subject} within {within:g} s")
        return found

    def new_reply(self) -> str:
        """A subject whose messages arrive here."""
        if not self._inbox_sid:
            self._inbox_sid = self.subscribe(f"{self._inbox}.*")
        self._requests += 1
        return f"{self._inbox}.{self._requests}"

    def answer(self, reply: str, timeout_s: float) -> ReceivedMessage | None:
        """The next message to this reply subject; others wait in their order."""
        for message in self._queued:
            if message.sid == self._inbox_sid and message.subject == reply:
                self._queued.remove(message)
                return message
        self.send()
        deadline = time.monotonic() + timeout_s
        while True:
            found = self._operation(deadline)
            if found is False:
                return None
            if isinstance(found, ReceivedMessage):
                if found.sid == self._inbox_sid and found.subject == reply:
                    return found
                self._queued.append(found)

    def flush(self) -> float:
        """Wait until the server has read everything; the seconds that it took."""
        self._out += b"PING\r\n"
        started = time.perf_counter()
        deadline = time.monotonic() + self.to.timeout_s
        pongs = self._pongs
        self.send()
        while self._pongs == pongs:
            found = self._operation(deadline)
            if isinstance(found, ReceivedMessage):
                self._queued.append(found)
            elif found is False:
                raise NoAnswerInTime(f"no answer within {self.to.timeout_s:g} s ({self.url})")
        return time.perf_counter() - started

    def close(self) -> None:
        self._socket.close()

    def take_socket(self) -> socket.socket:
        """The connection after the login, for a load that uses it in its own way."""
        if not isinstance(self._socket, socket.socket):
            self.close()
            raise CommandFailed("measurements need a nats:// or tls:// connection")
        return self._socket

    # -- the connection

    def _connect(self, servers: Sequence[str]) -> socket.socket:
        problem: CannotConnect | None = None
        for url in servers:
            try:
                return self._open(url)
            except CannotConnect as refused:
                problem = refused
            except (OSError, ValueError) as error:
                # A refused login says more than a server that is down.
                if problem is None or not isinstance(problem.__cause__, PermissionError):
                    text = f"{why_not_connected(error)} (server {shown(url)})"
                    problem = CannotConnect(text)
        raise problem or CannotConnect("no server is named")

    def _open(self, url: str) -> socket.socket:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        if not parts.hostname:
            raise CannotConnect(f"{shown(url)} names no host")
        address = (parts.hostname, parts.port or (4222 if parts.scheme in ("nats", "tls") else 0))
        if parts.scheme in ("ws", "wss"):
            from broker.cli.connect.websocket import open_websocket

            plain: Any = open_websocket(parts, self.to)
        else:
            plain = socket.create_connection(address, timeout=self.to.timeout_s)
        try:
            plain.settimeout(self.to.timeout_s)
            self._socket, self._in, self._at = plain, bytearray(), 0
            secure = parts.scheme == "tls"
            if secure and self.to.tls_first:
                self._encrypt(parts.hostname)
            line = self._line(time.monotonic() + self.to.timeout_s)
            if line is None or not line.startswith(b"INFO "):
                raise ValueError("it answers, but is not a NATS server")
            self.info = json.loads(line[5:])
            wanted = secure or self.info.get("tls_required") or self.to.ca or self.to.cert
            if wanted and not (secure and self.to.tls_first) and parts.scheme in ("nats", "tls"):
                self._encrypt(parts.hostname)
            self._log_in(url, unquote(parts.username or ""), unquote(parts.password or ""))
        except BaseException:
            self._socket.close()
            raise
        self.url = url
        return self._socket

    def _encrypt(self, host: str) -> None:
        from broker.cli.connect.tls import client_context

        self._socket = client_context(self.to).wrap_socket(self._socket, server_hostname=host)

    def _log_in(self, url: str, user: str, password: str) -> None:
        from broker.cli.connect.login import connect_fields

        fields = {
            "verbose": False, "pedantic": False, "headers": True, "no_responders": True,
            "protocol": 1, "name": "jetraft", "lang": "jetraft-cli", "version": "1",
        }  # fmt: skip
        fields |= connect_fields(self.to, str(self.info.get("nonce", "")), user, password)
        self._socket.sendall(b"CONNECT " + json.dumps(fields).encode() + b"\r\nPING\r\n")
        deadline = time.monotonic() + self.to.timeout_s
        while True:
            line = self._line(deadline)
            if line is None:
                raise TimeoutError
            if line.startswith(b"-ERR"):
                raise refused_login(line, shown(url)) from PermissionError()
            if line == b"PONG":
                return
            self._control(line)

    def _lost(self, error: Exception) -> None:
        """Connect again, or end the command."""
        self._socket.close()
        if not self.patience_s:
            raise CannotConnect(f"the connection was lost: {why_not_connected(error)}") from error
        deadline = time.monotonic() + self.patience_s
        known = [*self.to.servers, *self.info.get("connect_urls", [])]
        while True:
            try:
                self._socket = self._connect(list(dict.fromkeys(known)))
            except CannotConnect:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_EVERY_S)
                continue
            self._out = bytearray(b"".join(self._subscriptions.values()))
            self.send()
            return

    # -- reading

    def _operation(self, deadline: float | None) -> ReceivedMessage | bool:
        """One operation. A message, True if it was something else, False if the time is over."""
        try:
            line = self._line(deadline)
            if line is None:
                return False
            if line.startswith((b"MSG ", b"HMSG ")):
                return self._message(line)
        except (OSError, EOFError) as error:
            self._lost(error)
            return True
        self._control(line)
        return True

    def _control(self, line: bytes) -> None:
        if line.startswith(b"PING"):
            self._out += b"PONG\r\n"
            self.send()
        elif line.startswith(b"PONG"):
            self._pongs += 1
        elif line.startswith(b"INFO "):
            self.info |= json.loads(line[5:])
        elif line.startswith(b"-ERR"):
            raise CommandFailed(f"the server says: {line[4:].decode(errors='replace').strip(' ')}")

    def _line(self, deadline: float | None) -> bytes | None:
        while True:
            end = self._in.find(b"\r\n", self._at)
            if end >= 0:
                line = bytes(self._in[self._at : end])
                self._at = end + 2
                return line
            if len(self._in) - self._at > LINE_BYTES_MAX:
                raise ValueError("it is not a NATS server: no line ends")
            if not self._receive(deadline):
                return None

    def _message(self, line: bytes) -> ReceivedMessage:
        words = line.split()
        sized = 2 if words[0] == b"HMSG" else 1
        total = int(words[-1])
        head = int(words[-2]) if sized == 2 else 0
        while len(self._in) - self._at < total + 2:
            if not self._receive(time.monotonic() + max(self.to.timeout_s, 30.0)):
                raise TimeoutError("the rest of a message did not arrive")
        start = self._at
        self._at += total + 2
        reply = words[3].decode() if len(words) - sized == 4 else ""
        return ReceivedMessage(
            words[1].decode(errors="replace"), int(words[2]), reply,
            bytes(self._in[start : start + head]), bytes(self._in[start + head : start + total]),
        )  # fmt: skip

    def _receive(self, deadline: float | None) -> bool:
        if self._at:
            del self._in[: self._at]
            self._at = 0
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return False
        self._socket.settimeout(left)
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError:
            return False
        if not data:
            raise EOFError("the server closed the connection")
        self._in += data
        return True


@contextmanager
def connected(to: Destination, *, patience_s: float = 0.0) -> Iterator[BlockingClient]:
    client = BlockingClient(to, patience_s=patience_s)
    try:
        yield client
    finally:
        client.close()


def message_bytes(
    subject: str, data: bytes, *, reply: str = "", headers: Headers | Mapping[str, str] = ()
) -> bytes:
    """PUB or HPUB."""
    to = f"{checked(subject)} {checked(reply)} " if reply else f"{checked(subject)} "
    if not headers:
        return b"PUB %b%d\r\n%b\r\n" % (to.encode(), len(data), data)
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    head = b"NATS/1.0\r\n" + b"".join(
        f"{name}: {value}\r\n".encode() for name, value in pairs
    ) + b"\r\n"  # fmt: skip
    return b"HPUB %b%d %d\r\n%b%b\r\n" % (to.encode(), len(head), len(head) + len(data), head, data)


def checked(subject: str) -> str:
    """A blank or a line end in a subject would be protocol."""
    if not subject or any(letter in " \t\r\n\0" for letter in subject):
        raise CommandFailed(f'"{subject}" is not a valid subject')
    return subject
