"""A load client that uses very little CPU, so that the server is what is measured.

Owns: one blocking socket, prepared publish chunks, counting of acks and messages.
May not touch: the broker's own codecs; it speaks to any NATS server the same way.
Method: chunks of prepared PUB lines with distinct replies are sent repeatedly; answers are not
parsed but counted by a fixed text that each of them contains."""

from __future__ import annotations

import json
import re
import select
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CHUNK_MESSAGES = 256
CLOCK_TICKS_PER_S = 100  # USER_HZ on Linux
RECEIVE_BYTES = 1 << 18  # more than a record of TLS: none is left where select does not see it
PUB_ACK = b'"seq":'
ACK_REPLY = re.compile(rb" (\$JS\.ACK\.\S+) \d+\r\n")


@dataclass(frozen=True, slots=True)
class Load:
    messages: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds


@dataclass(frozen=True, slots=True)
class Requests:
    """Prepared publishes with distinct replies, all of one length."""

    body: memoryview
    lines: int

    @classmethod
    def of(cls, subjects: Sequence[bytes], payload: bytes = b"") -> Requests:
        made = [
            b"PUB %b _INBOX.load.acks.%06d %d\r\n%b\r\n" % (subject, i, len(payload), payload)
            for i, subject in enumerate(subjects)
        ]
        if any(len(line) != len(made[0]) for line in made):
            raise ValueError("the subjects differ in length")
        return cls(memoryview(b"".join(made)), len(made))

    def some(self, start: int, count: int) -> memoryview:
        size = len(self.body) // self.lines
        return self.body[start * size : (start + count) * size]


# Of TLS, which may need bytes of the other side, or room, for anything.
NOT_NOW = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class LoadClient:
    """One connection. Not for production use: it trusts what it reads."""

    def __init__(
        self, port: int, *, host: str = "127.0.0.1", timeout_s: float = 30.0,
        connected: socket.socket | None = None,
    ) -> None:  # fmt: skip
        """`connected`: use this connection, which is logged in already."""
        self._timeout_s = timeout_s
        self.socket = connected or socket.create_connection((host, port), timeout=timeout_s)
        self.socket.settimeout(timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        if connected is not None:
            return
        self._read_line()
        options = {"verbose": False, "pedantic": False, "protocol": 1, "headers": True,
                   "no_responders": True, "lang": "load", "version": "1"}  # fmt: skip
        self.send(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
        while self._read_line() != b"PONG":
            pass

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(self, subject: str, body: bytes = b"") -> dict[str, object]:
        """One request; the answer's JSON."""
        self.send(b"SUB _INBOX.load.one 9\r\nUNSUB 9 1\r\n")
        self.send(f"PUB {subject} _INBOX.load.one {len(body)}\r\n".encode() + body + b"\r\n")
        while True:
            line = self._read_line()
            if line.startswith((b"MSG ", b"HMSG ")):
                size = int(line.rsplit(b" ", 1)[1])
                answer = self._read_exactly(size + 2)[:-2]
                if line.split(b" ")[2] != b"9":
                    continue  # a late message of an earlier measurement
                if line.startswith(b"HMSG "):
                    raise ConnectionError(f"{subject}: {answer!r}")
                decoded: dict[str, object] = json.loads(answer)
                return decoded

    def publish_acked(self, subject: str, *, size: int, count: int, window: int) -> Load:
        """Publish with a reply each and wait for every ack, at most `window` outstanding."""
        subjects = [subject.encode()] * min(CHUNK_MESSAGES, window)
        return self.exchange(
            Requests.of(subjects, b"x" * size), PUB_ACK, count=count, window=window
        )

    def exchange(self, requests: Requests, answer: bytes, *, count: int, window: int) -> Load:
        """Send requests in turn, at most `window` unanswered. Every answer contains the text
        `answer` once."""
        self.send(b"SUB _INBOX.load.acks.* 1\r\n")
        counter = _Counter(answer)
        self.socket.setblocking(False)  # noqa: FBT003 - the standard library's signature
        sent = acked = 0
        pending = memoryview(b"")
        started = time.perf_counter()
        while acked < count:
            at = sent % requests.lines
            some = min(CHUNK_MESSAGES, window, count - sent, requests.lines - at)
            if not pending and some and sent - acked + some <= window:
                pending = requests.some(at, some)
                sent += some
            want_write = [self.socket] if pending else []
            readable, writable, _ = select.select([self.socket], want_write, [], 30.0)
            if not readable and not writable:
                raise TimeoutError(f"{acked} of {count} answers, then nothing for 30 s")
            with suppress(*NOT_NOW):
                if writable:
                    pending = pending[self.socket.send(pending) :]
            with suppress(*NOT_NOW):
                if readable:
                    acked += counter.feed(self._receive())
        elapsed = time.perf_counter() - started
        self.socket.settimeout(self._timeout_s)
        self.send(b"UNSUB 1\r\n")
        return Load(acked, elapsed)

    def one_by_one(self, requests: Requests, answer: bytes, *, count: int) -> list[float]:
        """Send each request after the answer to the one before; return the latencies, sorted."""
        self.send(b"SUB _INBOX.load.acks.* 1\r\n")
        self.flush()
        counter = _Counter(answer)
        seconds: list[float] = []
        for i in range(count):
            line = requests.some(i % requests.lines, 1)
            started = time.perf_counter()
            self.socket.sendall(line)
            while not counter.feed(self._receive()):
                pass
            seconds.append(time.perf_counter() - started)
        self.send(b"UNSUB 1\r\n")
        return sorted(seconds)

    def publish(self, subject: str, *, size: int, count: int) -> None:
        """Publish without replies, as fast as the server reads. Only whole chunks are sent."""
        payload = b"x" * size
        line = b"PUB %b %d\r\n%b\r\n" % (subject.encode(), size, payload)
        chunk = line * CHUNK_MESSAGES
        for _ in range(count // CHUNK_MESSAGES):
            self.send(chunk)

    def receive(self, subject: str, *, count: int) -> Load:
        """Count messages of a subscription made with `subscribe` until `count` have arrived. The
        clock starts with the first chunk, which is counted: of a million messages it is little."""
        counter = _Counter(b"MSG " + subject.encode() + b" ")
        got = 0
        started = 0.0
        while got < count:
            got += counter.feed(self._receive())
            started = started or time.perf_counter()
        return Load(got, time.perf_counter() - started)

    def pull_acked(self, stream: str, consumer: str, *, count: int, batch: int) -> Load:
        """Fetch in batches, two requests in flight, and ack every message separately."""
        self.send(b"SUB _INBOX.load.pull 3\r\n")
        pull = f"PUB $JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer} _INBOX.load.pull"
        body = str(batch).encode()
        request = f"{pull} {len(body)}\r\n".encode() + body + b"\r\n"
        got = asked = 0
        rest = b""
        started = time.perf_counter()
        while got < count:
            while asked - got <= batch and asked < count:
                self.send(request)
                asked += batch
            data = rest + self._receive()
            cut = data.rfind(b"\r\n") + 2 if b"\r\n" in data else 0  # whole lines only
            replies = ACK_REPLY.findall(data, 0, cut)
            rest = data[cut:]
            got += len(replies)
            self.send(b"".join([b"PUB %b 0\r\n\r\n" % reply for reply in replies]))
        self.flush()
        elapsed = time.perf_counter() - started
        self.send(b"UNSUB 3\r\n")
        return Load(got, elapsed)

    def fetch_one_by_one(self, stream: str, consumer: str, *, count: int) -> Load:
        """Fetch one message and ack it, then the next."""
        self.send(b"SUB _INBOX.load.pull 3\r\n")
        pull = f"PUB $JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer} _INBOX.load.pull 1\r\n1\r\n"
        request = pull.encode()
        data = b""
        started = time.perf_counter()
        self.send(request)
        for number in range(count):
            while (found := ACK_REPLY.search(data)) is None or not data.endswith(b"\r\n"):
                data += self._receive()
            ack = b"PUB %b 0\r\n\r\n" % found.group(1)
            data = b""
            self.send(ack + request if number < count - 1 else ack)
        self.flush()
        elapsed = time.perf_counter() - started
        self.send(b"UNSUB 3\r\n")
        return Load(count, elapsed)

    def flush(self) -> None:
        """Wait until the server has read everything sent before."""
        self.send(b"PING\r\n")
        while self._read_line() != b"PONG":
            pass

    def subscribe(self, subject: str) -> None:
        self.send(b"SUB %b 2\r\nPING\r\n" % subject.encode())
        while self._read_line() != b"PONG":
            pass

    def _receive(self) -> bytes:
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data

    def _read_line(self) -> bytes:
        while b"\r\n" not in self._rest:
            self._rest += self._receive()
        line, self._rest = self._rest.split(b"\r\n", 1)
        return line

    def _read_exactly(self, size: int) -> bytes:
        while len(self._rest) < size:
            self._rest += self._receive()
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


class _Counter:
    """Counts a text in a byte stream, wherever the chunks are cut. The text must not overlap
    itself: the count of overlapping occurrences would depend on the cuts."""

    def __init__(self, text: bytes) -> None:
        if any(text.startswith(text[i:]) for i in range(1, len(text))):
            raise ValueError(f"{text!r} overlaps itself")
        self._text = text
        self._tail = b""

    def feed(self, data: bytes) -> int:
        data = self._tail + data
        found = data.count(self._text)
        # Keep what may be the start of a text, but no part of one already counted.
        keep = len(self._text) - 1
        end = data.rfind(self._text)
        start = max(len(data) - keep, end + len(self._text) if end >= 0 else 0)
        self._tail = data[start:]
        return found


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    if found is None:
        raise ProcessLookupError(f"process {pid} has ended")
    return int(found.group(1)) * 1024
