"""The previous version, for upgrades: what its configuration must and must not contain.

Owns: the feature level that holds a cluster back.
May not touch: processes.
Spec: docs/decisions/0022-upgrades.md."""

from __future__ import annotations

import re
from pathlib import Path

LEVEL = re.compile(r"^NEWEST_LEVEL\b.*=\s*(\d+)", re.MULTILINE)


def held_back(previous: Path | None) -> str:
    """For the `jetstream` block: a cluster that will be downgraded must stay on the feature level
    of the previous version."""
    if previous is None:
        return ""
    found = LEVEL.search(_levels(previous).read_text()) if _levels(previous).exists() else None
    return f"feature_level: {found[1] if found else 0}"


def readable_by(previous: Path, config: str) -> str:
    """The configuration in a form that the previous version can read: 0.1 had no levels."""
    return config if _levels(previous).exists() else config.replace(held_back(previous), "")


def _levels(previous: Path) -> Path:
    return previous / "broker" / "cluster" / "meta" / "feature_level.py"
