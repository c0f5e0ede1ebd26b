"""/debug/vars, /stacksz and the CPU profile: the internals of this Python process.

Owns: the variables, the text of the stacks, the CPU profile.
May not touch: the server.
Spec: nats-server: `cmdline` and `memstats` of Go's expvar, of which the fields are shown that have
a meaning here; the stacks of all goroutines, here those of threads and tasks. A profile is taken by
a thread that samples all threads every SAMPLE_S and reads the CPU time that each has used since;
worker threads of RocksDB are not visible."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import traceback
from collections import Counter
from itertools import islice
from types import FrameType

from broker.monitor.documents.pprof import Frame, Stack, encode
from broker.monitor.documents.varz import resident_bytes
from broker.server.services import Document

SAMPLE_S = 0.01
DEPTH_MAX = 128  # frames of one stack
TASKS_MAX = 1000  # of which the stacks are shown
SECRET_FLAGS = ("--pass", "-pass", "--auth", "-auth")


def variables() -> Document:
    """Numbers of Go's `runtime.MemStats`: what the process has, and its collections."""
    resident, stats = resident_bytes(), gc.get_stats()
    return {
        "cmdline": command_line(sys.orig_argv),
        "memstats": {
            "Alloc": resident,
            "Sys": resident,
            "HeapAlloc": resident,
            "HeapSys": resident,
            "NumGC": sum(generation["collections"] for generation in stats),
            "EnableGC": gc.isenabled(),
        },
    }


def command_line(words: list[str]) -> list[str]:
    """Without passwords: the monitoring port asks for none."""
    shown: list[str] = []
    for word in words:
        name, equals, _ = word.partition("=")
        if equals and name in SECRET_FLAGS:
            shown.append(f"{name}=[REDACTED]")
        elif shown and shown[-1] in SECRET_FLAGS:
            shown.append("[REDACTED]")
        else:
            shown.append(word)
    return shown


def stacks() -> str:
    """Of all threads, and of the tasks of the loop that this is called on."""
    frames, lines = _frames(), []
    for thread in threading.enumerate():
        lines.append(f"thread {thread.name}:\n")
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            lines += traceback.format_stack(frame, DEPTH_MAX)
    tasks = asyncio.all_tasks()
    for task in islice(tasks, TASKS_MAX):
        lines.append(f"task {task.get_name()}:\n")
        for frame in task.get_stack(limit=DEPTH_MAX):
            lines += traceback.format_stack(frame, 1)
    if len(tasks) > TASKS_MAX:
        lines.append(f"and {len(tasks) - TASKS_MAX} more tasks\n")
    return "".join(lines)


def stacks_profile() -> bytes:
    """The stacks of all threads, each counted once, for `go tool pprof`."""
    found: Counter[Stack] = Counter()
    frames = _frames()
    for thread in threading.enumerate():
        if thread.ident in frames:
            found[_stack(frames[thread.ident], thread.name)] += 1
    return encode(found, kind=("goroutine", "count"), began_ns=time.time_ns())


class CpuProfile:
    """Which Python code uses the CPU. One at a time for the process."""

    def __init__(self) -> None:
        self._running = threading.Lock()

    def take(self, seconds: float) -> bytes | None:
        """Blocks for this time: not for the event loop. None: another one is being taken."""
        if not self._running.acquire(blocking=False):
            return None
        try:
            return self._take(seconds)
        finally:
            self._running.release()

    def _take(self, seconds: float) -> bytes:
        found: Counter[Stack] = Counter()
        used: dict[int, int] = {}
        began, until, myself = time.time_ns(), time.monotonic() + seconds, threading.get_ident()
        while True:
            frames = _frames()
            for thread in threading.enumerate():
                ident, native = thread.ident, thread.native_id
                if ident is None or native is None or ident == myself or ident not in frames:
                    continue
                now = _cpu_ns(native)
                spent = now - used.get(native, now)
                used[native] = now
                if spent > 0:
                    found[_stack(frames[ident], thread.name)] += spent
            del frames
            left = until - time.monotonic()
            if left <= 0:
                return encode(
                    found,
                    kind=("cpu", "nanoseconds"),
                    began_ns=began,
                    duration_ns=time.time_ns() - began,
                    period_ns=int(SAMPLE_S * 1e9),
                )
            time.sleep(min(SAMPLE_S, left))


def _frames() -> dict[int, FrameType]:
    """Of all threads, by their number."""
    return sys._current_frames()  # noqa: SLF001 - the documented way, in spite of its name


def _cpu_ns(native: int) -> int:
    """CPU time of a thread; 0 when it has ended."""
    try:
        with open(f"/proc/self/task/{native}/schedstat", "rb") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _stack(frame: FrameType | None, thread: str) -> Stack:
    """The innermost frame first; the name of the thread is the outermost one."""
    found: list[Frame] = []
    while frame is not None and len(found) < DEPTH_MAX:
        code = frame.f_code
        found.append((code.co_qualname, code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    return (*found, (thread, "", 0))
