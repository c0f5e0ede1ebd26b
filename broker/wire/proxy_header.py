"""The PROXY protocol: the header by which a load balancer passes on the address of its client.

Owns: reading both versions of the header.
May not touch: sockets, and whether the sender is trusted.
Spec: the PROXY protocol by HAProxy, versions 1 and 2; nats-server, `proxy_protocol`: a client
without a header is a client like any other, and a bad header ends the connection."""

from __future__ import annotations

import ipaddress
from typing import Final

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"  # of version 2
LINE: Final = b"PROXY "  # version 1 begins so
LINE_BYTES_MAX: Final = 107  # with its end
HEAD_BYTES: Final = 16  # of version 2; at most 64 KB of addresses and extensions follow

Address = tuple[str, int]


class BadProxyHeader(Exception):
    """str() says why."""


def read_header(data: bytes) -> tuple[int, Address | None] | None:
    """The length of the header, and the client's address: (0, None) if there is no header; the
    address is None if the header has none. None: more bytes are needed. Raises BadProxyHeader."""
    if data.startswith(LINE):
        return _line(data)
    if data.startswith(SIGNATURE):
        return _record(data)
    if LINE.startswith(data) or SIGNATURE.startswith(data):
        return None
    return 0, None


def _line(data: bytes) -> tuple[int, Address | None] | None:
    end = data.find(b"\r\n", 0, LINE_BYTES_MAX)
    if end < 0:
        if len(data) >= LINE_BYTES_MAX:
            raise BadProxyHeader("invalid PROXY protocol header: v1 line too long")
        return None
    words = data[len(LINE) : end].decode("latin-1").split(" ")
    if words[0] == "UNKNOWN":
        return end + 2, None
    if words[0] not in ("TCP4", "TCP6"):
        raise BadProxyHeader(f"invalid PROXY protocol header: invalid protocol {words[0]}")
    if len(words) != len(("protocol", "source", "destination", "port", "port")):
        raise BadProxyHeader("invalid PROXY protocol header: invalid v1 format")
    version = int(words[0][-1])
    source, _ = (_host(word, version) for word in words[1:3])
    port, _ = (_port(word) for word in words[3:])
    return end + 2, (source, port)


def _host(text: str, version: int) -> str:
    try:
        found = ipaddress.ip_address(text)
    except ValueError as bad:
        raise BadProxyHeader("invalid PROXY protocol header: invalid address") from bad
    if found.version != version:
        text = f"TCP{version} with IPv{found.version} address"
        raise BadProxyHeader(f"invalid PROXY protocol header: {text}")
    return str(found)


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() and len(text) < len("100000") else -1
    if not 0 <= port <= 0xFFFF:
        raise BadProxyHeader(f'invalid port "{text}"')
    return port


def _record(data: bytes) -> tuple[int, Address | None] | None:
    if len(data) < HEAD_BYTES:
        return None
    version, command = data[12] >> 4, data[12] & 15
    if version != 2:
        raise BadProxyHeader(f"invalid PROXY protocol header: invalid version {version << 4:#x}")
    size = int.from_bytes(data[14:HEAD_BYTES], "big")
    if command not in (0, 1):
        raise BadProxyHeader(f"unknown PROXY protocol command: {command:#04x}")
    end = HEAD_BYTES + size
    family, transport = data[13] >> 4, data[13] & 15
    if command == 1 and transport != 1:
        raise BadProxyHeader("unsupported PROXY protocol feature: only STREAM protocol supported")
    width = {1: 4, 2: 16}.get(family)
    if command == 1 and width is None:
        raise BadProxyHeader(
            f"unsupported PROXY protocol feature: unsupported address family {family << 4:#x}"
        )
    if len(data) < end:
        return None
    if command == 0:  # the load balancer itself, for instance a health check
        return end, None
    assert width is not None, "checked above"
    if size < 2 * width + 4:
        raise BadProxyHeader(f"address data too short: {size} bytes")
    source = ipaddress.ip_address(data[HEAD_BYTES : HEAD_BYTES + width])
    at = HEAD_BYTES + 2 * width
    return end, (str(source), int.from_bytes(data[at : at + 2], "big"))
