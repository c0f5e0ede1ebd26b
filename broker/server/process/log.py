"""The log of the server: nats-server's format or JSON, to stderr or a file, without blocking.

Owns: the format, the target and its reopening.
May not touch: what is logged.
Spec: nats-server, log format. Bound: a line that would block on a full pipe is dropped and counted,
so that a stuck reader cannot block the broker."""

from __future__ import annotations

import glob
import json
import logging
import os
import select
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from broker.config.options import Logging
from broker.server.process.printable import printable
from broker.server.process.private_files import FILE_MODE

TRACE = 5
FATAL = logging.CRITICAL
LINE_MAX = 4000  # below PIPE_BUF: a writable pipe accepts the whole line
TEXT_MAX = 2000  # characters of a message, and half as many of an error, in a line of JSON
ESCAPED_MAX = 400  # the same if they become six bytes each, such as \u00e4
STDERR = 2
SYSLOG_PORT = 514
CONNECT_SECONDS = 2.0

_LABELS = {
    TRACE: "TRC",
    logging.DEBUG: "DBG",
    logging.INFO: "INF",
    logging.WARNING: "WRN",
    logging.ERROR: "ERR",
    FATAL: "FTL",
}
_LEVELS = {
    TRACE: "trace",
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    FATAL: "fatal",
}
_COLOURS = {"INF": 32, "DBG": 36, "WRN": 33, "ERR": 31, "FTL": 31, "TRC": 33}

logger = logging.getLogger("broker")


class NatsFormatter(logging.Formatter):
    """`[pid] 2026/06/24 13:26:11.123456 [INF] text`."""

    def __init__(self, options: Logging, *, colours: bool = False) -> None:
        super().__init__()
        self._pid = os.getpid()
        self._options = options
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        label = _LABELS.get(record.levelno, "INF")
        shown = f"\x1b[{_COLOURS[label]}m{label}\x1b[0m" if self._colours else label
        text = record.getMessage().replace("\r", "").replace("\n", " | ")
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text = f"{text}: {type(error).__name__}: {error}".replace("\n", " | ")
        text = printable(text)
        if not self._options.logtime:
            return f"[{self._pid}] [{shown}] {text}\n"
        moment = datetime.fromtimestamp(record.created, UTC)
        if not self._options.logtime_utc:
            moment = moment.astimezone()
        return f"[{self._pid}] {moment:%Y/%m/%d %H:%M:%S.%f} [{shown}] {text}\n"


class JsonFormatter(logging.Formatter):
    """{"time": ..., "level": "info", "pid": ..., "message": ...}, in ASCII: nothing in it acts on a
    terminal. A long message is cut before it is encoded, so that every line is JSON."""

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()

    def format(self, record: logging.LogRecord) -> str:
        line = self._line(record, TEXT_MAX)
        return line if len(line) < LINE_MAX else self._line(record, ESCAPED_MAX)

    def _line(self, record: logging.LogRecord, most: int) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, str | int] = {
            "time": f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}",
            "level": _LEVELS.get(record.levelno, "info"),
            "pid": self._pid,
            "message": _cut(record.getMessage(), most),
        }
        if record.exc_info and (error := record.exc_info[1]) is not None:
            fields["error"] = _cut(f"{type(error).__name__}: {error}", most // 2)
        return json.dumps(fields) + "\n"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} ..."


class NonBlockingHandler(logging.Handler):
    """Writes a line if the descriptor accepts it without blocking; files always do."""

    def __init__(self, options: Logging) -> None:
        super().__init__()
        self._path = options.log_file
        self._size_limit = options.size_limit
        self._max_num = options.max_num
        self.dropped = 0
        self._open()
        colours = not self._path and os.isatty(STDERR)
        text = NatsFormatter(options, colours=colours)
        self.setFormatter(JsonFormatter() if options.json else text)

    def _open(self) -> None:
        if self._path:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._descriptor = os.open(self._path, flags, FILE_MODE)
        else:
            self._descriptor = STDERR
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)

    def reopen(self) -> None:
        """Open the path again after an external log rotation. Raises OSError if it cannot be
        opened, and keeps the old descriptor open: a closed descriptor's number could already belong
        to a connection."""
        if self._path:
            moved = self._descriptor
            self._open()
            os.close(moved)

    def close(self) -> None:
        if self._path:
            os.close(self._descriptor)
            self._path = ""
            self._descriptor = STDERR
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode(errors="backslashreplace")
            if len(line) > LINE_MAX:
                line = line[: LINE_MAX - 5] + b" ...\n"
            if not self._path and not self._writable():
                self.dropped += 1
                return
            os.write(self._descriptor, line)
            if self._path and self._size_limit:
                self._rotate_when_large()
        except OSError:
            self.dropped += 1  # a closed pipe or a full disk: there is no other place to log

    def _writable(self) -> bool:
        events = self._poll.poll(0)
        return bool(events and events[0][1] & select.POLLOUT)

    def _rotate_when_large(self) -> None:
        if os.fstat(self._descriptor).st_size < self._size_limit:
            return
        stamp = time.strftime("%Y.%m.%d.%H.%M.%S", time.localtime())
        os.rename(self._path, f"{self._path}.{stamp}.{time.time_ns() % 1_000_000_000:09d}")
        self.reopen()
        if self._max_num > 0:
            self._remove_old()

    def _remove_old(self) -> None:
        """Keep the configured number of files, including the current one."""
        path = Path(self._path)
        moved = sorted(path.parent.glob(f"{glob.escape(path.name)}.[0-9]*"))
        for old in moved[: max(len(moved) - self._max_num + 1, 0)]:
            old.unlink()


class SyslogHandler(logging.Handler):
    """Sends lines to the syslog of this machine or of another one; what cannot be sent is dropped
    and counted."""

    _SEVERITIES = {TRACE: 7, logging.DEBUG: 7, logging.INFO: 5, logging.WARNING: 4,
                   logging.ERROR: 3, FATAL: 2}  # fmt: skip
    _FACILITY = 3  # a daemon

    def __init__(self, options: Logging) -> None:
        """Raises OSError."""
        super().__init__()
        self.dropped = 0
        self._open(options.remote_syslog)

    def _open(self, remote: str) -> None:
        if not remote:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.connect("/dev/log")
        else:
            url = urlsplit(remote)
            kind = socket.SOCK_STREAM if url.scheme == "tcp" else socket.SOCK_DGRAM
            host, port = url.hostname or "", url.port or SYSLOG_PORT
            family, _, _, _, address = socket.getaddrinfo(host, port, type=kind)[0]
            self._socket = socket.socket(family, kind)
            self._socket.settimeout(CONNECT_SECONDS)
            self._socket.connect(address)
        self._ends = b"\n" if remote.startswith("tcp") else b""
        self._socket.settimeout(0)  # never wait

    def reopen(self) -> None:
        """There is no file that could have been moved."""

    def close(self) -> None:
        self._socket.close()
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        priority = self._FACILITY * 8 + self._SEVERITIES.get(record.levelno, 6)
        text = printable(record.getMessage())
        line = f"<{priority}>nats-server[{os.getpid()}]: {text}".encode(errors="backslashreplace")
        try:
            self._socket.send(line[:LINE_MAX] + self._ends)
        except OSError:
            self.dropped += 1  # no syslog daemon, or its buffer is full


LogHandler = NonBlockingHandler | SyslogHandler


def install(options: Logging) -> LogHandler:
    """Route all logging of this process here; returns the handler for reopen(). Raises OSError."""
    handler = (
        SyslogHandler(options)
        if (options.syslog or options.remote_syslog) and not options.log_file
        else NonBlockingHandler(options)
    )
    root = logging.getLogger()
    for previous in list(root.handlers):
        root.removeHandler(previous)
        previous.close()
    # TRACE is below DEBUG, yet -V alone does not include debug lines.
    handler.addFilter(lambda record: options.debug or record.levelno != logging.DEBUG)
    root.addHandler(handler)
    for library in ("aiohttp", "asyncio", "nats"):
        logging.getLogger(library).setLevel(logging.WARNING)
    level = TRACE if options.trace else logging.DEBUG if options.debug else logging.INFO
    for ours in ("broker", "raft"):
        logging.getLogger(ours).setLevel(level)
    root.setLevel(logging.INFO)
    return handler
