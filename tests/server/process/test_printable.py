"""Untrusted text in the log: escape codes, quotes and line ends have no effect."""

from __future__ import annotations

import json
import logging
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.options import Logging
from broker.server.process.log import NatsFormatter
from broker.server.process.printable import printable, printable_lines, quoted
from tests.support.server import PATIENCE, Process

BIDI = "\N{RIGHT-TO-LEFT OVERRIDE}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, Größe, 漢字", "plain text, Größe, 漢字"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("a\r\nb\tc", "a\\r\\nb\\tc"),
        ("\x9b31m", "\\x9b31m"),
        (BIDI + "exe.txt", "\\u202eexe.txt"),
    ],
)
def test_what_would_act_on_a_terminal_is_shown_instead(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_quoted_text_cannot_end_its_quotes() -> None:
    assert quoted('x" - authentication ok - "') == '"x\\" - authentication ok - \\""'
    assert quoted("\\") == '"\\\\"'


@given(st.text())
def test_nothing_printed_is_a_control_character(text: str) -> None:
    for one in printable(text):
        assert one == " " or not (ord(one) < 0x20 or 0x7F <= ord(one) < 0xA0)
    assert set(printable_lines(text)) & set(map(chr, range(0x20))) <= {"\n", "\t"}


@given(st.text())
def test_a_log_line_is_one_line_without_control_characters(text: str) -> None:
    formatter = NatsFormatter(Logging())
    error = ValueError(text)
    record = logging.LogRecord("x", logging.ERROR, "", 0, "%s", (text,), (ValueError, error, None))
    line = formatter.format(record)
    assert line.endswith("\n")
    assert not any(ord(one) < 0x20 for one in line[:-1])


def test_a_user_name_cannot_write_into_the_log() -> None:
    with Process("-p", "-1", "-a", "127.0.0.1", "--user", "anna", "--pass", "pw") as process:
        name = '\x1b[2Kx" fine\n[1] [INF] forged'
        connect = {"user": name, "pass": "no", "name": '\x1b]0;t\x07"', "lang": "l", "version": "1"}
        with socket.create_connection(("127.0.0.1", process.port), PATIENCE) as sock:
            sock.settimeout(PATIENCE)
            stream = sock.makefile("rb")
            stream.readline()
            sock.sendall(b"CONNECT " + json.dumps(connect).encode() + b"\r\n")
            assert stream.readline() == b"-ERR 'Authorization Violation'\r\n"
            stream.close()
        process.wait_for("authentication error")
        process.end()
    assert "\x1b" not in process.log
    assert 'User "\\x1b[2Kx\\" fine\\n[1] [INF] forged"' in process.log
    assert '"v1:l:\\x1b]0;t\\x07\\""' in process.log
