"""Seeds for simulations that every change of the code draws anew.

The same code gets the same seeds, so that a test run can be repeated and its verdict does not
depend on luck; other code gets others, so that in time many are run."""

from __future__ import annotations

import hashlib
import random
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("broker", "raft", "chaos")


@cache
def digest_of_the_code() -> str:
    digest = hashlib.sha256()
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def fresh_seeds(purpose: str, count: int) -> list[int]:
    """`purpose`: another one gets other seeds."""
    dice = random.Random(f"{purpose} {digest_of_the_code()}")
    return [dice.randrange(1 << 40) for _ in range(count)]
