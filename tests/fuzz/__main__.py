"""`python -m tests.fuzz TARGET --seconds 60`, or `--inputs 10000000`: break a parser.

Guided by coverage: with atheris (libFuzzer) where it is installed (`pip install atheris`),
otherwise with a mutation loop that traces the lines of the target's modules, many times slower. An
input that raises is written to tests/fuzz/corpus/TARGET; `make test` runs every file there from
then on, so it stays when the bug is fixed. `--known DIR` keeps the inputs that reached new code, so
that another run continues where this one ended."""

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
        runs = mutate(
            target, asked.target, seconds=seconds, seed=asked.seed, inputs_max=asked.inputs
        )
        sys.stdout.write(f"{asked.target}: {runs} inputs in {asked.seconds} s, none raised\n")
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


def mutate(target: Any, name: str, *, seconds: float, seed: int, inputs_max: int = -1) -> int:
    """Keep what reaches a new line, change it, try again. Returns the number of inputs."""
    dice = random.Random(seed or None)
    files = {sys.modules[module].__file__ for module in target.modules}
    seen: set[tuple[str, int]] = set()
    pool = list(target.seeds)
    deadline = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < deadline and runs != inputs_max:
        data = mutated(dice, pool)[: target.longest]
        lines: set[tuple[str, int]] = set()

        def trace(frame: Any, event: str, _arg: object, lines: Any = lines) -> Any:
            if frame.f_code.co_filename not in files:
                return None
            if event == "line":
                lines.add((frame.f_code.co_filename, frame.f_lineno))
            return trace

        sys.settrace(trace)
        try:
            target.run(data)
        except Exception:
            sys.settrace(None)
            place = CORPUS / name
            place.mkdir(parents=True, exist_ok=True)
            (place / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
            raise
        finally:
            sys.settrace(None)
        if not lines <= seen:
            seen |= lines
            pool.append(data)
        runs += 1
    return runs


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
