"""Templates in the text of messages: `{{Count}}`, `{{TimeStamp}}`, `{{Random 10 100}}`.

Owns: their meaning.
May not touch: messages.
Spec: the functions of the official tool's `pub`. A name that is not one of them stays as it is."""

from __future__ import annotations

import random
import re
import string
import time
from collections.abc import Callable

_FIELD = re.compile(r"\{\{\s*([A-Za-z]+)(?:[\s(]+(\d+))?(?:[\s,]+(\d+))?\s*\)?\s*\}\}")
_LETTERS = string.ascii_letters + string.digits
RANDOM_LENGTH = 16
RANDOM_LENGTH_MAX = 1 << 20


def filled(text: str, count: int) -> str:
    """The text of message number `count`."""
    return _FIELD.sub(lambda found: _value(found, count), text) if "{{" in text else text


def _value(found: re.Match[str], count: int) -> str:
    name, low, high = found.groups()
    if name == "Random":
        shortest = int(low) if low else RANDOM_LENGTH
        longest = min(int(high) if high else shortest, RANDOM_LENGTH_MAX)
        length = random.randint(min(shortest, longest), longest)
        return "".join(random.choices(_LETTERS, k=length))
    makes = _VALUES.get(name)
    return found.group(0) if makes is None else makes(count)


def _timestamp(_: int) -> str:
    zone = time.strftime("%z")
    return time.strftime("%Y-%m-%dT%H:%M:%S") + f"{zone[:3]}:{zone[3:]}"


_VALUES: dict[str, Callable[[int], str]] = {
    "Count": str,
    "TimeStamp": _timestamp,
    "Time": lambda _: time.strftime("%H:%M:%S"),
    "Unix": lambda _: str(int(time.time())),
    "UnixNano": lambda _: str(time.time_ns()),
    "ID": lambda _: "".join(random.choices(_LETTERS, k=22)),
}
