"""Finds the oldest rows of a subject, or of many, before they are removed; in steps if needed.

Owns: which rows these are, and the order in which consumers are notified of them.
May not touch: anything in the store; removal.py removes the rows.
Spec: NATS JetStream stream configuration, max_msgs_per_subject."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain, islice

from pyroaring import BitMap64

from broker.store.block.codec import Rows
from broker.store.search import ranges, row_at, without_deleted
from broker.store.segments import Run, Segment, Segments, View
from broker.subjects import Steps

FEW_STRETCHES = 16  # more ranges are handled by one bitmap operation
SUBJECTS_PER_STEP = 2048  # subjects looked up, or sorted into the journal, in one step

Stretch = tuple[int, int]  # a range of rows (first, last + 1), or of sequences (first, last)


@dataclass(slots=True)
class PlannedRows:
    segment: Segment
    rows: int  # rows of the segment at the time of the search
    stretches: list[Stretch]


@dataclass(slots=True)
class OldestRows:
    """What is to be removed. Valid until the next message is stored or removed; a compaction may
    still rewrite a segment (`holds`)."""

    parts: list[PlannedRows] = field(default_factory=list)
    journal: list[Stretch] = field(default_factory=list)  # sequences, as reported to consumers

    def holds(self, segments: Segments) -> bool:
        """Whether no segment was rewritten."""
        return all(part.segment.rows == part.rows for part in self.parts) and all(
            segments.all[segments.at(part.segment.first_seq)] is part.segment for part in self.parts
        )


def find_oldest(segments: Segments, left: dict[bytes, int], *, tracking: bool) -> Steps[OldestRows]:
    """Find the given number of oldest messages of each subject, in one pass over the blocks.
    Empties the dict. The journal is the same as if the subjects were removed one after the other,
    in the order of the dict."""
    found = OldestRows()
    taken: dict[bytes, list[Stretch]] = {}
    for segment in list(segments.all) if left else ():
        view = segments.view(segment)
        runs = _oldest_in(segment, view, left, floor=segments.floor)
        if runs:
            stretches = [(begin, end) for _, begin, end in runs]
            found.parts.append(PlannedRows(segment, segment.rows, stretches))
        for subject, begin, end in runs if tracking else ():
            taken.setdefault(subject, []).extend(ranges(view.rows, begin, end))
        if not left:
            break
        yield
    noted = 0
    for subject in (yield from _sorted(taken)):
        removed = taken.pop(subject)
        for first, last in removed:
            note_range(found.journal, first, last)
        noted += len(removed)
        if noted >= SUBJECTS_PER_STEP:
            noted = 0
            yield
    return found


def _sorted(subjects: Collection[bytes]) -> Steps[Iterator[bytes]]:
    """All subjects in order. Each step sorts some of them; the iterator merges the parts."""
    parts: list[list[bytes]] = []
    rest = iter(subjects)
    while part := sorted(islice(rest, SUBJECTS_PER_STEP)):
        parts.append(part)
        yield
    return merge(*parts) if len(parts) > 1 else iter(parts[0] if parts else ())


def _oldest_in(segment: Segment, view: View, left: dict[bytes, int], *, floor: int) -> list[Run]:
    """Stored rows of these subjects, at most `left` of each. Reduces `left` to what is still
    missing."""
    first_row = row_at(segment, view.rows, floor)
    found: list[Run] = []
    for subject, start, end in view.runs:
        count = left.get(subject)
        if count is None or end <= first_row:
            continue
        begin = max(start, first_row)
        whole = segment.deleted is None
        live = ((begin, end),) if whole else without_deleted(segment, view.rows, begin, end)
        for low, high in live:
            stop = high if high - low <= count else low + count
            found.append((subject, low, stop))
            count -= stop - low
            if not count:
                break
        if count:
            left[subject] = count
        else:
            del left[subject]
    return found


def stored_of(segment: Segment, rows: Rows, stretches: list[Stretch]) -> Iterable[Stretch]:
    """The stored rows of these ranges, which are not below the floor."""
    deleted = segment.deleted
    if deleted is None:
        return stretches
    if len(stretches) <= FEW_STRETCHES:
        return chain.from_iterable(
            without_deleted(segment, rows, begin, end) for begin, end in stretches if begin < end
        )
    wanted = BitMap64(rows.seqs_of(stretches))
    if wanted.isdisjoint(deleted):  # those of other subjects were removed
        return stretches
    stored = wanted - deleted
    if segment.contiguous:
        found: Iterable[int] = (seq - segment.first_seq for seq in stored)
    else:
        found = map(rows.index_of, stored)
    return ((row, row + 1) for row in found)


def first_rows(stretches: Iterable[Stretch], limit: int) -> list[Stretch]:
    """At most `limit` rows of these ranges, of which the first may be empty."""
    if (
        isinstance(stretches, list)
        and stretches
        and stretches[0][0] < stretches[0][1]
        and sum([end - begin for begin, end in stretches]) <= limit
    ):
        return stretches
    found: list[Stretch] = []
    for begin, end in stretches:
        if limit <= end - begin:
            found.append((begin, begin + limit))
            break
        if begin < end:
            found.append((begin, end))
            limit -= end - begin
    return found


def note_range(journal: list[Stretch], first: int, last: int) -> None:
    """Consecutive removals become one range. Consumers on every replica act on the journal, so it
    must not depend on how blocks are cut."""
    if journal and journal[-1][1] == first - 1:
        journal[-1] = (journal[-1][0], last)
    else:
        journal.append((first, last))
