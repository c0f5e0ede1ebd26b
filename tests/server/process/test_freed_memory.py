"""Memory is returned after it has grown, not while it grows and not again and again."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from broker.server.process.freed_memory import (
    GROWN_BYTES,
    FreedMemory,
    TrimRule,
    code_ranges,
    let_go_of_code,
)
from tests.support.cluster_fakes import run

MB = 1 << 20


def test_it_waits_until_the_storm_is_over() -> None:
    rule = TrimRule()
    seen = [60 * MB, 200 * MB, 300 * MB, 301 * MB]
    assert [rule.is_worth_it(resident) for resident in seen] == [False, False, False, True]
    rule.trimmed(90 * MB)
    assert not rule.is_worth_it(91 * MB)


def test_what_is_still_in_use_is_not_looked_for_again() -> None:
    rule = TrimRule()
    assert not rule.is_worth_it(60 * MB)
    assert not rule.is_worth_it(300 * MB)
    assert rule.is_worth_it(300 * MB)
    rule.trimmed(290 * MB)  # a cache, say
    assert [rule.is_worth_it(290 * MB) for _ in range(5)] == [False] * 5
    assert not rule.is_worth_it(290 * MB + GROWN_BYTES // 2)


def test_the_allocator_is_asked_once() -> None:
    async def test() -> None:
        resident = iter([60 * MB, 300 * MB, 300 * MB, 100 * MB, 100 * MB])
        trims: list[int] = []
        freed = FreedMemory(trim=lambda: trims.append(1), resident=lambda: next(resident))
        for _ in range(4):
            await freed.check(lambda: trims.append(1))
        assert trims == [1]

    run(test())


def test_the_task_of_a_process_can_be_cancelled() -> None:
    async def test() -> None:
        task = asyncio.create_task(FreedMemory().run())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or task.exception() is None

    run(test())


def mapping(line: str, anonymous: int) -> str:
    return f"{line}\nSize:    4 kB\nRss:    4 kB\nAnonymous:    {anonymous} kB\nVmFlags: rd mr\n"


def test_only_unchanged_pages_of_libraries_are_let_go() -> None:
    smaps = "".join(
        [
            mapping("7f00000000-7f00001000 r--p 00000000 fe:00 12       /lib/libssl.so.3", 0),
            mapping("7f00001000-7f00002000 r-xp 00001000 fe:00 12       /lib/libssl.so.3", 0),
            mapping("7f00002000-7f00003000 r--p 00002000 fe:00 12       /lib/libssl.so.3", 4),
            mapping("7f00003000-7f00004000 rw-p 00003000 fe:00 12       /lib/libssl.so.3", 0),
            mapping("7f00004000-7f00005000 r--s 00000000 fe:00 13       /lib/shared.so", 0),
            mapping("7f00005000-7f00006000 r--p 00000000 fe:00 14       /var/data/000012.sst", 0),
            mapping("7f00006000-7f00007000 r--p 00000000 00:00 0 ", 0),
            mapping("7f00007000-7f00008000 r-xp 00000000 00:00 0        [vdso]", 0),
            mapping("7f00008000-7f00009000 r-xp 00000000 fe:00 15       /a b/_core.cpython.so", 0),
        ]
    )
    assert code_ranges(smaps) == [
        (0x7F00000000, 0x7F00001000),
        (0x7F00001000, 0x7F00002000),
        (0x7F00008000, 0x7F00009000),
    ]


def test_the_process_goes_on_without_the_code_of_its_start() -> None:
    ranges = code_ranges(Path("/proc/self/smaps").read_text())
    assert ranges
    let_go_of_code()
    shown = Path("/proc/self/smaps").read_text()
    assert set(code_ranges(shown)) >= set(ranges)  # mapped as before
    let_go_of_code()
    assert ssl.create_default_context().cert_store_stats() is not None  # code that comes back
