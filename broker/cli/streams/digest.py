"""The digest of a stream's messages, by which two streams are compared.

Owns: what goes into it, in which order.
May not touch: servers.
Spec: SHA-256 over, for every message in order: sequence, time in ns and the lengths of subject,
headers and payload as six 64-bit numbers (big-endian, the sixth is 0), then those three texts."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import Any

from broker.cli.streams.reading import StreamMessage

_HEAD = struct.Struct(">6Q")


@dataclass(slots=True)
class StreamDigest:
    """Grows with every message."""

    messages: int = 0
    first: int = 0
    last: int = 0
    disorder: list[str] = field(default_factory=list)
    _hash: Any = field(default_factory=hashlib.sha256)

    def add(self, message: StreamMessage) -> None:
        subject = message.subject.encode()
        self._hash.update(
            _HEAD.pack(
                message.seq, message.time_ns, len(subject), len(message.head), len(message.data), 0
            )
        )
        self._hash.update(subject + message.head)
        self._hash.update(message.data)
        if self.messages and message.seq <= self.last:
            self.disorder.append(f"{message.seq} came after {self.last}")
        self.first = self.first or message.seq
        self.last = message.seq
        self.messages += 1

    @property
    def sha256(self) -> str:
        return str(self._hash.hexdigest())
