# cython: language_level=3
"""Compiled subject index: one packed entry per subject, without a Python object for each.

Owns: the hash table, the texts of the subjects, their order, and all memory of these.
May not touch: rows, except to read their subjects and sizes.
Spec: index_py.py. An entry takes about 75 bytes plus the subject: 48 for the entry, 4 to 12 for its
slot, 4 for its place in the order, 4 for the length of its text.

Entries are numbered in the order they are added. Only `rebuild` reuses numbers: it renumbers all
entries, which invalidates handles (SubjectEntry) and the order."""

from array import array

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp

from broker.store.block._block cimport DATA, HEADERS, SUBJECTS, Block, Rows
from broker.store.index._hashes cimport hashed
from broker.store.index._texts cimport (
    Texts, compare, free_texts, keep_text, length_of, memory_of,
)
from broker.store.index._trail cimport (
    Pair, Trail, add_pair, drop_below, drop_oldest, forget, make_room, pairs_of,
)

from broker.store.index.index_py import literal_prefix
from broker.subjects import has_wildcard, matcher

cdef uint32_t NOBODY = 0  # a slot that was never used; other slots hold an entry number plus 1
cdef uint32_t GONE = 0xFFFFFFFF
cdef Py_ssize_t NOT_FOUND = -1

cdef struct Entry:
    int64_t first
    int64_t last
    int64_t count  # 0: the subject was removed
    Trail* trail
    char* text  # the length of the subject in four bytes, then the subject
    uint32_t hash


cdef inline bytes subject_of(const Entry* entry):
    return PyBytes_FromStringAndSize(entry.text + 4, length_of(entry.text))


cdef Entry* sorting = NULL  # argument of `by_text`; protected by the GIL


cdef int by_text(const void* a, const void* b) noexcept nogil:
    cdef const char* one = sorting[(<const uint32_t*>a)[0]].text
    cdef const char* other = sorting[(<const uint32_t*>b)[0]].text
    return compare(one + 4, length_of(one), other + 4, length_of(other))


cdef class SubjectEntry:
    """A handle to one entry; valid until subjects are added."""

    cdef SubjectIndex index
    cdef Py_ssize_t number
    cdef int64_t generation

    cdef Entry* entry(self) except NULL:
        cdef Entry* found = &self.index.entries[self.number]
        assert self.generation == self.index.generation and found.count, "the entry is gone"
        return found

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
    cdef Entry* entries
    cdef Py_ssize_t used  # entries numbered so far, including removed ones
    cdef Py_ssize_t room
    cdef Py_ssize_t live
    cdef uint32_t* slots
    cdef Py_ssize_t slot_count  # a power of two
    cdef Texts texts
    cdef Py_ssize_t dead_bytes  # of texts whose entries were removed
    cdef uint32_t* order  # entry numbers sorted by subject; may include removed entries
    cdef Py_ssize_t ordered
    cdef Py_ssize_t order_upto  # entries from this number on are not in `order` yet
    cdef int64_t generation

    def __cinit__(self):
        self.floor = 0
        self.reset()

    def __dealloc__(self):
        self.release()

    def __len__(self):
        return self.live

    def __contains__(self, bytes subject not None):
        return self.find(PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject)) != NOT_FOUND

    def get(self, bytes subject not None):
        cdef Py_ssize_t number = self.find(PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject))
        return None if number == NOT_FOUND else self.handle(number)

    def added(self, bytes subject not None, *, int64_t count, int64_t first, int64_t last):
        cdef const char* text = PyBytes_AS_STRING(subject)
        return self.handle(self.add(text, PyBytes_GET_SIZE(subject), count, first, last))

    def add_rows(self, Block block not None, *, int64_t first_seq=0):
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
        cdef Py_ssize_t row, number
        cdef Py_ssize_t start = -1
        cdef int64_t headers, seq, size
        cdef Entry* entry = NULL
        for row in range(block.rows):
            seq = first_seq + row if first_seq else block.seq_at(row)
            if start < 0 or not same_subject(block, start, row):
                start = row
                number = self.find(
                    block.blobs[SUBJECTS] + block.ends[SUBJECTS][row],
                    block.ends[SUBJECTS][row + 1] - block.ends[SUBJECTS][row],
                )
                entry = NULL if number == NOT_FOUND else &self.entries[number]
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
        cdef Py_ssize_t slot = self.slot_of(text, PyBytes_GET_SIZE(subject))
        cdef Entry* entry
        if slot == NOT_FOUND:
            raise KeyError(subject)
        entry = &self.entries[self.slots[slot] - 1]
        assert entry.count >= count, f"subject {subject!r} has lost more messages than it had"
        entry.count -= count
        if entry.count == 0:
            forget(&entry.trail)
            self.slots[slot] = GONE
            self.dead_bytes += 4 + length_of(entry.text)
            self.live -= 1

    def clear(self):
        self.release()
        self.reset()

    def counts(self):
        cdef Py_ssize_t number
        for number in range(self.used):
            if self.entries[number].count:
                yield subject_of(&self.entries[number]), self.entries[number].count

    def matching(self, bytes pattern not None):
        cdef Py_ssize_t at
        if not has_wildcard(pattern):
            if pattern in self:
                yield pattern
            return
        prefix = literal_prefix(pattern)
        everything = pattern == prefix + b">"
        fits = matcher(pattern)
        self.sort()
        at = self.first_from(prefix)
        while at < self.ordered:
            if self.entries[self.order[at]].count:
                subject = subject_of(&self.entries[self.order[at]])
                if not subject.startswith(prefix):
                    return
                if (everything and len(subject) > len(prefix)) or fits(subject):
                    yield subject
            at += 1

    def matching_part(self, bytes pattern not None, bytes after not None, Py_ssize_t most):
        cdef Py_ssize_t at, end
        if not has_wildcard(pattern):
            return ([pattern] if pattern in self and pattern > after else []), None
        prefix = literal_prefix(pattern)
        everything = pattern == prefix + b">"
        fits = matcher(pattern)
        self.sort()
        at = self.first_from(max(prefix, after))
        while at < self.ordered and subject_of(&self.entries[self.order[at]]) == after:
            at += 1  # a removed entry and a newer one may have the same subject
        end = min(at + most, self.ordered)
        found = []
        subject = after
        while at < end:
            subject = subject_of(&self.entries[self.order[at]])
            if not subject.startswith(prefix):
                return found, None
            if self.entries[self.order[at]].count:
                if (everything and len(subject) > len(prefix)) or fits(subject):
                    found.append(subject)
            at += 1
        return found, (subject if end < self.ordered else None)

    @property
    def nbytes(self):
        """Memory of the table, without trails."""
        cdef Py_ssize_t table = self.used * sizeof(Entry)
        return table + 4 * (self.slot_count + self.ordered) + memory_of(&self.texts)

    # -- private ----------------------------------------------------------------------------------

    cdef SubjectEntry handle(self, Py_ssize_t number):
        cdef SubjectEntry found = SubjectEntry.__new__(SubjectEntry)
        found.index = self
        found.number = number
        found.generation = self.generation
        return found

    cdef void reset(self) noexcept:
        self.entries = NULL
        self.used = self.room = self.live = 0
        self.slots = NULL
        self.slot_count = 0
        self.texts.newest = NULL
        self.texts.nbytes = self.dead_bytes = 0
        self.order = NULL
        self.ordered = self.order_upto = 0
        self.generation += 1

    def forget_trails(self):
        self.drop_trails()

    cdef void drop_trails(self) noexcept:
        cdef Py_ssize_t number
        for number in range(self.used):
            forget(&self.entries[number].trail)

    cdef void release(self) noexcept:
        self.drop_trails()
        free(self.entries)
        free(self.slots)
        free(self.order)
        free_texts(&self.texts)

    cdef Py_ssize_t find(self, const char* text, Py_ssize_t size) noexcept:
        cdef Py_ssize_t slot = self.slot_of(text, size)
        return NOT_FOUND if slot == NOT_FOUND else <Py_ssize_t>self.slots[slot] - 1

    cdef Py_ssize_t slot_of(self, const char* text, Py_ssize_t size) noexcept:
        cdef uint32_t value = hashed(text, size)
        cdef Py_ssize_t mask = self.slot_count - 1
        cdef Py_ssize_t slot = value & mask
        cdef Entry* entry
        if not self.slot_count:
            return NOT_FOUND
        while self.slots[slot] != NOBODY:
            if self.slots[slot] != GONE:
                entry = &self.entries[self.slots[slot] - 1]
                if (
                    entry.hash == value
                    and length_of(entry.text) == size
                    and memcmp(entry.text + 4, text, size) == 0
                ):
                    return slot
            slot = (slot + 1) & mask
        return NOT_FOUND

    cdef Py_ssize_t add(
        self, const char* text, Py_ssize_t size, int64_t count, int64_t first, int64_t last
    ) except -1:
        """Add messages to the entry of a subject; returns the number of the entry."""
        cdef Py_ssize_t number = self.find(text, size)
        cdef Entry* entry
        if number != NOT_FOUND:
            entry = &self.entries[number]
            entry.count += count
            entry.last = last
            return number
        if 4 * (self.used + 1) > 3 * self.slot_count:  # removed ones occupy slots too
            self.rebuild()
        if self.used == self.room:
            self.grow(self.room + self.room // 2 + 8)
        number = self.used
        entry = &self.entries[number]
        entry.text = keep_text(&self.texts, text, size)
        entry.first, entry.last, entry.count = first, last, count
        entry.trail = NULL
        entry.hash = hashed(text, size)
        self.place(number)
        self.used += 1
        self.live += 1
        return number

    cdef void place(self, Py_ssize_t number) noexcept:
        cdef Py_ssize_t mask = self.slot_count - 1
        cdef Py_ssize_t slot = self.entries[number].hash & mask
        while self.slots[slot] != NOBODY and self.slots[slot] != GONE:
            slot = (slot + 1) & mask
        self.slots[slot] = <uint32_t>(number + 1)

    cdef int grow(self, Py_ssize_t room) except -1:
        cdef Entry* grown = <Entry*>realloc(self.entries, room * sizeof(Entry))
        if grown == NULL:
            raise MemoryError
        self.entries = grown
        self.room = room
        return 0

    cdef int rebuild(self) except -1:
        """Drop removed entries, resize the slots to twice the entries, and copy the texts if most
        of them belong to removed entries."""
        cdef Py_ssize_t slot_count = 8
        cdef uint32_t* slots
        cdef Py_ssize_t number
        cdef Py_ssize_t kept = 0
        cdef bint moving = 2 * self.dead_bytes > self.texts.nbytes
        cdef Texts old
        cdef char* text
        while slot_count < 2 * (self.live + 1):
            slot_count *= 2
        slots = <uint32_t*>calloc(slot_count, sizeof(uint32_t))
        if slots == NULL:
            raise MemoryError
        free(self.slots)
        self.slots, self.slot_count = slots, slot_count
        old = self.texts
        if moving:
            self.texts.newest = NULL
            self.texts.nbytes = self.dead_bytes = 0
        for number in range(self.used):
            if self.entries[number].count:
                self.entries[kept] = self.entries[number]
                if moving:
                    text = self.entries[kept].text
                    self.entries[kept].text = keep_text(
                        &self.texts, text + 4, length_of(text)
                    )
                self.place(kept)
                kept += 1
        if moving:
            free_texts(&old)
        if kept < self.used:
            free(self.order)
            self.order = NULL
            self.ordered = self.order_upto = 0
            self.generation += 1
        self.used = kept
        return 0

    cdef int sort(self) except -1:
        """Bring the order up to date: sort the new entries, then merge them in."""
        global sorting
        cdef Py_ssize_t fresh_count = self.used - self.order_upto
        cdef uint32_t* merged
        cdef uint32_t* fresh
        cdef Py_ssize_t a = 0
        cdef Py_ssize_t b = 0
        cdef Py_ssize_t i
        if not fresh_count:
            return 0
        merged = <uint32_t*>malloc(4 * (self.ordered + fresh_count))
        fresh = <uint32_t*>malloc(4 * fresh_count)
        if merged == NULL or fresh == NULL:
            free(merged)
            free(fresh)
            raise MemoryError
        for i in range(fresh_count):
            fresh[i] = <uint32_t>(self.order_upto + i)
        sorting = self.entries
        qsort(fresh, fresh_count, 4, by_text)
        for i in range(self.ordered + fresh_count):
            if b == fresh_count or (
                a < self.ordered and by_text(&self.order[a], &fresh[b]) < 0
            ):
                merged[i] = self.order[a]
                a += 1
            else:
                merged[i] = fresh[b]
                b += 1
        free(fresh)
        free(self.order)
        self.order = merged
        self.ordered += fresh_count
        self.order_upto = self.used
        return 0

    cdef Py_ssize_t first_from(self, bytes prefix) except -1:
        """Position in the order of the first subject that is not before `prefix`."""
        cdef const char* text = PyBytes_AS_STRING(prefix)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(prefix)
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.ordered
        cdef Py_ssize_t middle
        cdef const char* other
        while low < high:
            middle = (low + high) >> 1
            other = self.entries[self.order[middle]].text
            if compare(other + 4, length_of(other), text, size) < 0:
                low = middle + 1
            else:
                high = middle
        return low


cdef inline bint same_subject(Rows rows, Py_ssize_t a, Py_ssize_t b) noexcept:
    cdef int32_t* ends = rows.ends[SUBJECTS]
    cdef Py_ssize_t size = ends[a + 1] - ends[a]
    if ends[b + 1] - ends[b] != size:
        return False
    return memcmp(rows.blobs[SUBJECTS] + ends[a], rows.blobs[SUBJECTS] + ends[b], size) == 0
