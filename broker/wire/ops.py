"""Operation names of the client protocol, shared by both parser implementations.

Owns: the operation names and the one exception a parser raises.
May not touch: parsing (parser_py.py), sockets, connections.
Spec: NATS client protocol, operations a client may send; leaf node protocol (decision 30); SCAN is
JetRaft's own bulk read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final


class Op(IntEnum):
    """First element of every event. HPUB and HMSG have no members: they are a PUB and an LMSG with
    headers."""

    CONNECT = 1
    SUB = 2
    UNSUB = 3
    PUB = 4
    PING = 5
    PONG = 6
    INFO = 7
    OK = 8
    ERR = 9
    SCAN = 10
    LMSG = 11  # this and the following: between servers, on a leaf node connection
    LSUB = 12  # LS+
    LUNSUB = 13  # LS-


UNKNOWN_OPERATION: Final = "Unknown Protocol Operation"
CONTROL_LINE_EXCEEDED: Final = "maximum control line exceeded"
PAYLOAD_EXCEEDED: Final = "Maximum Payload Violation"
CLOSE_SILENTLY: Final = None
BODY_UNTERMINATED: Final[str | None] = UNKNOWN_OPERATION  # the body is not followed by CR LF

SIZE_DIGITS_MAX: Final = 9


@dataclass(eq=False)
class ProtocolViolation(Exception):
    """The peer broke the grammar: send `text` as -ERR (None: send nothing) and close.

    `events` were complete before the violation and must still be executed."""

    text: str | None
    events: list[Any] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text or "malformed arguments"
