"""The messages of one stream: appended at the end, removed anywhere, found by sequence or subject.

Owns: the segments, the subject index and the counters of a stream.
May not touch: clocks, limits, permissions; the caller decides what is stored and removed.
Spec: NATS JetStream stream state (messages, bytes, first_seq, last_seq), purge and delete.

Times and sequences of a stream only increase. The cost of an append depends on its own rows and
distinct subjects, not on what is already stored. Removing one sequence costs one row; dropping from
the front costs the dropped rows, or one step per whole block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from broker.store import search
from broker.store.block.codec import Block, BlockBuilder, Rows, stamped
from broker.store.block.columns import FILE_SIZING, Sizing
from broker.store.deadlines import Deadlines
from broker.store.index import SubjectIndex
from broker.store.index.subject_filter import SubjectFilter, counted, matching_parts
from broker.store.last_matches import LastMatches
from broker.store.memory_db import MemoryDb
from broker.store.oldest_rows import OldestRows
from broker.store.removal import PurgePart, Removal
from broker.store.segments import WHOLE_BYTES, BlockCache, Segment, Segments
from broker.store.state_keys import BlockFiles
from broker.subjects import Steps, finish, has_wildcard

TRAIL_MAX = 4096  # messages per subject with a trail; larger subjects are searched in blocks
FILTERS_KEPT_MAX = 256
SEGMENTS_PER_TAKE_MAX = 4  # blocks read in one call, a millisecond each
NAMES_PER_TAKE_MAX = 8192  # subjects compared in one call: a few milliseconds
FEW_SUBJECTS = 64  # a purge of at most this many subjects is not split into parts
PURGE_SPAN = 8192  # sequences that one part of a purge covers
_EVERYTHING = SubjectFilter(())


@dataclass(slots=True)
class StoredMessage:
    seq: int
    time_ns: int
    subject: bytes
    headers: bytes
    data: bytes


class MessageStore:
    """While nothing is stored, `first_seq` is the next sequence."""

    def __init__(
        self,
        files: BlockFiles | None = None,
        *,
        sizing: Sizing = FILE_SIZING,
        cache: BlockCache | None = None,
    ) -> None:
        self.sizing = sizing
        self.segments = Segments(files or MemoryDb().files(0), cache or BlockCache())
        self.index = SubjectIndex()
        self.deadlines = Deadlines()  # filled by the caller; no message expires by itself
        self.last_seq = 0
        self.last_time = 0  # of the last message ever stored, even if it was removed since
        self.messages = 0
        self.bytes = 0
        self.trail_max = 0  # subjects with at most this many messages have a trail; 0: none has
        self._removal = Removal(self)
        self._filters: dict[tuple[bytes, ...], SubjectFilter] = {}
        self.last_matches = LastMatches(self)

    # -- numbers ----------------------------------------------------------------------------------

    @property
    def first_seq(self) -> int:
        """Sequence of the oldest stored message; last_seq + 1 if there is none."""
        return self.segments.floor

    @property
    def first_time(self) -> int:
        """Time of the oldest stored message; 0 if there is none."""
        found = self.rows(self.first_seq)
        return found[0].time(found[1]) if found else 0

    @property
    def num_subjects(self) -> int:
        return len(self.index)

    @property
    def num_deleted(self) -> int:
        """Sequences between first and last that are not stored, skipped ones included."""
        return self.last_seq + 1 - self.first_seq - self.messages

    # -- appending --------------------------------------------------------------------------------

    def append(self, subject: bytes, headers: bytes, data: bytes, *, time_ns: int) -> int:
        seq = self.last_seq + 1
        segment = self.segments.growing(seq)
        builder = self.segments.builder
        builder.append(subject, headers, data, time_ns=time_ns, seq=seq)
        view = segment.view
        if view is not None and view.tracked:
            view.grown([(subject, 0, 1)], builder.rows - 1)
        size = self.sizing.of(subject, headers, data)
        self._grew(segment, count=1, size=size, last_seq=seq, last_time=time_ns)
        entry = self.index.added(subject, count=1, first=seq, last=seq)
        if self.trail_max:
            entry.trail_grew(1, (seq, size))
        self.segments.seal_if_full()
        return seq

    def append_block(self, block: Block, *, time_ns: int) -> int:
        """Append all rows of the block, numbered from last_seq + 1. Returns the first sequence."""
        first = self.last_seq + 1
        if block.nbytes >= WHOLE_BYTES and self.segments.tail is None and not block.first_seq:
            raw = stamped(block, time_ns=time_ns, first_seq=first)
            self._appended(self.segments.add_whole(raw), block, first, time_ns)
        elif block.rows:
            segment = self.segments.growing(first)
            builder = self.segments.builder
            offset = builder.rows
            builder.append_block(block, time_ns=time_ns, first_seq=first)
            view = segment.view
            if view is not None and view.tracked:
                view.grown(block.subject_runs(), offset)
            self._appended(segment, block, first, time_ns)
            self.segments.seal_if_full()
        return first

    def _appended(self, segment: Segment, block: Block, first: int, time_ns: int) -> None:
        last, size = first + block.rows - 1, self.sizing.of_block(block)
        self._grew(segment, count=block.rows, size=size, last_seq=last, last_time=time_ns)
        self._index_rows(block, first_seq=first)

    def append_sequenced(self, block: Block) -> int:
        """Append rows that carry their sequences and times (mirrors). Gaps become skipped
        sequences; rows at or below last_seq are ignored. Returns how many rows were stored."""
        repeated = block.first_at_or_after(self.last_seq + 1)
        if repeated == block.rows:
            return 0
        if repeated:
            fresh = BlockBuilder(block.seq(repeated))
            fresh.append_block(block, skip=set(range(repeated)))
            block = Block(fresh.build(seal=False), verify=False)
        if not self.messages:
            self.skip_to(block.first_seq)
        segment = self.segments.growing(block.first_seq)
        builder = self.segments.builder
        offset = builder.rows
        builder.append_block(block)
        view = segment.view
        if view is not None and view.tracked:
            view.grown(block.subject_runs(), offset)
        self._grew(
            segment,
            count=block.rows,
            size=self.sizing.of_block(block),
            last_seq=block.last_seq,
            last_time=block.time(block.rows - 1),
        )
        segment.max_time = max(segment.max_time, block.max_time)
        self._index_rows(block)
        self.segments.seal_if_full()
        return block.rows

    def _index_rows(self, block: Block, *, first_seq: int = 0) -> None:
        self.index.add_rows(block, first_seq=first_seq)
        if self.trail_max:
            sizing = self.sizing
            self.index.trail_rows(
                block,
                per_message=sizing.per_message,
                per_header=sizing.per_header,
                first_seq=first_seq,
            )

    def skip_to(self, seq: int) -> None:
        """The next message gets at least this sequence; the ones in between stay unused."""
        if seq - 1 <= self.last_seq:
            return
        self.last_seq = seq - 1
        if not self.messages:
            self._removal.set_floor(seq)

    def advance_time(self, time_ns: int) -> None:
        """A message of this time was stored before (restore): later ones must not be older."""
        self.last_time = max(self.last_time, time_ns)

    def _grew(
        self, segment: Segment, *, count: int, size: int, last_seq: int, last_time: int
    ) -> None:
        segment.rows += count
        segment.live += count
        segment.live_size += size
        segment.last_seq = last_seq
        segment.max_time = max(segment.max_time, last_time)
        segment.written = False
        self.messages += count
        self.bytes += size
        self.last_seq = last_seq
        self.last_time = last_time

    # -- removing ---------------------------------------------------------------------------------

    def remove(self, seq: int) -> bool:
        """False if it is not stored."""
        return self._removal.one(seq)

    def remove_many(self, seqs: Iterable[int]) -> int:
        """Like `remove`, for ascending sequences without repeats. Returns how many were stored."""
        return self._removal.many(seqs)

    def erase(self, seq: int) -> bool:
        """Remove the message and overwrite its headers and data. Older copies in the database and
        in the log are the caller's task (broker/cluster/replica/state_flush.py)."""
        return self._removal.erase(seq)

    def drop_before(self, seq: int) -> int:
        """Remove every message below `seq`. Returns how many were removed."""
        return self._removal.before(min(seq, self.last_seq + 1))

    def purge(self, subject: bytes | None = None, up_to: int | None = None, keep: int = 0) -> int:
        """Remove messages (of a subject or pattern) below `up_to`, except the newest `keep`.
        Returns how many. If `up_to` is above the last sequence, the next message gets `up_to`."""
        if subject and up_to is None and not has_wildcard(subject):
            return self.drop_oldest_of(subject, keep)
        if subject and subject != b">":
            part = self.purge_part(subject, up_to, keep)
            count = part.count
            while part.next_seq:
                part = self.purge_part(subject, part.bound, start=part.next_seq, left=part.left)
                count += part.count
            return count
        bound = self.last_seq + 1 if up_to is None else min(up_to, self.last_seq + 1)
        if keep:
            bound = min(bound, search.nth_newest(self.segments, _EVERYTHING, keep))
        count = self._removal.before(bound)
        if up_to is not None and not self.messages:
            self.skip_to(up_to)
        return count

    def purge_part(
        self,
        subject: bytes,
        up_to: int | None = None,
        keep: int = 0,
        *,
        start: int = 0,
        left: int = 0,
        subjects: Sequence[bytes] = (),
    ) -> PurgePart:
        """Like `purge` for a subject or pattern, in parts of bounded work. A few `subjects` are
        purged in one part; if they are not given, the index finds them. Otherwise a part covers a
        range of sequences, so that every replica removes the same messages, however its blocks
        are cut."""
        bound = self.last_seq + 1 if up_to is None else min(up_to, self.last_seq + 1)
        if start == 0:
            subjects = tuple(subjects or self.index.matching(subject))
            left = sum(entry.count for entry in map(self.index.get, subjects) if entry is not None)
            if left <= keep:
                return PurgePart(0, 0, bound, 0)
            few = len(subjects) <= FEW_SUBJECTS
            wanted = SubjectFilter(subjects) if few else self._filter((subject,))
            if keep:
                bound = min(bound, search.nth_newest(self.segments, wanted, keep))
                left -= keep
            if few:
                return PurgePart(self._removal.matching(wanted, bound), 0, bound, 0)
            start = self.first_seq
        end = min(bound, start + PURGE_SPAN)
        count = self._removal.matching(self._filter((subject,)), end, start=start)
        more = count < left and end < bound
        return PurgePart(count, end if more else 0, bound, left - count)

    def drop_oldest_of(self, subject: bytes, keep: int) -> int:
        """Keep only the newest `keep` messages of a subject: max_msgs_per_subject."""
        entry = self.index.get(subject)
        if entry is None or entry.count <= keep:
            return 0
        excess = entry.count - keep
        self._removal.oldest_of(subject, entry, excess)
        return excess

    def drop_oldest_of_many(self, excess: dict[bytes, int]) -> None:
        """Drop the given number of oldest messages of each subject, in the order of the dict, in
        one pass over the blocks. Empties the dict."""
        self._removal.oldest_of_many(excess)

    def find_oldest_of_many(self, excess: dict[bytes, int]) -> Steps[OldestRows]:
        """The search of `drop_oldest_of_many`, in steps. Nothing may be stored or removed until
        `drop_found`."""
        return self._removal.plan(excess)

    def drop_found(self, found: OldestRows) -> bool:
        """Remove what was found; False if it is no longer valid."""
        return self._removal.planned(found)

    def remember_trails(self, count_max: int) -> None:
        """Prepare for `drop_oldest_of` with this limit: keep trails of subjects. 0: keep none."""
        self.trail_max = count_max if 0 < count_max <= TRAIL_MAX else 0
        if not self.trail_max:
            self.index.forget_trails()

    def drop_oldest(self, count: int) -> None:
        """Remove the `count` oldest messages: max_msgs."""
        self._removal.before(search.nth_oldest(self.segments, count + 1) or self.last_seq + 1)

    def drop_to_size(self, bytes_max: int) -> None:
        """Remove the oldest messages until at most `bytes_max` are stored: max_bytes."""
        excess = self.bytes - bytes_max
        if excess > 0:
            bound = search.behind_size(self.segments, excess, self.sizing)
            self._removal.before(bound or self.last_seq + 1)

    def track_removals(self, *, on: bool) -> None:
        """Whether removals are recorded for `take_removals`."""
        self._removal.tracking = on
        self._removal.journal.clear()

    def take_removals(self) -> list[tuple[int, int]]:
        """Inclusive ranges removed since the last call, in order of removal."""
        return self._removal.take_journal()

    # -- one message ------------------------------------------------------------------------------

    def rows(self, seq: int) -> tuple[Rows, int] | None:
        """Block and row of the message `seq`, None if it is not stored."""
        segments = self.segments
        position = segments.at(seq)
        if position < 0 or seq < segments.floor:
            return None
        segment = segments.all[position]
        if seq > segment.last_seq or (segment.deleted is not None and seq in segment.deleted):
            return None
        rows = segments.view(segment).rows
        i = seq - segment.first_seq if segment.contiguous else rows.index_of(seq)
        return (rows, i) if i >= 0 else None

    def has(self, seq: int) -> bool:
        """Whether it is stored. Reads a block only if the sequences of that block have gaps."""
        segments = self.segments
        position = segments.at(seq)
        if position < 0 or seq < segments.floor:
            return False
        segment = segments.all[position]
        if not segment.contiguous:
            return self.rows(seq) is not None
        gone = segment.deleted is not None and seq in segment.deleted
        return seq <= segment.last_seq and not gone

    def get(self, seq: int) -> StoredMessage | None:
        found = self.rows(seq)
        if found is None:
            return None
        rows, i = found
        return StoredMessage(seq, rows.time(i), rows.subject(i), rows.headers(i), rows.data(i))

    # -- by subject and time ----------------------------------------------------------------------

    def subject_state(self, subject: bytes) -> tuple[int, int, int] | None:
        """(count, first sequence, last sequence), None if the subject has no message."""
        entry = self.index.get(subject)
        if entry is None:
            return None
        return entry.count, self._first_of(subject), self._last_of(subject)

    def subjects_matching(self, *patterns: bytes) -> Iterator[bytes]:
        """Each subject once; sorted for a single pattern."""
        return chain.from_iterable(self.subject_parts(*patterns))

    def subject_parts(self, *patterns: bytes) -> Iterator[list[bytes]]:
        """Like `subjects_matching`, in steps: lists of subjects, some of them empty. The store may
        change between two lists."""
        return matching_parts(self.index, SubjectFilter(patterns))

    def last_row(self, subject: bytes) -> tuple[Rows, int] | None:
        """Block and row of the last message of a subject, None if it has none."""
        entry = self.index.get(subject)
        if entry is None:
            return None
        return self.rows(entry.last) or self.rows(self._last_of(subject))

    def last_of_subject(self, subject: bytes) -> int:
        """Sequence of its last message, 0 if it has none."""
        return self._last_of(subject) if subject in self.index else 0

    def next_matching(self, filters: tuple[bytes, ...], start: int) -> int:
        if not filters:
            return search.next_stored(self.segments, start=start)
        return finish(self.next_matching_steps(filters, start))

    def next_matching_steps(self, filters: tuple[bytes, ...], start: int) -> Steps[int]:
        wanted = self._filter(filters)
        if wanted.literals and self._beyond(wanted.literals, start):
            return 0
        segments, last = self.segments, self.last_seq
        return (yield from search.next_matching_steps(segments, wanted, start=start, last=last))

    def last_matching_steps(
        self, filters: tuple[bytes, ...], up_to: int | None = None
    ) -> Steps[int]:
        wanted = self._filter(filters)
        if up_to is None and wanted.literals:
            return max(self.last_of_subject(subject) for subject in wanted.literals)
        last = self.last_seq if up_to is None else min(up_to, self.last_seq)
        return (yield from search.last_matching_steps(self.segments, wanted, last=last))

    def examine(
        self, filters: tuple[bytes, ...], start: int, limit_rows: int, limit_bytes: int
    ) -> search.MatchedRows:
        """Matching rows from `start` on, by block, with bounded work: continue at `next_seq`."""
        if limit_rows == 1 and not filters and (located := self.rows(start)) is not None:
            return search.MatchedRows([(located[0], [located[1]])], start + 1, 1)
        wanted = self._filter(filters)
        if wanted.literals and self._beyond(wanted.literals, start):
            return search.MatchedRows([], self.last_seq + 1, 0)
        return search.take(
            self.segments,
            wanted,
            start=start,
            limit_rows=limit_rows,
            limit_bytes=limit_bytes,
            limit_segments=SEGMENTS_PER_TAKE_MAX,
            limit_names=NAMES_PER_TAKE_MAX,
            last=self.last_seq,
        )

    def count_matching(self, filters: tuple[bytes, ...], start: int) -> int:
        return finish(self.count_matching_steps(filters, start, self.last_seq))

    def count_matching_steps(self, filters: tuple[bytes, ...], start: int, last: int) -> Steps[int]:
        """Stored messages from `start` to `last` that match."""
        wanted = self._filter(filters)
        if start <= self.first_seq and last >= self.last_seq:
            return (yield from counted(self.index, wanted)) if filters else self.messages
        if wanted.literals and self._beyond(wanted.literals, start):
            return 0
        segments = self.segments
        return (yield from search.count_matching_steps(segments, wanted, start=start, last=last))

    def first_at_time(self, time_ns: int) -> int:
        """Sequence of the first message that is not older, 0 if there is none."""
        return search.first_at_time(self.segments, time_ns)

    def expired_before(self, cutoff_ns: int) -> int:
        """Every message below this sequence is as old as the cutoff, or older."""
        return search.first_at_time(self.segments, cutoff_ns + 1) or self.last_seq + 1

    # -- ranges -----------------------------------------------------------------------------------

    def blocks(self, first: int, last: int) -> Iterator[bytes]:
        """Stored rows of the range as sealed blocks; blocks without removed rows are not copied."""
        return search.blocks(self.segments, first=first, last=last)

    def deleted_ranges(
        self, first: int | None = None, last: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """Inclusive ranges between first and last sequence that are not stored, ascending."""
        low = self.first_seq if first is None else max(first, self.first_seq)
        high = self.last_seq if last is None else min(last, self.last_seq)
        return search.gaps(self.segments, first=low, last=high)

    def deleted_sequences(self, limit: int) -> Steps[tuple[int, ...]]:
        """The first `limit` sequences of those ranges; a range can be enormous."""
        first, last = self.first_seq, self.last_seq
        return search.missing_steps(self.segments, first=first, last=last, limit=limit)

    # -- private ----------------------------------------------------------------------------------

    def _filter(self, filters: tuple[bytes, ...]) -> SubjectFilter:
        if not filters:
            return _EVERYTHING
        wanted = self._filters.get(filters)
        if wanted is None:
            if len(self._filters) >= FILTERS_KEPT_MAX:
                self._filters.clear()
            wanted = self._filters[filters] = SubjectFilter(filters)
        return wanted

    def _beyond(self, subjects: tuple[bytes, ...], start: int) -> bool:
        """True only if no message of these subjects is at or above `start`."""
        entries = map(self.index.get, subjects)
        return all(entry is None or entry.last < start for entry in entries)

    def _first_of(self, subject: bytes) -> int:
        entry = self.index.get(subject)
        assert entry is not None
        if not self.has(entry.first):
            trail = self.index.trail_of(entry)
            entry.first = trail[0] if trail else self._removal.search_up(subject, entry)
        return entry.first

    def _last_of(self, subject: bytes) -> int:
        entry = self.index.get(subject)
        assert entry is not None
        if not self.has(entry.last):
            trail = self.index.trail_of(entry)
            entry.last = trail[-2] if trail else self._removal.search_down(subject, entry)
        return entry.last
