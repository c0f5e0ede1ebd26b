"""Why a connection ended, in nats-server's words, and the interface by which its parts end it.

Owns: the closed-state texts that /connz and the log show.
May not touch: connections.
Spec: nats-server, closed state of a connection (/connz `reason`)."""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class Reason(Enum):
    CLIENT_CLOSED = "Client Closed"
    AUTHENTICATION_TIMEOUT = "Authentication Timeout"
    AUTHENTICATION_VIOLATION = "Authentication Failure"
    AUTHENTICATION_EXPIRED = "Authentication Expired"
    TLS_HANDSHAKE_ERROR = "TLS Handshake Failure"
    SLOW_CONSUMER_PENDING = "Slow Consumer (Pending Bytes)"
    SLOW_CONSUMER_DEADLINE = "Slow Consumer (Write Deadline)"
    READ_ERROR = "Read Error"
    PARSE_ERROR = "Parse Error"
    STALE_CONNECTION = "Stale Connection"
    PROTOCOL_VIOLATION = "Protocol Violation"
    BAD_CLIENT_PROTOCOL = "Bad Client Protocol Version"
    MAX_CONNECTIONS = "Maximum Connections Exceeded"
    MAX_ACCOUNT_CONNECTIONS = "Maximum Account Connections Exceeded"
    MAX_PAYLOAD = "Maximum Message Payload Exceeded"
    MAX_CONTROL_LINE = "Maximum Control Line Exceeded"
    SERVER_SHUTDOWN = "Server Shutdown"
    MESSAGE_HEADER_VIOLATION = "Message Header Violation"
    NO_RESPONDERS_HEADERS = "No Responders Requires Headers"
    KICKED = "Kicked"
    DUPLICATE_LEAF = "Duplicate Remote LeafNode Connection"
    WRONG_PORT = "Incorrect Port"


VIOLATION_REASONS = {
    "Maximum Payload Violation": Reason.MAX_PAYLOAD,
    "maximum control line exceeded": Reason.MAX_CONTROL_LINE,
    "Unknown Protocol Operation": Reason.PROTOCOL_VIOLATION,
}


class ClosableConnection(Protocol):
    """A connection, as its parts see it: they can send an error and close it."""

    @property
    def label(self) -> str:
        """The beginning of log lines about this client."""

    @property
    def closed(self) -> bool: ...

    def error(self, text: str) -> None:
        """Send -ERR; the connection stays."""

    def fail(self, text: str, reason: Reason) -> None:
        """Send -ERR, then close."""

    def close(self, reason: Reason) -> None: ...
