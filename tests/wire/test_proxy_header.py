"""The header of the PROXY protocol, whole and cut into pieces."""

from __future__ import annotations

import socket
import struct

import pytest

from broker.wire.proxy_header import (
    LINE_BYTES_MAX,
    SIGNATURE,
    BadProxyHeader,
    read_header,
)

IPV4 = socket.inet_aton("1.2.3.4") + socket.inet_aton("5.6.7.8") + struct.pack(">HH", 1111, 4222)
IPV6 = (
    socket.inet_pton(socket.AF_INET6, "2001:db8::1")
    + socket.inet_pton(socket.AF_INET6, "::1")
    + struct.pack(">HH", 1111, 4222)
)


def record(body: bytes, *, command: int = 1, family: int = 0x11, version: int = 2) -> bytes:
    head = bytes((version << 4 | command, family)) + len(body).to_bytes(2, "big")
    return SIGNATURE + head + body


NAMED = {
    b"PROXY TCP4 1.2.3.4 5.6.7.8 1111 4222\r\n": ("1.2.3.4", 1111),
    b"PROXY TCP6 2001:db8::1 ::1 1111 4222\r\n": ("2001:db8::1", 1111),
    b"PROXY UNKNOWN\r\n": None,
    b"PROXY UNKNOWN ff ff 1 2\r\n": None,
    record(IPV4): ("1.2.3.4", 1111),
    record(IPV6, family=0x21): ("2001:db8::1", 1111),
    record(IPV4 + b"\x04\x00\x01x"): ("1.2.3.4", 1111),  # an extension follows
    record(IPV4 + bytes(700)): ("1.2.3.4", 1111),
    record(b"", command=0, family=0): None,
    record(IPV4, command=0): None,
}
BAD = (
    b"PROXY TCP4 x y 1 2\r\n",
    b"PROXY TCP4 1.2.3.4 5.6.7.8 99999 4222\r\n",
    b"PROXY TCP4 1.2.3.4 5.6.7.8 -1 4222\r\n",
    b"PROXY TCP4 2001:db8::1 ::1 1111 4222\r\n",
    b"PROXY TCP6 1.2.3.4 5.6.7.8 1111 4222\r\n",
    b"PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n",
    b"PROXY TCP4 1.2.3.4\r\n",
    b"PROXY TCP4 " + b"1" * LINE_BYTES_MAX + b"\r\n",
    record(b"\0" * 216, family=0x31),  # a Unix socket
    record(IPV4, family=0x12),  # UDP
    record(b"", family=0),
    record(IPV4, command=2),
    record(IPV4[:6]),
    record(IPV4, version=1),
)
NONE = (
    b"GET / HTTP/1.0\r\n",
    b"CONNECT {}\r\n",
    b"PUB a 0\r\n\r\n",
    b"\r\n\r\nPING\r\n",
    b"\x16\3",
)


@pytest.mark.parametrize("header", NAMED, ids=repr)
def test_a_header_names_the_client_wherever_it_is_cut(header: bytes) -> None:
    assert read_header(header + b"PING\r\n") == (len(header), NAMED[header])
    assert read_header(header) == (len(header), NAMED[header])
    for size in range(1, len(header)):
        assert read_header(header[:size]) is None


@pytest.mark.parametrize("header", BAD, ids=repr)
def test_a_bad_header_is_refused(header: bytes) -> None:
    with pytest.raises(BadProxyHeader):
        read_header(header)


@pytest.mark.parametrize("data", NONE, ids=repr)
def test_other_bytes_are_the_clients_own(data: bytes) -> None:
    assert read_header(data) == (0, None)
