"""Limits that the configuration does not set are those of the machine, as in nats-server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.cluster.limits.machine_limits import of_this_machine, size_text, with_machine_limits
from broker.config.options import JetStreamOptions


@pytest.mark.parametrize(
    ("configured", "limit"), [(None, 750), (-1, 750), (0, 0), (12, 12), (5000, 5000)]
)
def test_what_is_not_limited_gets_three_quarters(configured: int | None, limit: int) -> None:
    options = JetStreamOptions(max_memory_store=configured, max_file_store=1)
    limited = with_machine_limits(options, memory_bytes=1000, free_bytes=2000)
    assert (limited.max_memory_store, limited.max_file_store) == (limit, 1)
    options = JetStreamOptions(max_memory_store=1, max_file_store=configured)
    limited = with_machine_limits(options, memory_bytes=2000, free_bytes=1000)
    assert (limited.max_memory_store, limited.max_file_store) == (1, limit)


def test_the_machine_is_asked(tmp_path: Path) -> None:
    found = of_this_machine(JetStreamOptions(store_dir=str(tmp_path / "not" / "there")))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    disk = os.statvfs(tmp_path)
    assert found.max_memory_store == memory * 3 // 4
    assert found.max_file_store is not None
    assert 0 < found.max_file_store <= disk.f_blocks * disk.f_frsize


class Disk:
    f_bavail, f_frsize = 1000, 4096


def test_what_is_stored_already_counts_as_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a restart would lower the limit, below what is stored."""
    monkeypatch.setattr("broker.cluster.limits.machine_limits.os.statvfs", lambda _: Disk)
    options = JetStreamOptions(store_dir=str(tmp_path))
    assert of_this_machine(options).max_file_store == 3_072_000
    (tmp_path / "jetstream" / "store").mkdir(parents=True)
    file = tmp_path / "jetstream" / "store" / "blocks"
    with file.open("wb") as opened:
        opened.write(bytes(3_000_000))
        os.fsync(opened.fileno())
    taken = file.stat().st_blocks * 512
    assert taken >= 3_000_000
    assert of_this_machine(options).max_file_store == (4_096_000 + taken) * 3 // 4


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1 << 30, "1.00 GB"),
        (18956095488, "17.65 GB"),
        (1 << 52, "4096.00 TB"),
    ],
)
def test_sizes_are_shown_as_by_nats_server(size: int, text: str) -> None:
    assert size_text(size) == text
