"""Bounds of the transport.

Owns: TransportLimits.
May not touch: anything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """The comments state what happens when a limit is reached."""

    frame_bytes_max: int = 96 << 20  # the connection is closed
    control_queue_bytes_max: int = 8 << 20  # send() returns False
    bulk_queue_bytes_max: int = 64 << 20  # send() returns False
    peers_max: int = 256  # further addresses are not dialed
    handshakes_max: int = 64  # unfinished, per pool of slots; then the oldest is closed
    handshakes_per_source_max: int = 16  # unfinished, of one address; then its oldest is closed
    connect_seconds: float = 5.0  # a connection without a finished handshake is closed
    retry_first_seconds: float = 0.05
    retry_last_seconds: float = 1.0
    ping_seconds: float = 1.0
    quiet_intervals_max: int = 5  # pings without any answer; then the link is closed
