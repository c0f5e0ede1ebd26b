"""The conditions under which a node of a campaign runs: its wall clock and its flushes.

Owns: the file through which the campaign tells a running node about them.
May not touch: the node; altered_node.py does what the file says."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Conditions:
    clock_ahead_s: float = 0.0  # of the wall clock; below zero: behind
    flush_takes_s: float = 0.0  # longer than the disk needs
    flush_fails: bool = False  # with EIO

    @property
    def normal_flushes(self) -> bool:
        return not self.flush_takes_s and not self.flush_fails

    def save(self, path: Path) -> None:
        """In one step: a reader finds the old conditions or these."""
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(asdict(self)))
        os.replace(draft, path)

    @classmethod
    def load(cls, path: Path) -> Conditions:
        return cls(**json.loads(path.read_text()))


NORMAL = Conditions()
