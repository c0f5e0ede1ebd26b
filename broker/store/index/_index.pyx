# cython: language_level=3
"""Compiled subject index: one packed entry per subject, without a Python object for each.

Owns: the partitions of the entries, and walks over all of them in order.
May not touch: rows, except to read their subjects and sizes.
Spec: index_py.py.

A hash table grows by moving all its entries at once: with millions of subjects the process would
stand still for a tenth of a second. So the leading bits of the hash select a partition
(`_partition.pyx`), and a partition that is full is split (extendible hashing); a small stream has
one partition. Each partition sorts its own entries, and a walk merges them."""

from array import array

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp

from broker.store.block._block cimport DATA, HEADERS, SUBJECTS, Block, Rows
from broker.store.index._hashes cimport hashed
from broker.store.index._partition cimport NOT_FOUND, Entry, Partition, subject_of
from broker.store.index._texts cimport compare, length_of
from broker.store.index._trail cimport (
    Pair, add_pair, drop_below, drop_oldest, forget, make_room, pairs_of,
)

from broker.store.index.index_py import literal_prefix
from broker.subjects import has_wildcard, matcher

cdef enum:
    SPLIT_ENTRIES = 6144  # a full partition with so many is split, in one or two milliseconds
    BITS_MAX = 20
    SORTED_PER_PART = 16384  # new entries, in one call of matching_part
    SORT_COST = 256  # of a partition with new entries, in entries


cdef class SubjectEntry:
    """A handle to one entry; valid until subjects are added."""

    cdef Partition partition
    cdef Py_ssize_t number
    cdef int64_t generation

    cdef Entry* entry(self) except NULL:
        assert (
            self.generation == self.partition.generation
            and self.partition.entries[self.number].count
        ), "the entry is gone"
        return &self.partition.entries[self.number]

    @property
    def count(self):
        return self.entry().count

    @property
    def first(self):
        return self.entry().first

    @first.setter
    def first(self, int64_t seq):
        self.entry().first = seq

    @property
    def last(self):
        return self.entry().last

    @last.setter
    def last(self, int64_t seq):
        self.entry().last = seq

    @property
    def trail(self):
        cdef Entry* entry = self.entry()
        if entry.trail == NULL:
            return None
        found = array("q")
        found.frombytes((<char*>pairs_of(entry.trail))[: entry.trail.held * sizeof(Pair)])
        return found

    @trail.setter
    def trail(self, pairs):
        cdef Entry* entry = self.entry()
        forget(&entry.trail)
        if pairs is not None:
            make_room(&entry.trail, len(pairs) // 2)
            for at in range(0, len(pairs), 2):
                add_pair(&entry.trail, pairs[at], pairs[at + 1])

    def trail_grew(self, int64_t count, added):
        cdef Entry* entry = self.entry()
        if entry.count == count:
            forget(&entry.trail)
            make_room(&entry.trail, 1)
        if entry.trail != NULL:
            if len(added) == 2 * count:
                for at in range(0, 2 * count, 2):
                    add_pair(&entry.trail, added[at], added[at + 1])
            else:
                forget(&entry.trail)

    def trail_shrank(self, int64_t count):
        cdef Entry* entry = self.entry()
        if entry.trail != NULL:
            drop_oldest(entry.trail, count)


cdef class SubjectIndex:
    cdef public int64_t floor
    cdef list directory  # by the leading `depth` bits of the hash; a partition may be in it often
    cdef int depth
    cdef Py_ssize_t live
    cdef Walk walk  # where the last part ended; None if subjects were added since
    cdef bytes walked  # its last subject

    def __cinit__(self):
        self.floor = 0
        self.clear()

    def __len__(self):
        return self.live

    def __contains__(self, bytes subject not None):
        return self.get(subject) is not None

    def get(self, bytes subject not None):
        cdef const char* text = PyBytes_AS_STRING(subject)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(subject)
        cdef uint32_t hash = hashed(text, size)
        cdef Partition partition = self.partition_of(hash)
        cdef Py_ssize_t number = partition.find(text, size, hash)
        return None if number == NOT_FOUND else handle(partition, number)

    def added(self, bytes subject not None, *, int64_t count, int64_t first, int64_t last):
        cdef SubjectEntry found = self.get(subject)
        if found is None:
            self.add(PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject), count, first, last)
            return self.get(subject)
        found.entry().count += count
        found.entry().last = last
        return found

    def add_rows(self, Rows block not None, *, int64_t first_seq=0):
        cdef Py_ssize_t row
        cdef Py_ssize_t start = 0
        cdef int64_t low, high
        cdef int32_t* ends = block.ends[SUBJECTS]
        for row in range(1, block.rows + 1):
            if row < block.rows and same_subject(block, start, row):
                continue
            low = first_seq + start if first_seq else block.seq_at(start)
            high = first_seq + row - 1 if first_seq else block.seq_at(row - 1)
            self.add(
                block.blobs[SUBJECTS] + ends[start],
                ends[start + 1] - ends[start],
                row - start,
                low,
                high,
            )
            start = row

    def trail_rows(
        self, Block block not None, *, int64_t per_message, int64_t per_header, int64_t first_seq=0
    ):
        cdef Py_ssize_t row
        cdef Py_ssize_t start = -1
        cdef int64_t headers, seq, size
        cdef Entry* entry = NULL
        for row in range(block.rows):
            seq = first_seq + row if first_seq else block.seq_at(row)
            if start < 0 or not same_subject(block, start, row):
                start = row
                entry = self.find(
                    block.blobs[SUBJECTS] + block.ends[SUBJECTS][row],
                    block.ends[SUBJECTS][row + 1] - block.ends[SUBJECTS][row],
                )
                if entry != NULL and entry.trail == NULL and entry.first != seq:
                    entry = NULL  # has no trail and existed before
            if entry != NULL:
                headers = block.ends[HEADERS][row + 1] - block.ends[HEADERS][row]
                size = per_message + headers + (per_header if headers else 0)
                size += block.ends[SUBJECTS][row + 1] - block.ends[SUBJECTS][row]
                size += block.ends[DATA][row + 1] - block.ends[DATA][row]
                add_pair(&entry.trail, seq, size)

    def trail_of(self, SubjectEntry handle not None):
        cdef Entry* entry = handle.entry()
        if entry.trail != NULL:
            drop_below(entry.trail, self.floor)
            if entry.trail.held != entry.count:
                forget(&entry.trail)
        return handle.trail

    def removed(self, bytes subject not None, int64_t count):
        cdef const char* text = PyBytes_AS_STRING(subject)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(subject)
        cdef uint32_t hash = hashed(text, size)
        self.live -= self.partition_of(hash).remove(text, size, hash, count)

    def remove_rows(
        self, Rows rows not None, stretches, *, int64_t per_message, int64_t per_header,
        bint last_is_known=False,
    ):
        cdef Py_ssize_t begin, end, row, start
        cdef int64_t size = 0
        cdef int32_t* subjects = rows.ends[SUBJECTS]
        cdef int32_t* headers = rows.ends[HEADERS]
        cdef int32_t* data = rows.ends[DATA]
        for begin, end in stretches:
            if not 0 <= begin < end <= rows.rows:
                raise IndexError(f"rows {begin} to {end} of {rows.rows}")
            size += (end - begin) * per_message + subjects[end] - subjects[begin]
            size += headers[end] - headers[begin] + data[end] - data[begin]
            start = begin
            for row in range(begin, end):
                if headers[row + 1] != headers[row]:
                    size += per_header
                if row + 1 == end or not same_subject(rows, start, row + 1):
                    self.remove(rows, start, row + 1 - start, last_is_known)
                    start = row + 1
        return size

    def clear(self):
        self.directory = [Partition(0)]
        self.depth = 0
        self.live = 0
        self.walk = None

    def forget_trails(self):
        for partition in self.partitions():
            (<Partition>partition).forget_trails()

    def counts(self):
        cdef Partition partition
        cdef Py_ssize_t number
        for partition in self.partitions():
            for number in range(partition.used):
                if partition.entries[number].count:
                    yield subject_of(&partition.entries[number]), partition.entries[number].count

    def matching(self, bytes pattern not None):
        cdef Walk walk
        if not has_wildcard(pattern):
            if pattern in self:
                yield pattern
            return
        prefix = literal_prefix(pattern)
        everything = pattern == prefix + b">"
        fits = matcher(pattern)
        partitions = self.partitions()
        for partition in partitions:
            (<Partition>partition).sort()
        walk = Walk(partitions, prefix)
        while walk.held:
            entry = walk.entry()
            if entry.count:
                subject = subject_of(entry)
                if not subject.startswith(prefix):
                    return
                if (everything and len(subject) > len(prefix)) or fits(subject):
                    yield subject
            walk.advance()

    def matching_part(self, bytes pattern not None, bytes after not None, Py_ssize_t most):
        cdef Walk walk = self.walk
        cdef Py_ssize_t seen = 0
        if not has_wildcard(pattern):
            return ([pattern] if pattern in self and pattern > after else []), None
        prefix = literal_prefix(pattern)
        everything = pattern == prefix + b">"
        fits = matcher(pattern)
        if walk is None or not after or self.walked != after:
            partitions = self.partitions()
            if not sorted_in_parts(partitions):
                return [], after
            walk = Walk(partitions, max(prefix, after))
        self.walk = None
        while walk.held and subject_of(walk.entry()) == after:
            walk.advance()  # a removed entry and a newer one may have the same subject
        found = []
        subject = after
        while walk.held and seen < most:
            subject = subject_of(walk.entry())
            if not subject.startswith(prefix):
                return found, None
            if walk.entry().count:
                if (everything and len(subject) > len(prefix)) or fits(subject):
                    found.append(subject)
            walk.advance()
            seen += 1
        if not walk.held:
            return found, None
        self.walk, self.walked = walk, subject
        return found, subject

    @property
    def nbytes(self):
        """Memory of the tables, without trails."""
        return sum([(<Partition>partition).memory() for partition in self.partitions()])

    # -- private ----------------------------------------------------------------------------------

    cdef Partition partition_of(self, uint32_t hash):
        cdef Py_ssize_t at = <Py_ssize_t>((<uint64_t>hash) >> (32 - self.depth))
        return <Partition>PyList_GET_ITEM(self.directory, at)

    cdef list partitions(self):
        """Each once."""
        cdef list found = []
        cdef Py_ssize_t at = 0
        cdef Partition partition
        while at < len(self.directory):
            partition = <Partition>PyList_GET_ITEM(self.directory, at)
            found.append(partition)
            at += 1 << (self.depth - partition.bits)
        return found

    cdef Entry* find(self, const char* text, Py_ssize_t size) except? NULL:
        cdef uint32_t hash = hashed(text, size)
        cdef Partition partition = self.partition_of(hash)
        cdef Py_ssize_t number = partition.find(text, size, hash)
        return NULL if number == NOT_FOUND else &partition.entries[number]

    cdef int add(
        self, const char* text, Py_ssize_t size, int64_t count, int64_t first, int64_t last
    ) except -1:
        """Add messages to the entry of a subject."""
        cdef uint32_t hash = hashed(text, size)
        cdef Partition partition = self.partition_of(hash)
        cdef Py_ssize_t number = partition.find(text, size, hash)
        cdef Entry* entry
        if number != NOT_FOUND:
            entry = &partition.entries[number]
            entry.count += count
            entry.last = last
            return 0
        self.walk = None
        while partition.is_full():
            if partition.live < SPLIT_ENTRIES or partition.bits == BITS_MAX:
                partition.rebuild()
            else:
                self.divide(partition, hash)
                partition = self.partition_of(hash)
        partition.append(text, size, hash, count, first, last)
        self.live += 1
        return 0

    cdef int remove(self, Rows rows, Py_ssize_t row, int64_t count, bint last_is_known) except -1:
        """Remove messages of the subject that this row has."""
        cdef const char* text = rows.blobs[SUBJECTS] + rows.ends[SUBJECTS][row]
        cdef Py_ssize_t size = rows.ends[SUBJECTS][row + 1] - rows.ends[SUBJECTS][row]
        cdef uint32_t hash = hashed(text, size)
        cdef Entry* entry
        cdef bint gone = self.partition_of(hash).remove(text, size, hash, count)
        self.live -= gone
        if last_is_known and not gone:
            entry = self.find(text, size)
            if entry.count == 1:
                entry.first = entry.last
        return 0

    cdef int divide(self, Partition partition, uint32_t hash) except -1:
        """Replace a partition, which `hash` selects, by two."""
        cdef Py_ssize_t width, start
        if partition.bits == self.depth:
            self.directory = [one for one in self.directory for _ in range(2)]
            self.depth += 1
        low, high = partition.split()
        width = 1 << (self.depth - (<Partition>low).bits)
        start = <Py_ssize_t>((<uint64_t>hash) >> (32 - self.depth))
        start -= start % (2 * width)
        self.directory[start : start + width] = [low] * width
        self.directory[start + width : start + 2 * width] = [high] * width
        return 0


cdef SubjectEntry handle(Partition partition, Py_ssize_t number):
    cdef SubjectEntry found = SubjectEntry.__new__(SubjectEntry)
    found.partition = partition
    found.number = number
    found.generation = partition.generation
    return found


cdef bint sorted_in_parts(list partitions) except -1:
    """Sort new entries of partitions. False if some are left for the next call."""
    cdef Py_ssize_t fresh
    cdef Py_ssize_t done = 0
    cdef Partition partition
    for partition in partitions:
        fresh = partition.used - partition.order_upto
        if fresh:
            if done and done + fresh > SORTED_PER_PART:
                return False
            partition.sort()
            done += fresh + SORT_COST
    return True


cdef class Walk:
    """The entries of all partitions, each of them sorted, from a subject on in order: a heap of
    positions. They must not change during the walk."""

    cdef list partitions
    cdef Py_ssize_t* positions  # in the order of each partition
    cdef Py_ssize_t* heap  # which partitions have entries left; the first one has the next entry
    cdef Py_ssize_t held

    def __cinit__(self, list partitions, bytes start):
        cdef Py_ssize_t at, count = len(partitions)
        self.partitions = partitions
        self.held = 0
        self.positions = <Py_ssize_t*>malloc(count * sizeof(Py_ssize_t))
        self.heap = <Py_ssize_t*>malloc(count * sizeof(Py_ssize_t))
        if self.positions == NULL or self.heap == NULL:
            raise MemoryError
        for at in range(count):
            self.positions[at] = self.partition(at).first_from(start)
            if self.positions[at] < self.partition(at).ordered:
                self.heap[self.held] = at
                self.held += 1
        for at in range(self.held // 2 - 1, -1, -1):
            self.sink(at)

    def __dealloc__(self):
        free(self.positions)
        free(self.heap)

    cdef Partition partition(self, Py_ssize_t at):
        return <Partition>PyList_GET_ITEM(self.partitions, at)

    cdef const Entry* entry_of(self, Py_ssize_t at) noexcept:
        cdef Partition partition = self.partition(at)
        return &partition.entries[partition.order[self.positions[at]]]

    cdef const Entry* entry(self) noexcept:
        return self.entry_of(self.heap[0])

    cdef void advance(self) noexcept:
        cdef Py_ssize_t at = self.heap[0]
        self.positions[at] += 1
        if self.positions[at] == self.partition(at).ordered:
            self.held -= 1
            self.heap[0] = self.heap[self.held]
        self.sink(0)

    cdef void sink(self, Py_ssize_t top) noexcept:
        cdef Py_ssize_t child, moved
        while 2 * top + 1 < self.held:
            child = 2 * top + 1
            if child + 1 < self.held and self.is_before(self.heap[child + 1], self.heap[child]):
                child += 1
            if not self.is_before(self.heap[child], self.heap[top]):
                return
            moved = self.heap[top]
            self.heap[top], self.heap[child] = self.heap[child], moved
            top = child

    cdef bint is_before(self, Py_ssize_t a, Py_ssize_t b) noexcept:
        cdef const char* one = self.entry_of(a).text
        cdef const char* other = self.entry_of(b).text
        return compare(one + 4, length_of(one), other + 4, length_of(other)) < 0


cdef inline bint same_subject(Rows rows, Py_ssize_t a, Py_ssize_t b) noexcept:
    cdef int32_t* ends = rows.ends[SUBJECTS]
    cdef Py_ssize_t size = ends[a + 1] - ends[a]
    if ends[b + 1] - ends[b] != size:
        return False
    return memcmp(rows.blobs[SUBJECTS] + ends[a], rows.blobs[SUBJECTS] + ends[b], size) == 0
