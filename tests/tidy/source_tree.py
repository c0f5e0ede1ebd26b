"""The source tree as data: modules, what they import, the classes they define."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker", "raft", "chaos")


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    tree: ast.Module

    @property
    def room(self) -> str:
        """The folder, as a package name. A module that stands beside folders is its own room."""
        if self.path.stem == "__init__" or any(
            (folder / "__init__.py").exists() for folder in self.path.parent.iterdir()
        ):
            return self.name
        return self.name.rpartition(".")[0]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Module]:
    found = {}
    for top in PACKAGES:
        for path in sorted((ROOT / top).rglob("*.py")):
            name = module_name(path)
            found[name] = Module(name, path, ast.parse(path.read_text()))
    return found


def imported(module: Module) -> Iterator[tuple[str, str]]:
    """(module, name) for everything of this project that is imported, typing imports included.
    The name is empty when the module itself is what is imported."""
    known = modules()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in PACKAGES:
                    yield alias.name, ""
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module.partition(".")[0] not in PACKAGES:
                continue
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield (full, "") if full in known else (node.module, alias.name)


def imports_of(module: Module) -> set[str]:
    return {name for name, _ in imported(module)} - {module.name}


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """The nodes of one cycle, in order, or nothing."""
    done: set[str] = set()
    for root in sorted(graph):
        trail: list[str] = []
        stack: list[tuple[str, Iterator[str]]] = [(root, iter(sorted(graph[root])))]
        if root in done:
            continue
        trail.append(root)
        while stack:
            node, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                done.add(node)
                trail.pop()
                stack.pop()
            elif following in trail:
                return [*trail[trail.index(following) :], following]
            elif following not in done and following in graph:
                trail.append(following)
                stack.append((following, iter(sorted(graph[following]))))
    return []


def classes() -> Iterator[tuple[Module, ast.ClassDef]]:
    for module in modules().values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                yield module, node
