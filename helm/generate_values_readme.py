"""The table of values in helm/jetraft/README.md, made from values.yaml and its comments.

Owns: that file. Run `python helm/generate_values_readme.py` after a change of values.yaml.
May not touch: the chart."""

from __future__ import annotations

import re
from pathlib import Path

CHART = Path(__file__).resolve().parent / "jetraft"
HEAD = """\
# Values of the chart

Made from [values.yaml](values.yaml) by `helm/generate_values_readme.py`; a test keeps it current.
How to deploy: [deploy/README.md](../../deploy/README.md).

| value | default | meaning |
| --- | --- | --- |
"""
ENTRY = re.compile(r"^( *)([\w]+):(?: (.*))?$")


def rows(text: str) -> list[tuple[str, str, str]]:
    """(name, default, meaning) of every value that has a comment above it."""
    found: list[tuple[str, str, str]] = []
    path: list[str] = []
    comment: list[str] = []
    below = ""  # a documented block: its lines are its default
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped.removeprefix("#").strip())
            continue
        entry = ENTRY.match(line)
        if entry is None:
            comment = []
            continue
        depth = len(entry[1]) // 2
        path = [*path[:depth], entry[2]]
        name = ".".join(path)
        if comment and not (below and name.startswith(below)):
            default = (entry[3] or "").strip()
            found.append((name, default, " ".join(comment)))
            below = "" if default else f"{name}."
        comment = []
    return found


def document() -> str:
    lines = [
        f"| `{name}` | {f'`{default}`' if default else 'see values.yaml'} | {_cell(meaning)} |"
        for name, default, meaning in rows((CHART / "values.yaml").read_text())
    ]
    return HEAD + "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    (CHART / "README.md").write_text(document())
