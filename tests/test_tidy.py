"""The rules of the house that a linter does not know: layers, purity, docstrings, file length."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(p for top in ("broker", "raft", "chaos") for p in (ROOT / top).rglob("*.py"))
EVERYTHING = sorted(
    path
    for top in ("broker", "raft", "chaos", "tests", "pyspark_jetraft")
    for ending in ("py", "pyx", "pxd")
    for path in (ROOT / top).rglob(f"*.{ending}")
)
DOCUMENTS = sorted(
    path
    for top in (".", "docs", "docs/decisions", "raft", "deploy")
    for path in (ROOT / top).glob("*.md")
)
LINES_MAX = 500
FUNCTION_LINES_MAX = 60

# Which packages a package may import; "broker.x" stands for everything below it.
MAY_IMPORT = {
    "raft": {"raft"},
    "broker.wire": {"broker.wire"},
    "broker.subjects": {"broker.subjects", "broker.wire"},
    "broker.jetstream": {"broker.jetstream", "broker.subjects", "broker.wire", "broker.store"},
    "broker.store": {"broker.store", "broker.wire", "broker.subjects"},
    "broker.credentials": {"broker.credentials"},
    "broker.accounts": {
        "broker.accounts", "broker.subjects", "broker.config", "broker.credentials",
    },
    "broker.config": {"broker.config", "broker.subjects", "broker.credentials"},
    "broker.scan": {"broker.scan", "broker.store", "broker.wire", "broker.subjects"},
    "broker.spark": {
        "broker.spark", "broker.scan", "broker.store", "broker.wire", "broker.subjects",
    },
    "broker.server": {
        "broker.server", "broker.accounts", "broker.config", "broker.subjects", "broker.wire",
        "broker.credentials",
    },
    "broker.monitor": {
        "broker.monitor", "broker.server", "broker.accounts", "broker.config", "broker.subjects",
        "broker.wire",
    },
    "broker.cluster": {
        "broker.cluster", "broker.server", "broker.accounts", "broker.config", "broker.jetstream",
        "broker.scan", "broker.store", "broker.subjects", "broker.wire", "raft",
    },
    "chaos.sim": {"chaos.sim", "raft"},
}  # fmt: skip
PURE = (
    "broker.wire", "broker.subjects", "broker.jetstream", "broker.credentials", "raft.core",
    "raft.types", "broker.cluster.publish.outbox_core", "broker.cluster.publish.publish_batch",
    "broker.cluster.consumer_requests.waiting_for_leader",
    "broker.cluster.consumer_requests.waiting_pulls",
)  # fmt: skip
FORBIDDEN_IN_PURE = {"time", "random", "asyncio", "socket", "os", "logging", "threading", "secrets"}

# How a docstring names its specification; docs/DESIGN.md and docs/contract.md explain.
DESIGNED = re.compile(r"DESIGN sections? ((?:\d+(?:-|, | and )?)+)")
AGREED = re.compile(
    r"(core contract|JetStream sheet)(?: sections?)? ((?:\d+(?:\.\d+)?(?:-|, | and )?)+)"
)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Imported modules, except those that only the type checker sees."""
    tree = ast.parse(path.read_text())
    checking: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            checking.update(child for part in node.body for child in ast.walk(part))
    for node in ast.walk(tree):
        if node in checking:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_point_down(path: Path) -> None:
    name = module_name(path)
    rules = [allowed for package, allowed in MAY_IMPORT.items() if inside(name, package)]
    for imported in imports(path):
        if not inside(imported, "broker") and not inside(imported, "raft"):
            continue
        for allowed in rules:
            assert any(inside(imported, package) for package in allowed), (
                f"{name} imports {imported}"
            )


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_cores_read_no_clock_and_touch_no_world(path: Path) -> None:
    name = module_name(path)
    if name == "broker.wire":  # chooses the codec by one environment switch, nothing else
        return
    if any(inside(name, package) for package in PURE):
        touched = {imported.split(".")[0] for imported in imports(path)} & FORBIDDEN_IN_PURE
        assert not touched, f"{name} imports {sorted(touched)}"


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_modules_say_what_they_own(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_functions_fit_on_a_screen(path: Path) -> None:
    """But for constructors: wiring is as long as what it joins."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{path}: {node.name} has {lines} lines"


@pytest.mark.parametrize("path", EVERYTHING, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_short(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= LINES_MAX, f"{path}: what is the second idea in it?"


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_specifications_can_be_looked_up(path: Path) -> None:
    text = " ".join(path.read_text().split())
    design = (ROOT / "docs" / "DESIGN.md").read_text()
    for found in DESIGNED.finditer(text):
        for number in re.findall(r"\d+", found[1]):
            assert f"\n## {number}. " in design, f"{path}: DESIGN section {number}"
    agreed = (ROOT / "docs" / "contract.md").read_text()
    for found in AGREED.finditer(text):
        part = agreed.partition("## JetStream sheet")[0 if found[1] == "core contract" else 2]
        for number in re.findall(r"\d+(?:\.\d+)?", found[2]):
            assert re.search(rf"[| ]{re.escape(number)} ", part), f"{path}: {found[1]} {number}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in LINK.findall(path.read_text()):
        assert (path.parent / target).exists(), f"{path}: {target}"


def test_every_decision_is_in_the_overview() -> None:
    overview = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        assert f"(decisions/{path.name})" in overview, f"no row for {path.name}"
        assert path.read_text().startswith(f"# {int(path.name[:4])}. "), f"{path.name}: number"


def test_every_dependency_has_a_version_that_was_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in wanted}
    lock = (ROOT / "requirements.lock").read_text().lower().replace("_", "-")
    missing = {name for name in names if f"\n{name}==" not in lock}
    assert not missing, f"requirements.lock has no {sorted(missing)}"
