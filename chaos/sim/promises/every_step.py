"""Promises of consensus, checked at every step of every node: one leader per term, one history.

Owns: who led which term, and which entry every index of every group was committed with.
May not touch: the nodes. Two functions of the real host are wrapped during a run, without changing
them.
Spec: Raft, figure 3: election safety, state machine safety. The observer keeps what was seen before
crashes, so that a committed entry that changes is detected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chaos.sim.world.replacement import Replacement
from raft.core.messages import Entry
from raft.core.ready import Ready
from raft.host.applier import Applier
from raft.host.group import Group
from raft.types import GroupId, Index, Role, Term


class ConsensusObserver:
    """`node` names the node that runs at this moment; `broken` gets the facts."""

    def __init__(self, node: Callable[[], str], broken: Callable[[str], None]) -> None:
        self._node = node
        self._broken = broken
        self._leaders: dict[tuple[GroupId, Term], str] = {}
        self._entries: dict[tuple[GroupId, Index], tuple[Term, int, str]] = {}

    def replacements(self) -> tuple[Replacement, ...]:
        return (
            Replacement(Applier, "apply", self._around_apply),
            Replacement(Applier, "_apply_entries", self._around_entries),
        )

    def _around_apply(self, original: Any) -> Any:
        def apply(applier: Applier, group: Group, ready: Ready) -> Any:
            if ready.role is Role.LEADER:
                self._leads(group.id, ready.term)
            return original(applier, group, ready)

        return apply

    def _around_entries(self, original: Any) -> Any:
        def apply_entries(applier: Applier, group: Group, committed: list[Entry]) -> None:
            if group.persistent:
                self._committed(group.id, committed)
            original(applier, group, committed)

        return apply_entries

    def _leads(self, group: GroupId, term: Term) -> None:
        node = self._node()
        leader = self._leaders.setdefault((group, term), node)
        if leader != node:
            self._broken(f"group {group} has two leaders in term {term}: {leader} and {node}")

    def _committed(self, group: GroupId, entries: Sequence[Entry]) -> None:
        node = self._node()
        for entry in entries:
            seen = (entry.term, hash(entry.data), node)
            first = self._entries.setdefault((group, entry.index), seen)
            if first[:2] != seen[:2]:
                self._broken(
                    f"group {group} has two histories: index {entry.index} is of term {first[0]} "
                    f"on {first[2]} and of term {entry.term} on {node}, or its data differ"
                )
