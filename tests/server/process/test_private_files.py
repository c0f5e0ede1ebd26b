"""Files and directories of a server: for its user alone, whatever the shell's umask was."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.server import PATIENCE, Process


def modes(root: Path) -> dict[str, str]:
    """What others may do with anything below, or nothing at all."""
    return {
        str(path.relative_to(root)): oct(path.stat().st_mode & 0o777)
        for path in root.rglob("*")
        if path.stat().st_mode & 0o077
    }


def test_what_a_server_creates_is_for_its_user_alone(tmp_path: Path) -> None:
    store, ports = tmp_path / "store", tmp_path / "ports"
    old = store / "jetstream"
    old.mkdir(parents=True)
    ports.mkdir(mode=0o700)
    store.chmod(0o700)
    old.chmod(0o755)  # as an earlier version left it
    (tmp_path / "server.pid").write_text("1")  # left behind, readable for everybody
    before = os.umask(0o022)
    try:
        flags = ["-p", "-1", "-a", "127.0.0.1", "-js", "--server_name", "private"]
        flags += ["-sd", str(store), "-P", str(tmp_path / "server.pid")]
        flags += ["--ports_file_dir", str(ports), "-l", str(tmp_path / "server.log")]
        with Process(*flags, ready=False) as process:
            wait_for(lambda: "Server is ready" in read(tmp_path / "server.log"), process)
            wait_for(lambda: any(ports.glob("*.ports")), process)
            assert modes(tmp_path) == {}
            names = {path.name for path in old.rglob("*")}
            assert {"store", "session"} <= names, names
            assert process.end() == 0
    finally:
        os.umask(before)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def wait_for(condition: Callable[[], bool], process: Process) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
