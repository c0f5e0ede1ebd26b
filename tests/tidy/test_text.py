"""Rules for every file: docstrings, length, names, references to files that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.tidy.source_tree import ROOT, Module, modules

LINES_MAX = 500
FUNCTION_LINES_MAX = 60
FORBIDDEN_IN_CORES = {
    "time",
    "random",
    "asyncio",
    "socket",
    "os",
    "logging",
    "threading",
    "secrets",
}
CORES = (
    "broker.wire", "broker.subjects", "broker.jetstream", "broker.credentials", "raft.core",
    "raft.types", "raft.clock.agreement", "raft.clock.cluster_time", "raft.host.rounds",
    "broker.cluster.publish.outbox_core",
    "broker.cluster.publish.publish_batch", "broker.cluster.publish.publish_answers",
    "broker.cluster.consumer_requests.waiting_for_leader",
    "broker.cluster.consumer_requests.waiting_pulls", "broker.cluster.replica.reconfiguration",
)  # fmt: skip
# Module names that say nothing to somebody who searches.
VAGUE = {
    "util", "utils", "helper", "helpers", "misc", "common", "manager", "base", "errands", "notes",
    "holding", "vigil", "room", "pace", "complaints", "garbage", "waiting", "single", "alone",
    "desk", "firing", "turns", "entrance", "hooks", "known", "about", "assets",
}  # fmt: skip
ALL_FILES = sorted(
    path
    for top in ("broker", "raft", "chaos", "tests", "pyspark_jetraft")
    for ending in ("py", "pyx", "pxd")
    for path in (ROOT / top).rglob(f"*.{ending}")
)
MENTIONED_FILE = re.compile(r"(?<![\w./*<-])((?:[\w.-]+/)*[a-z_][a-z0-9_]*\.pyx?)\b")
MENTIONED_DOCUMENT = re.compile(r"docs/[\w./-]*\w|\braft/[A-Z]+\.md")
# docs/X.md, "One title" and "Another title"; raft/DIVERGENCE.md, "First cell of a table row"
CITED_SECTIONS = re.compile(r'((?:docs|raft)/[\w./-]+\.md), ((?:"[^"]+"(?:, and |, | and )?)+)')
SECTION = re.compile(r"^(?:#+ |\| )([^|\n]+?)(?: \|.*)?$", re.MULTILINE)
CITED_DECISION = re.compile(r"\bdecision (?:record )?(\d+)\b", re.IGNORECASE)
CITED_SHEET = re.compile(r"core contract|JetStream sheet|DESIGN sections? \d")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


each_module = pytest.mark.parametrize("module", modules().values(), ids=lambda one: one.name)
each_file = pytest.mark.parametrize("path", ALL_FILES, ids=relative)


@each_module
def test_cores_read_no_clock_and_do_no_io(module: Module) -> None:
    if module.name == "broker.wire":  # reads the one environment switch that selects the codec
        return
    if any(module.name == core or module.name.startswith(core + ".") for core in CORES):
        found = {
            name.split(".")[0]
            for node in ast.walk(module.tree)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert not found & FORBIDDEN_IN_CORES


def test_the_named_cores_exist() -> None:
    assert not [core for core in CORES if core not in modules()]


@each_module
def test_modules_have_a_docstring(module: Module) -> None:
    assert ast.get_docstring(module.tree)


@each_module
def test_module_names_can_be_searched_for(module: Module) -> None:
    assert module.name.rpartition(".")[2] not in VAGUE


@each_module
def test_functions_fit_on_a_screen(module: Module) -> None:
    """Except constructors: wiring is as long as what it connects."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


@each_file
def test_files_stay_short(path: Path) -> None:
    assert path.read_text().count("\n") <= LINES_MAX, "what is the second idea in it?"


@each_file
def test_mentioned_files_exist(path: Path) -> None:
    """A docstring or comment that names a file names one that is there."""
    if path.parent.name == "tidy":
        return
    text = "\n".join(prose(path))
    assert not [name for name in MENTIONED_FILE.findall(text) if not exists(name, path)]


@each_file
def test_cited_documents_and_sections_exist(path: Path) -> None:
    """`docs/X.md`, `docs/X.md, "Title"` and `decision N`, in docstrings and comments."""
    if path.parent.name == "tidy":
        return
    text = " ".join(" ".join(prose(path)).split())
    assert not [name for name in MENTIONED_DOCUMENT.findall(text) if not (ROOT / name).exists()]
    for document, titles in CITED_SECTIONS.findall(text):
        sections = SECTION.findall((ROOT / document).read_text())
        assert not set(re.findall(r'"([^"]+)"', titles)) - set(sections)
    for number in CITED_DECISION.findall(text):
        assert list((ROOT / "docs/decisions").glob(f"{int(number):04}-*.md")), number


@each_file
def test_no_citation_of_documents_that_are_not_here(path: Path) -> None:
    if path.parent.name == "tidy":
        return
    text = path.read_text()
    assert not CITED_SHEET.search(" ".join(text.split()))
    assert '"shared"' not in text, "tests must not read outside the repository"


def prose(path: Path) -> list[str]:
    """Docstrings and comments."""
    text = path.read_text()
    found = re.findall(r"(?:^|\s)#\s(.*)$", text, re.MULTILINE)
    if path.suffix != ".py":
        return [*found, *re.findall(r'"""(.*?)"""', text, re.DOTALL)]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(ast.get_docstring(node, clean=False) or "")
    return found


def exists(name: str, mentioned_in: Path) -> bool:
    """From the root, from a package above the file, or anywhere below the file's top package."""
    folder = mentioned_in.parent
    while folder != ROOT.parent:
        if (folder / name).exists():
            return True
        folder = folder.parent
    top = ROOT / mentioned_in.relative_to(ROOT).parts[0]
    return any(str(path).endswith(f"/{name}") for path in top.rglob(Path(name).name))
