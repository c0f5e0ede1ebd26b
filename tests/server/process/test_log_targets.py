"""Where log lines go: so many files, or a syslog."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

from broker.config.options import Logging
from broker.server.process.log import NonBlockingHandler, SyslogHandler


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
