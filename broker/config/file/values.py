"""Values of settings: durations, sizes, addresses, with errors that name the key.

Owns: converting one positioned value to the type of its option.
May not touch: which keys exist.
Spec: NATS server configuration file, durations and sizes."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from broker.config.file.parser import Item
from broker.config.options import DEFAULT_CLUSTER_PORT

NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_BINARY = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


class BadValue(Exception):
    """The value is invalid for its key; str() says why."""


def parse_duration(text: str) -> int:
    """A Go duration (`1h30m`, `100ms`, `-1s`) in nanoseconds. Raises BadValue."""
    sign, body = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if body == "0":
        return 0
    total, at = 0.0, 0
    while at < len(body):
        part = _DURATION_PART.match(body, at)
        if part is None:
            raise BadValue(f'time: invalid duration "{text}"')
        total += float(part[1]) * NANOSECONDS[part[2]]
        at = part.end()
    if not body:
        raise BadValue(f'time: invalid duration "{text}"')
    return sign * round(total)


def text(key: str, item: Item) -> str:
    if isinstance(item.value, str):
        return item.value
    # Passwords and names may look like numbers: keep the text as written.
    if isinstance(item.value, int) and not isinstance(item.value, bool):
        return str(item.value)
    raise BadValue(f'interface conversion: "{key}" wants a string')


def integer(key: str, item: Item) -> int:
    if isinstance(item.value, int) and not isinstance(item.value, bool):
        return item.value
    raise BadValue(f'interface conversion: "{key}" wants an integer')


def boolean(key: str, item: Item) -> bool:
    if isinstance(item.value, bool):
        return item.value
    raise BadValue(f'interface conversion: "{key}" wants true or false')


def duration(key: str, item: Item) -> int:
    """Nanoseconds; a bare number means seconds."""
    if isinstance(item.value, bool):
        raise BadValue(f'error parsing {key}: wants a duration such as "10s"')
    if isinstance(item.value, int | float):
        return round(item.value * NANOSECONDS["s"])
    if isinstance(item.value, str):
        try:
            return parse_duration(item.value)
        except BadValue as error:
            raise BadValue(f"error parsing {key}: {error}") from error
    raise BadValue(f'error parsing {key}: wants a duration such as "10s"')


def size(key: str, item: Item) -> int:
    """Bytes; JetStream sizes may also be strings such as "10G" (binary)."""
    if isinstance(item.value, str):
        word = item.value.strip().upper()
        number, unit = word[:-1], word[-1:]
        if unit in _BINARY and number.isdigit():
            return int(number) * _BINARY[unit]
        if word.lstrip("-").isdigit():
            return int(word)
        raise BadValue(f'{key} must be an integer or a size such as "10G"')
    return integer(key, item)


def positive(key: str, item: Item) -> int:
    """A size or a number, at least 1."""
    found = size(key, item)
    if found < 1:
        raise BadValue(f"{key} must be at least 1")
    return found


def texts(key: str, item: Item) -> list[str]:
    """A string or a list of strings."""
    if isinstance(item.value, list):
        return [text(key, element) for element in item.value]
    return [text(key, item)]


def address(key: str, item: Item, *, host: str) -> tuple[str, int]:
    """`host:port`, or a bare port on the given host."""
    if isinstance(item.value, int) and not isinstance(item.value, bool):
        return host, item.value
    return split_address(text(key, item))


def route_address(url: str) -> tuple[str, int]:
    """The address of a route; host and port are optional. Raises BadValue."""
    try:
        parts = urlsplit(url if "//" in url else f"nats://{url}")
        host, port = parts.hostname or "127.0.0.1", parts.port or DEFAULT_CLUSTER_PORT
    except ValueError as error:
        raise BadValue(f'error parsing route url ["{url}"]') from error
    if " " in host:
        raise BadValue(f'error parsing route url ["{url}"]')
    return host, port


def split_address(word: str) -> tuple[str, int]:
    head, colon, tail = word.rpartition(":")
    if not colon:
        raise BadValue(f'could not parse address string "{word}"')
    try:
        return head.removeprefix("[").removesuffix("]"), int(tail)
    except ValueError as error:
        raise BadValue(f'could not parse port "{tail}"') from error
