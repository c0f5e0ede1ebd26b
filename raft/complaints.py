"""What peers do wrong, said once per peer and group.

Owns: which complaints were made. The caller counts the rest.
May not touch: groups, links.
Spec: a refusal gives one clear log line, however often it is repeated."""

from __future__ import annotations

import logging
from typing import Final

from raft.types import GroupId, NodeId

_log = logging.getLogger("raft.host")
_REMEMBERED_MAX: Final = 256  # then all are forgotten, and may be made again


class Complaints:
    def __init__(self) -> None:
        self._made: set[tuple[NodeId, GroupId, str]] = set()

    def once(self, sender: NodeId, group: GroupId, what: str) -> None:
        complaint = (sender, group, what)
        if complaint in self._made:
            return
        if len(self._made) >= _REMEMBERED_MAX:
            self._made.clear()
        self._made.add(complaint)
        _log.info("%s (from node %d, group %d)", what, sender, group)
