"""Where log lines go: so many files, or a syslog."""

from __future__ import annotations

import json
import logging
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from broker.config.load import BadSettings
from broker.config.options import Logging
from broker.server.process.log import LINE_MAX, NonBlockingHandler, SyslogHandler
from tests.config.test_accounts import loaded


def record(text: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("broker", level, __file__, 1, text, None, None)


def test_old_files_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    handler = NonBlockingHandler(Logging(log_file=str(path), size_limit=100, max_num=3))
    for number in range(20):
        handler.emit(record(f"line {number} " + "x" * 100))
    handler.close()
    found = sorted(tmp_path.iterdir())
    assert len(found) == 3
    assert path in found
    assert "line 19" in found[-1].read_text()


def logged_as_json(path: Path, *records: logging.LogRecord) -> list[dict[str, Any]]:
    handler = NonBlockingHandler(Logging(log_file=str(path), json=True))
    for one in records:
        handler.emit(one)
    handler.close()
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_json_log_has_one_object_per_line(tmp_path: Path) -> None:
    failed = record("a task failed", logging.ERROR)
    failed.exc_info = (OSError, OSError("disk full"), None)
    text = 'user "\x1b[31m\nann\udcff"'
    first, second = logged_as_json(tmp_path / "log", record(text), failed)
    assert (first["level"], first["message"], first["pid"]) == ("info", text, os.getpid())
    assert datetime.fromisoformat(first["time"]).tzinfo == UTC
    assert "error" not in first
    assert (second["level"], second["error"]) == ("error", "OSError: disk full")
    assert (tmp_path / "log").read_bytes().isascii()


@pytest.mark.parametrize("letter", ["x", "\u00e4", "\x1b"])
def test_a_long_line_of_a_json_log_is_cut_and_stays_json(tmp_path: Path, letter: str) -> None:
    long = record(letter * 50_000)
    long.exc_info = (OSError, OSError(letter * 50_000), None)
    (found,) = logged_as_json(tmp_path / "log", long)
    assert found["message"].startswith(letter * 100)
    assert found["message"].endswith(" ...")
    assert (tmp_path / "log").stat().st_size < LINE_MAX


def test_the_file_chooses_the_format(tmp_path: Path) -> None:
    assert loaded(tmp_path, "log_format: json").logging.json
    assert not loaded(tmp_path, "log_format: text").logging.json
    with pytest.raises(BadSettings, match="log_format is text or json"):
        loaded(tmp_path, "log_format: xml")


def test_lines_go_to_a_remote_syslog() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(10)
        port = listener.getsockname()[1]
        handler = SyslogHandler(Logging(remote_syslog=f"udp://127.0.0.1:{port}"))
        handler.emit(record("it happened", logging.ERROR))
        line = listener.recv(4096).decode()
        handler.close()
    assert line.startswith("<27>nats-server[")
    assert line.endswith("]: it happened")
