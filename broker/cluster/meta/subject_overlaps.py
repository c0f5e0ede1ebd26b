"""Checks whether a stream's subjects overlap those of another stream, before it is proposed.

Owns: an index of the captured subjects of each account in which this node was asked to create or
update a stream. It is derived from the table of assignments, and updated when it is used.
May not touch: the table; the check at apply (assignments.py), which compares with the streams that
are newer than this check.
The cost of a check does not grow with the number of streams, and it runs in steps, so that a list
of 100,000 subjects does not block the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial

from broker.cluster.meta.assignments import AssignmentTable
from broker.jetstream.config import StreamConfig
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.server.routing.fair_queue import Turns
from broker.subjects import STEP_ITEMS, PatternIndex, Steps

Subjects = tuple[str, ...]


@dataclass(slots=True)
class _Captured:
    """The subjects of one account's streams."""

    index: PatternIndex = field(default_factory=PatternIndex)
    held: dict[str, Subjects] = field(default_factory=dict)  # what the index has of each stream
    pending: dict[str, None] = field(default_factory=dict)  # streams that have changed since
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class SubjectOverlaps:
    """One per node."""

    assignments: AssignmentTable
    turns: Turns
    _accounts: dict[str, _Captured] = field(default_factory=dict)

    def start(self) -> None:
        self.assignments.on_changed = self._changed

    async def check(self, account: str, config: StreamConfig, connection: Hashable) -> int:
        """The meta index up to which no other stream of the account captures these subjects.
        Raises JetStreamError 10065 if one does. One check per account at a time."""
        captured = self._accounts.get(account)
        if captured is None:
            names = dict.fromkeys(self.assignments.names(account))
            captured = self._accounts[account] = _Captured(pending=names)
        async with captured.busy:
            steps = self._check(account, captured, config)
            return await self.turns.run(steps, account, connection)

    def _changed(self, account: str, name: str) -> None:
        captured = self._accounts.get(account)
        if captured is not None:
            captured.pending[name] = None

    def _check(self, account: str, captured: _Captured, config: StreamConfig) -> Steps[int]:
        while captured.pending:
            yield from self._catch_up(account, captured)
        checked = self.assignments.applied
        own = frozenset(captured.held.get(config.name, ()))
        for at, subject in enumerate(config.subjects):
            if at % STEP_ITEMS == 0:
                yield
            if subject in own:
                continue
            if (yield from captured.index.overlapping(subject.encode(), but=config.name)):
                raise JetStreamError(ErrCode.STREAM_SUBJECT_OVERLAP)
        return checked

    def _catch_up(self, account: str, captured: _Captured) -> Steps[None]:
        """Index the current subjects of the changed streams. All removals come before all
        additions: a subject may have moved from one stream to another."""
        present = {name: self._subjects(account, name) for name in captured.pending}
        before = {name: captured.held.get(name, ()) for name in present}
        captured.pending.clear()
        held = captured.held
        try:
            for name, subjects in present.items():
                kept = frozenset(subjects)
                gone = (subject for subject in before[name] if subject not in kept)
                yield from _each(gone, captured.index.discard)
            for name, subjects in present.items():
                yield from _each(subjects, partial(captured.index.add, owner=name))
        except GeneratorExit:
            # Cancelled half-way: the next check starts with what may have been indexed so far.
            held |= {name: (*before[name], *subjects) for name, subjects in present.items()}
            captured.pending |= dict.fromkeys(present)
            raise
        held |= present
        for name in [name for name, subjects in present.items() if not subjects]:
            del held[name]

    def _subjects(self, account: str, name: str) -> Subjects:
        assignment = self.assignments.get(account, name)
        return () if assignment is None else assignment.config.subjects


def _each(subjects: Iterable[str], act: Callable[[bytes], None]) -> Steps[None]:
    for at, subject in enumerate(subjects):
        if at % STEP_ITEMS == 0:
            yield
        act(subject.encode())
