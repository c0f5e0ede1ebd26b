"""`python -m tests.fuzz TARGET --seconds 60`, or `--inputs 10000000`: break a parser.

Guided by coverage: with atheris (libFuzzer) where it is installed (`pip install atheris`),
otherwise, or with `--without-atheris`, with a mutation loop that traces the lines of the target's
modules. Tracing takes most of the time of both: the loop traces every input as long as that finds
new lines, later one in TRACED_ONE_IN, and is then several times faster than atheris. An input that
raises is written to tests/fuzz/corpus/TARGET; `make test` runs every file there from then on, so it
stays when the bug is fixed. `--known DIR` keeps the inputs that reached new code, so that another
run continues where this one ended."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"
TRACED_ONE_IN = 50
TRACED_ALL = 5000  # inputs after the last one that reached a new line


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=60, help="0: as long as it takes")
    parser.add_argument("--inputs", type=int, default=-1, help="at most so many")
    parser.add_argument("--known", type=Path, help="directory of inputs that reached new code")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations; 0: a random one")
    parser.add_argument("--without-atheris", action="store_true")
    asked = parser.parse_args()
    try:
        atheris: Any = None if asked.without_atheris else importlib.import_module("atheris")
    except ImportError:
        atheris = None
    if atheris is None:
        target = find(asked.target)
        seconds = asked.seconds or float("inf")
        began = time.monotonic()
        runs = mutate(
            target, asked.target, seconds=seconds, seed=asked.seed, inputs_max=asked.inputs,
            known=asked.known,
        )  # fmt: skip
        spent = time.monotonic() - began
        sys.stdout.write(f"{asked.target}: {runs} inputs in {spent:.0f} s, none raised\n")
        return
    with atheris.instrument_imports(include=["broker", "raft"]):
        target = find(asked.target)
    found = CORPUS / asked.target
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as own:
        place = asked.known or Path(own)
        place.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(target.seeds):
            (place / f"seed{number}").write_bytes(seed)
        flags = [f"-max_total_time={asked.seconds}", f"-runs={asked.inputs}"]
        flags += [f"-max_len={target.longest}", f"-seed={asked.seed}", "-print_final_stats=1"]
        flags += [f"-artifact_prefix={found}/", "-timeout=5", "-rss_limit_mb=2048"]
        atheris.Setup(["fuzz", *flags, str(place), str(found)], target.run)
        atheris.Fuzz()  # exits the process, after "Done N runs"


def find(name: str) -> Any:
    targets = importlib.import_module("tests.fuzz.targets").TARGETS
    if name not in targets:
        raise SystemExit(f"targets: {', '.join(targets)}")
    return targets[name]


def mutate(
    target: Any, name: str, *, seconds: float, seed: int, inputs_max: int = -1,
    known: Path | None = None,
) -> int:  # fmt: skip
    """Keep what reaches a new line, change it, try again. Returns the number of inputs."""
    dice = random.Random(seed or None)
    reached = Reached(target)
    pool = list(target.seeds)
    if known is not None:
        known.mkdir(parents=True, exist_ok=True)
        pool += [path.read_bytes() for path in sorted(known.iterdir())]
    for data in pool:
        reached.run(data)
    deadline = time.monotonic() + seconds
    runs, newest = 0, 0
    while runs != inputs_max and (runs % 256 or time.monotonic() < deadline):
        data = mutated(dice, pool)[: target.longest]
        runs += 1
        try:
            if runs - newest > TRACED_ALL and runs % TRACED_ONE_IN:
                target.run(data)
            elif reached.run(data):
                newest = runs
                pool.append(data)
                if known is not None:
                    _keep(known, data)
        except Exception:
            _keep(CORPUS / name, data)
            raise
    return runs


class Reached:
    """The lines of a target's modules that inputs have reached."""

    def __init__(self, target: Any) -> None:
        self._run = target.run
        self._files = {sys.modules[module].__file__ for module in target.modules}
        self._seen: set[tuple[str, int]] = set()

    def run(self, data: bytes) -> bool:
        """Whether this input has reached a new one."""
        files, before = self._files, len(self._seen)
        add = self._seen.add

        def trace(frame: Any, event: str, _arg: object) -> Any:
            if frame.f_code.co_filename not in files:
                return None
            if event == "line":
                add((frame.f_code.co_filename, frame.f_lineno))
            return trace

        sys.settrace(trace)
        try:
            self._run(data)
        finally:
            sys.settrace(None)
        return len(self._seen) > before


def _keep(place: Path, data: bytes) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)


def mutated(dice: random.Random, pool: list[bytes]) -> bytes:
    data = bytearray(dice.choice(pool))
    for _ in range(dice.randint(1, 6)):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(5):
            case 0:
                data[at : at + 1] = bytes((dice.randrange(256),))
            case 1:
                data[at:at] = dice.randbytes(dice.randint(1, 8))
            case 2:
                del data[at : at + dice.randint(1, 16)]
            case 3:
                other = dice.choice(pool)
                start = dice.randrange(len(other) + 1)
                data[at:at] = other[start : start + dice.randint(1, 64)]
            case _ if at < len(data):
                data[at] ^= 1 << dice.randrange(8)
    return bytes(data)


if __name__ == "__main__":
    main()
