"""Faults of a configuration file, each with its place.

Owns: the collection, and the words for unknown and not yet supported keys.
May not touch: values.
Spec: core contract 5.1: `<file>:<line>:<col>: unknown field "x"`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from broker.config.parser import Item, Map
from broker.config.values import BadValue

Target = TypeVar("Target")


class ConfigReport:
    """All faults of one file, in the order they stand there."""

    __slots__ = ("_path", "errors")

    def __init__(self, path: str) -> None:
        self._path = path
        self.errors: list[str] = []

    @contextmanager
    def at(self, item: Item) -> Iterator[None]:
        """A BadValue inside is noted with the place of the item; the rest goes on."""
        try:
            yield
        except BadValue as error:
            self.errors.append(f"{self._path}:{item.line}:{item.column}: {error}")

    def refuse(self, key: str, item: Item, known: frozenset[str]) -> None:
        """A key nobody here serves; a variable somebody referred to is no key."""
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
        """Every key of the block to its setter, or refused."""
        for key, item in block.items():
            with self.at(item):
                setter = setters.get(key.lower())
                if setter is None:
                    self.refuse(key, item, known)
                else:
                    setter(target, key, item)
