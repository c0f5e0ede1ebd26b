"""The id of a server: a public key in nkey form, new at every start.

Owns: the text form (prefix, 32 bytes, checksum in base32).
May not touch: anything else.
Spec: core contract 3.6; `N` for a server, CRC-16/XMODEM, little endian, no padding."""

from __future__ import annotations

import base64
import os

SERVER_PREFIX = 0x68


def crc16(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1
        crc &= 0xFFFF
    return crc


def server_id() -> str:
    """56 characters, beginning with N."""
    body = bytes((SERVER_PREFIX,)) + os.urandom(32)
    return base64.b32encode(body + crc16(body).to_bytes(2, "little")).decode().rstrip("=")
