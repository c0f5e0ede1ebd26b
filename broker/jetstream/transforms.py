"""Whether a subject mapping is well formed.

Owns: the grammar of mapping destinations: `$1`, `{{wildcard(1)}}`, `{{partition(n,i)}}` and so on.
May not touch: the mapping of actual subjects.
Spec: ADR-30 subject transforms; `>` in both or neither, no `*` in the destination."""

from __future__ import annotations

import re
from typing import Final

from broker.subjects import valid_subject

_FUNCTION: Final = re.compile(r"\{\{\s*([A-Za-z]+)\s*\((.*)\)\s*\}\}")
_INDEX_AND_NUMBER: Final = frozenset(
    {"splitfromleft", "splitfromright", "slicefromleft", "slicefromright", "left", "right"}
)
_INT32_MAX: Final = 2**31 - 1


class _BadDestinationError(Exception):
    """A destination token that is no mapping; the text says why."""


def mapping_problem(src: str, dest: str) -> str | None:
    """What is wrong with mapping `src` to `dest`, or None. An empty destination keeps subjects."""
    if not dest:
        return None
    src = src or ">"
    source, target = src.split("."), dest.split(".")
    both_valid = valid_subject(src.encode(), wildcards=True) and _valid_destination(target)
    if not both_valid or (source[-1] == ">") != (target[-1] == ">"):
        return "invalid subject"
    wildcards = source.count("*")
    is_literal = not wildcards and source[-1] != ">"
    for token in target:
        try:
            indexes = _indexes(token)
        except _BadDestinationError as problem:
            return f"invalid mapping destination: {problem} in {token}"
        if indexes is None:
            continue
        beyond = next((index for index in indexes if not 1 <= index <= wildcards), None)
        if beyond is not None:
            where = token if is_literal else f"{token}: [{beyond}]"
            return f"invalid mapping destination: wildcard index out of range in {where}"
    return None


def _valid_destination(tokens: list[str]) -> bool:
    """As a subject, except that blanks may stand inside `{{ }}`."""
    bare = ["x" if _FUNCTION.fullmatch(token) else token for token in tokens]
    return "*" not in tokens and valid_subject(".".join(bare).encode(), wildcards=True)


def _indexes(token: str) -> list[int] | None:
    """The wildcards a destination token refers to; None when it is plain text."""
    if token.startswith("$"):
        return [int(token[1:])] if token[1:].isascii() and token[1:].isdigit() else None
    if not (token.startswith("{{") and token.endswith("}}")):
        return None
    found = _FUNCTION.fullmatch(token)
    if found is None:
        raise _BadDestinationError("unknown function")
    name, arguments = found[1].lower(), [part.strip() for part in found[2].split(",")]
    if name == "wildcard":
        return [_number(part) for part in _counted(arguments, 1)]
    if name == "partition":
        numbers = [_number(part) for part in arguments]
        return numbers[1:]
    if name == "random":
        _number(_counted(arguments, 1)[0])
        return []
    if name == "split":
        return [_number(_counted(arguments, 2)[0])]
    if name in _INDEX_AND_NUMBER:
        return [_number(part) for part in _counted(arguments, 2)][:1]
    raise _BadDestinationError("unknown function")


def _counted(arguments: list[str], wanted: int) -> list[str]:
    if len(arguments) < wanted or arguments == [""]:
        raise _BadDestinationError("not enough arguments passed to the function")
    if len(arguments) > wanted:
        raise _BadDestinationError("too many arguments passed to the function")
    return arguments


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > _INT32_MAX:
        raise _BadDestinationError("function argument is invalid or in the wrong format")
    return int(text)
