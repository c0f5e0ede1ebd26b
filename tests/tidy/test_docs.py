"""The documents are true: links, decisions, the publish path, the channel table, versions."""

from __future__ import annotations

import ast
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from broker.cluster.peers import channels
from tests.tidy.source_tree import ROOT

DOCUMENTS = sorted(
    path
    for top in (".", "docs", "docs/decisions", "raft", "deploy")
    for path in (ROOT / top).glob("*.md")
)
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")
FILE = re.compile(r"`((?:broker|raft|chaos|tests|docs|helm|deploy)/[\w./-]*)`")
HOP = re.compile(r"^\| \d+ \|.*?\| `([\w/]+\.pyx?)` \| `([\w.]+)` \|", re.MULTILINE)
CHANNEL = re.compile(r"^\| (\d+) \| ([\w ()-]+) \|", re.MULTILINE)

each_document = pytest.mark.parametrize(
    "path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)


@each_document
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in LINK.findall(path.read_text()):
        document = path.parent / target if target else path
        assert document.exists(), target
        if anchor:
            assert anchor in anchors(document.read_text()), f"{target}#{anchor}"


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


@each_document
def test_named_files_and_folders_exist(path: Path) -> None:
    if path.name == "CHANGELOG.md":  # history may name what is gone
        return
    for name in FILE.findall(path.read_text()):
        assert (ROOT / name).exists(), name


def test_every_decision_is_in_the_overview() -> None:
    overview = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        assert f"(decisions/{path.name})" in overview, f"no row for {path.name}"
        assert path.read_text().startswith(f"# {int(path.name[:4])}. "), f"{path.name}: number"


def test_every_hop_of_the_publish_path_exists() -> None:
    """The table in ARCHITECTURE.md names a file and a function (or Class.method) per hop."""
    hops = HOP.findall((ROOT / "docs" / "ARCHITECTURE.md").read_text())
    assert len(hops) >= 8
    for file, name in hops:
        assert name in defined_in(ROOT / file), f"{file} has no {name}"


def defined_in(path: Path) -> set[str]:
    if path.suffix == ".pyx":
        return set(re.findall(r"def (\w+)\(", path.read_text()))
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    found.add(f"{node.name}.{inner.name}")
    return found


def test_the_channel_table_is_complete() -> None:
    text = (ROOT / "docs" / "peer-protocol.md").read_text()
    documented = {int(number) for number, _ in CHANNEL.findall(text)}
    used = {value for name, value in vars(channels).items() if name.startswith("CHANNEL_")}
    assert used <= documented, f"not documented: {sorted(used - documented)}"


def test_every_dependency_has_a_tested_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in wanted}
    lock = (ROOT / "requirements.lock").read_text().lower().replace("_", "-")
    missing = {name for name in names if f"\n{name}==" not in lock}
    assert not missing, f"requirements.lock has no {sorted(missing)}"
