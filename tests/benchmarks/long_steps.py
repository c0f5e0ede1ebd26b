"""A server that tells the longest steps of its event loop, whatever else the machine does.

    JETRAFT_STEPS=FILE python tests/benchmarks/long_steps.py -c server.conf

Serves as `jetraft serve`, on asyncio's own event loop (uvloop calls back from C, where nothing can
be measured). A step is one callback, a turn all callbacks that were ready together; both are
measured in CPU time of the thread, which does not grow when other processes are busy. FILE gets one
line of JSON for every step above STEP_MS and every turn above TURN_MS. Where a step was when it had
lasted LOOK_AFTER_S is told with it, by a thread that looks at the stack.

Owns: the patches of asyncio in this process.
May not touch: the broker."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections import Counter
from types import FrameType

STEP_MS = 8.0
TURN_MS = 25.0
LOOK_AFTER_S = 0.006
LOOK_EVERY_S = 0.004
FRAMES = 5


class Watch:
    """What runs now, since when, and where it was seen."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: SIM115 - open until the process ends
        self._began = 0.0  # 0: nothing runs
        self._seen: Counter[str] = Counter()
        self._main = threading.get_ident()

    def start(self) -> None:
        threading.Thread(target=self._look, daemon=True).start()
        run_handle, run_once = asyncio.Handle._run, asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]
        watch = self

        def timed_handle(handle: asyncio.Handle) -> None:
            watch._seen.clear()
            watch._began = time.perf_counter()
            cpu = time.thread_time()
            run_handle(handle)
            spent = 1000 * (time.thread_time() - cpu)
            watch._began = 0.0
            if spent > STEP_MS:
                watch._tell("step", spent)

        def timed_once(loop: asyncio.BaseEventLoop) -> None:
            cpu = time.thread_time()
            run_once(loop)
            if (spent := 1000 * (time.thread_time() - cpu)) > TURN_MS:
                watch._tell("turn", spent)

        asyncio.Handle._run = timed_handle  # type: ignore[attr-defined]
        asyncio.BaseEventLoop._run_once = timed_once  # type: ignore[attr-defined]

    def _tell(self, kind: str, spent_ms: float) -> None:
        where = [place for place, _ in self._seen.most_common(2)] if kind == "step" else []
        line = {"kind": kind, "ms": round(spent_ms, 1), "where": where}
        self._file.write(json.dumps(line) + "\n")

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            began = self._began
            if began and time.perf_counter() - began > LOOK_AFTER_S:
                frame = sys._current_frames().get(self._main)
                if began == self._began:
                    self._seen[_place(frame)] += 1


def _place(frame: FrameType | None) -> str:
    """The innermost frames, as `module.function`."""
    found = []
    while frame is not None and len(found) < FRAMES:
        code = frame.f_code
        path = code.co_filename.rpartition("/")[2].removesuffix(".py")
        found.append(f"{path}.{code.co_qualname.rpartition('.')[2]}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(found)


def main() -> None:
    import uvloop

    from broker.main import main as serve

    uvloop.new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]
    Watch(os.environ["JETRAFT_STEPS"]).start()
    sys.exit(serve(sys.argv[1:]))


if __name__ == "__main__":
    main()
