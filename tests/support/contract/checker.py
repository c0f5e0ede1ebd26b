"""Checks answers, advisories and metrics against the contract in this folder.

`violation(kind, body)` returns the first violation as text, or an empty text. Unknown fields are a
violation wherever the contract does not allow them with `...`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from broker.jetstream.times import parse_rfc3339

PREFIX: Final = "io.nats.jetstream."
ANSWER_PREFIX: Final = "api.v1."
_HERE: Final = Path(__file__).parent
_EVENT_FIELDS: Final = ("type text", "id text", "timestamp time", "domain? text")

# A check takes the name of a value and the value, and returns the violation or an empty text.
Check = Callable[[str, Any], str]


@dataclass(frozen=True)
class Field:
    name: str
    type: str
    required: bool
    in_failures: bool  # checked in a failed answer too
    required_with: tuple[str, str] | None  # required if this field has this value


@dataclass(frozen=True)
class Shape:
    fields: Mapping[str, Field]
    open: bool  # further fields are allowed


def violation(kind: str, body: object) -> str:
    """`kind` is a type without PREFIX, for example `api.v1.stream_info_response`."""
    shape = _kinds().get(kind)
    if shape is None:
        return f"{kind}: not in the contract"
    if not isinstance(body, dict):
        return f"{kind}: not an object"
    if "type" in shape.fields and body.get("type") != PREFIX + kind:
        return f"{kind}: type is {body.get('type')!r}"
    if "error" in body and "type" in shape.fields and kind.startswith(ANSWER_PREFIX):
        shared = {f.name: f for f in shape.fields.values() if f.in_failures}
        failed = {"error": _field("error Error"), **shared}
        return _violation_of(kind, Shape(failed, open=True), body)
    return _violation_of(kind, shape, body)


def answers() -> set[str]:
    """The types of all answers, without their prefix."""
    return {kind.removeprefix(ANSWER_PREFIX) for kind in _kinds() if kind.startswith(ANSWER_PREFIX)}


@cache
def _kinds() -> dict[str, Shape]:
    answers = _read("answers.txt")
    for name, shape in answers.items():
        if name != "pub_ack_response":
            answers[name] = Shape({"type": _field("type! text"), **shape.fields}, shape.open)
    events = {
        name: Shape({f.name: f for f in map(_field, _EVENT_FIELDS)} | shape.fields, shape.open)
        for name, shape in _read("events.txt").items()
    }
    return {ANSWER_PREFIX + name: shape for name, shape in answers.items()} | events


@cache
def _shapes() -> dict[str, Shape]:
    return _read("shapes.txt")


def _read(file_name: str) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    fields: dict[str, Field] = {}
    for line in (_HERE / file_name).read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if not line.startswith(" "):
            name, _, rest = line.partition(" ")
            assert name not in shapes, f"{file_name}: {name} is defined twice"
            fields = {}
            shapes[name] = Shape(fields, open=rest == "...")
        elif line.split()[0] == "use":
            fields.update(_shapes()[line.split()[1]].fields)
        else:
            field = _field(line)
            fields[field.name] = field
    return shapes


def _field(line: str) -> Field:
    name, _, kind = line.strip().partition(" ")
    kind, _, condition = kind.strip().partition(" with ")
    marks = name.lstrip("abcdefghijklmnopqrstuvwxyz_")
    other, _, value = condition.partition("=")
    return Field(
        name.rstrip("?!"),
        kind,
        required="?" not in marks,
        in_failures="!" in marks,
        required_with=(other, value) if condition else None,
    )


def _violation_of(path: str, shape: Shape, body: Mapping[str, Any]) -> str:
    if not shape.open:
        unknown = sorted(set(body) - set(shape.fields))
        if unknown:
            return f"{path}: unknown fields {unknown}"
    for field in shape.fields.values():
        if field.name not in body:
            wanted = field.required_with
            if field.required or (wanted and body.get(wanted[0]) == wanted[1]):
                return f"{path}: {field.name} is missing"
            continue
        found = _check(field.type)(f"{path}.{field.name}", body[field.name])
        if found:
            return found
    return ""


@cache
def _check(kind: str) -> Check:
    """The check for a type in the notation of shapes.txt."""
    if kind.endswith(" or null"):
        other = _check(kind.removesuffix(" or null"))
        return lambda path, value: "" if value is None else other(path, value)
    word, _, rest = kind.partition(" ")
    match word:
        case "list":
            return _list_of(_check(rest))
        case "map":
            return _map_of(_check(rest))
        case "one":
            words = rest.removeprefix("of ").split("|")
            return _check_if(kind, lambda value: isinstance(value, str) and value in words)
        case "int":
            low, _, high = rest.partition("..")
            bounds = _int_within(int(low) if low else None, int(high) if high else None)
            return _check_if(kind, bounds)
        case "text" if rest:
            longest = int(rest.removeprefix(".."))
            return _check_if(kind, lambda value: isinstance(value, str) and len(value) <= longest)
    if word in _SCALARS:
        return _check_if(kind, _SCALARS[word])
    shape = _shapes()[word]
    return lambda path, value: (
        _violation_of(path, shape, value) if isinstance(value, dict) else f"{path}: not an object"
    )


def _check_if(kind: str, holds: Callable[[Any], bool]) -> Check:
    return lambda path, value: "" if holds(value) else f"{path}: {value!r} is not {kind}"


def _list_of(item: Check) -> Check:
    def check(path: str, value: Any) -> str:
        if not isinstance(value, list):
            return f"{path}: not a list"
        return next(filter(None, (item(f"{path}[{i}]", one) for i, one in enumerate(value))), "")

    return check


def _map_of(item: Check) -> Check:
    def check(path: str, value: Any) -> str:
        if not isinstance(value, dict):
            return f"{path}: not an object"
        return next(filter(None, (item(f"{path}.{key}", one) for key, one in value.items())), "")

    return check


def _is_time(value: Any) -> bool:
    try:
        parse_rfc3339(value)
    except (TypeError, ValueError):
        return False
    return True


def _int_within(low: int | None, high: int | None) -> Callable[[Any], bool]:
    def holds(value: Any) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return (low is None or value >= low) and (high is None or value <= high)

    return holds


_SCALARS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "bool": lambda value: isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "text": lambda value: isinstance(value, str),
    "text+": lambda value: isinstance(value, str) and value != "",
    "name": lambda value: isinstance(value, str) and bool(re.fullmatch(r"[^.*>]+", value)),
    "time": _is_time,
    "u64": _int_within(0, 2**64 - 1),
    "i64": _int_within(-(2**63), 2**63 - 1),
    "count": _int_within(0, 2**63 - 1),
}
