"""The conditions under which a node of a campaign runs: its wall clock and its flushes.

Owns: the file through which the campaign passes them to a running node.
May not touch: the node; altered_node.py applies them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Conditions:
    clock_ahead_s: float = 0.0  # of the wall clock; below zero: behind
    flush_takes_s: float = 0.0  # added to the time of every flush
    flush_fails: bool = False  # with EIO

    @property
    def normal_flushes(self) -> bool:
        return not self.flush_takes_s and not self.flush_fails

    def save(self, path: Path) -> None:
        """Atomic: a reader finds the old conditions or the new ones."""
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(asdict(self)))
        os.replace(draft, path)

    @classmethod
    def load(cls, path: Path) -> Conditions:
        return cls(**json.loads(path.read_text()))


NORMAL = Conditions()
