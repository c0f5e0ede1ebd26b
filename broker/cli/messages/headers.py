"""The option --header.

Owns: how a header is written on the command line.
May not touch: servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

header_option: Callable[..., Any] = click.option(
    "-H", "--header", "headers", multiple=True, help="A header as name:value; may be repeated."
)


def parsed_headers(given: Iterable[str]) -> list[tuple[str, str]]:
    return [_parsed(header) for header in given]


def _parsed(header: str) -> tuple[str, str]:
    name, colon, value = header.partition(":")
    bad = not colon or not name.strip() or any(letter in "\r\n" for letter in header)
    if bad:
        raise click.BadParameter(f'"{header}" is not Name:value', param_hint="--header")
    return name.strip(), value.strip()
