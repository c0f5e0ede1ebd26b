"""Faults of a configuration file, each with its position.

Owns: the list of faults, and the texts for unknown and unsupported keys.
May not touch: values.
Spec: nats-server's format, `<file>:<line>:<col>: unknown field "x"`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from broker.config.file.parser import Item, Map
from broker.config.file.values import BadValue

Target = TypeVar("Target")


class ConfigReport:
    """All faults of one file, in order of position."""

    __slots__ = ("_path", "errors")

    def __init__(self, path: str) -> None:
        self._path = path
        self.errors: list[str] = []

    @contextmanager
    def at(self, item: Item) -> Iterator[None]:
        """Context manager: record a BadValue with the position of the item, then continue."""
        try:
            yield
        except BadValue as error:
            self.errors.append(f"{self._path}:{item.line}:{item.column}: {error}")

    def refuse(self, key: str, item: Item, known: frozenset[str]) -> None:
        """Report an unknown key, unless it is a variable that something refers to."""
        if key.lower() in known:
            raise BadValue(f'not supported yet: "{key}"')
        if not item.used:
            raise BadValue(f'unknown field "{key}"')

    def block(
        self,
        block: Map,
        setters: Mapping[str, Callable[[Target, str, Item], None]],
        known: frozenset[str],
        target: Target,
    ) -> None:
        """Call the setter of every key of the block; report unknown keys."""
        for key, item in block.items():
            with self.at(item):
                setter = setters.get(key.lower())
                if setter is None:
                    self.refuse(key, item, known)
                else:
                    setter(target, key, item)
