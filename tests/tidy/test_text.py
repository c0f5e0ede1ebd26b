"""Rules for every file: docstrings, length, names, references to files that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

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
OTHER_FILES = [path for path in ALL_FILES if path.parent.name != "tidy"]  # these state the rules
MENTIONED_FILE = re.compile(r"(?<![\w./*<-])((?:[\w.-]+/)*[a-z_][a-z0-9_]*\.pyx?)\b")
MENTIONED_DOCUMENT = re.compile(r"docs/[\w./-]*\w|\braft/[A-Z]+\.md")
# docs/X.md, "One title" and "Another title"; raft/DIVERGENCE.md, "First cell of a table row"
CITED_SECTIONS = re.compile(r'((?:docs|raft)/[\w./-]+\.md), ((?:"[^"]+"(?:, and |, | and )?)+)')
SECTION = re.compile(r"^(?:#+ |\| )([^|\n]+?)(?: \|.*)?$", re.MULTILINE)
CITED_DECISION = re.compile(r"\bdecision (?:record )?(\d+)\b", re.IGNORECASE)
CITED_SHEET = re.compile(r"core contract|JetStream sheet|DESIGN sections? \d")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_cores_read_no_clock_and_do_no_io() -> None:
    # broker.wire reads the one environment switch that selects the codec
    cores = [
        module
        for module in modules().values()
        if module.name != "broker.wire"
        and any(module.name == core or module.name.startswith(core + ".") for core in CORES)
    ]
    found = {module.name: top_imports(module) & FORBIDDEN_IN_CORES for module in cores}
    assert not {name: names for name, names in found.items() if names}


def top_imports(module: Module) -> set[str]:
    """The first part of the name of every module that it imports."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


def test_the_named_cores_exist() -> None:
    assert not [core for core in CORES if core not in modules()]


def test_modules_have_a_docstring() -> None:
    assert not [m.name for m in modules().values() if not ast.get_docstring(m.tree)]


def test_module_names_can_be_searched_for() -> None:
    assert not [name for name in modules() if name.rpartition(".")[2] in VAGUE]


def test_functions_fit_on_a_screen() -> None:
    """Except constructors: wiring is as long as what it connects."""
    found = {
        f"{module.name}.{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__"
    }
    assert not {name: lines for name, lines in found.items() if lines > FUNCTION_LINES_MAX}


def test_files_stay_short() -> None:
    found = {relative(path): path.read_text().count("\n") for path in ALL_FILES}
    long = {name: lines for name, lines in found.items() if lines > LINES_MAX}
    assert not long, "what is the second idea in it?"


def test_mentioned_files_exist() -> None:
    """A docstring or comment that names a file names one that is there."""
    assert not [
        (relative(path), name)
        for path in OTHER_FILES
        for name in MENTIONED_FILE.findall("\n".join(prose(path)))
        if not exists(name, path)
    ]


def test_cited_documents_and_sections_exist() -> None:
    """`docs/X.md`, `docs/X.md, "Title"` and `decision N`, in docstrings and comments."""
    wrong: list[tuple[str, str]] = []
    for path in OTHER_FILES:
        text = " ".join(" ".join(prose(path)).split())
        found = [name for name in MENTIONED_DOCUMENT.findall(text) if not (ROOT / name).exists()]
        for document, titles in CITED_SECTIONS.findall(text):
            sections = SECTION.findall((ROOT / document).read_text())
            found.extend(set(re.findall(r'"([^"]+)"', titles)) - set(sections))
        for number in CITED_DECISION.findall(text):
            if not list((ROOT / "docs/decisions").glob(f"{int(number):04}-*.md")):
                found.append(f"decision {number}")
        wrong.extend((relative(path), name) for name in found)
    assert not wrong


def test_no_citation_of_documents_that_are_not_here() -> None:
    texts = {relative(path): path.read_text() for path in OTHER_FILES}
    assert not [name for name, text in texts.items() if CITED_SHEET.search(" ".join(text.split()))]
    reading = [name for name, text in texts.items() if '"shared"' in text]
    assert not reading, "tests must not read outside the repository"


@cache
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
    top = mentioned_in.relative_to(ROOT).parts[0]
    return any(path.endswith(f"/{name}") for path in files_below(top))


@cache
def files_below(top: str) -> list[str]:
    return [str(path) for path in (ROOT / top).rglob("*.py*")]
