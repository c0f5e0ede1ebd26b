"""Header blocks are opaque bytes: untouched lines stay as they are."""

import pytest

from broker.wire import headers

RAW = b"NATS/1.0\r\nNats-Msg-Id:  7 \r\nx: \r\nx:2\r\nnats-msg-id: 8\r\n\r\n"


def test_parse_keeps_order_case_and_repeats() -> None:
    assert headers.parse(RAW) == [
        (b"Nats-Msg-Id", b"7 "),
        (b"x", b""),
        (b"x", b"2"),
        (b"nats-msg-id", b"8"),
    ]
    assert headers.parse(b"") == []


def test_get_is_case_sensitive_and_takes_the_first() -> None:
    assert headers.get(RAW, b"Nats-Msg-Id") == b"7 "
    assert headers.get(RAW, b"nats-msg-id") == b"8"
    assert headers.get(RAW, b"x") == b""
    assert headers.get(RAW, b"Msg-Id") is None
    assert headers.get(b"", b"x") is None


@pytest.mark.parametrize(
    ("status_line", "first", "status"),
    [
        (b"", b"NATS/1.0", (0, b"")),
        (b"503", b"NATS/1.0 503", (503, b"")),
        (b"404 No Messages", b"NATS/1.0 404 No Messages", (404, b"No Messages")),
        (b"NATS/1.0 100 Idle Heartbeat", b"NATS/1.0 100 Idle Heartbeat", (100, b"Idle Heartbeat")),
    ],
)
def test_status_line_is_written_and_read(
    status_line: bytes, first: bytes, status: tuple[int, bytes]
) -> None:
    raw = headers.build(status_line, [(b"A", b"1")])
    assert raw == first + b"\r\nA: 1\r\n\r\n"
    assert headers.status(raw) == status


def test_add_puts_lines_at_the_end() -> None:
    assert headers.add(b"", [(b"A", b"1")]) == b"NATS/1.0\r\nA: 1\r\n\r\n"
    assert headers.add(RAW, [(b"A", b"1")]) == RAW[:-2] + b"A: 1\r\n\r\n"
    assert headers.parse(headers.add(RAW, [(b"A", b"1")]))[-1] == (b"A", b"1")


def test_a_malformed_status_line_has_no_status() -> None:
    for raw in (
        b"",
        b"NATS/1.0 x\r\n\r\n",
        b"HTTP/1.1 200\r\n\r\n",
        b"NATS/1.0 1234567890\r\n\r\n",
    ):
        assert headers.status(raw) == (0, b"")
