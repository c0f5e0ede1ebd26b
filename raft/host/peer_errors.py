"""What peers and callers do wrong: counted, and said once per peer and group.

Owns: the counts, and which complaints were made.
May not touch: groups, links.
Spec: a refusal gives one clear log line, however often it is repeated. A message for a group that
is not here is normal while nodes start and groups come and go: that line is for debugging, and
only if they keep coming is there one for everybody."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from raft.types import GroupId, NodeId

_log = logging.getLogger("raft.host")
_REMEMBERED_MAX: Final = 256  # then all are forgotten, and may be made again
STRAYS_NORMAL: Final = 300  # of one peer for one group: half a minute of heartbeats


class PeerErrors:
    def __init__(self) -> None:
        self.refused_messages = self.stray_messages = self.refused_entries = 0
        self._strays: Counter[tuple[NodeId, GroupId]] = Counter()
        self._made: set[tuple[NodeId, GroupId, str]] = set()

    def stray(self, sender: NodeId, group: GroupId) -> None:
        self.stray_messages += 1
        if len(self._strays) >= _REMEMBERED_MAX:
            self._strays.clear()
        self._strays[sender, group] += 1
        if self._strays[sender, group] <= STRAYS_NORMAL:
            self._once(sender, group, "a message for a group that is not here", logging.DEBUG)
        else:
            self._once(sender, group, "messages for a group that is not here keep coming")

    def no_member(self, sender: NodeId, group: GroupId) -> None:
        self.refused_messages += 1
        self._once(sender, group, "a message of a node that is no member", logging.INFO)

    def entry_too_large(self, node: NodeId, group: GroupId, size: int) -> None:
        self.refused_entries += 1
        self._once(node, group, f"an entry of {size} bytes is refused, it is too large")

    def _once(
        self, sender: NodeId, group: GroupId, what: str, level: int = logging.WARNING
    ) -> None:
        complaint = (sender, group, what)
        if complaint in self._made:
            return
        if len(self._made) >= _REMEMBERED_MAX:
            self._made.clear()
        self._made.add(complaint)
        _log.log(level, "%s (from node %d, group %d)", what, sender, group)
