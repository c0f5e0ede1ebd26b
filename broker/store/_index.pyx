# cython: language_level=3
"""Compiled subject index: one packed entry per subject, no Python object each.

Owns: the table, its texts, its order; all memory of it.
May not touch: rows beyond reading their subjects and sizes.
Spec: index_py.py, where the meaning is stated. About 75 bytes and the subject per entry: 48 for
the entry, 4 to 12 for its slot, 4 for its place in the order, 4 for the length of its text.

Entries are numbered as they come. A number is used again only after `rebuild`, which numbers all
anew and makes handles (SubjectEntry) and the order void."""

from array import array

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove

from broker.store._block cimport DATA, HEADERS, SUBJECTS, Block, Rows

from broker.store.index_py import literal_prefix
from broker.subjects import has_wildcard, matcher

cdef uint32_t NOBODY = 0  # a slot that was never used; others hold the number of an entry, plus 1
cdef uint32_t GONE = 0xFFFFFFFF
cdef Py_ssize_t CHUNK_MIN = 256
cdef Py_ssize_t CHUNK_MAX = 1 << 18
cdef Py_ssize_t NOT_FOUND = -1

cdef struct Entry:
    int64_t first
    int64_t last
    int64_t count  # 0: the subject is gone
    int64_t* trail  # NULL: not known; else pairs held, room in pairs, then the pairs
    char* text  # its length in four bytes, then the subject
    uint32_t hash

cdef struct Chunk:
    Chunk* before
    Py_ssize_t room
    Py_ssize_t used


cdef inline uint32_t hashed(const char* text, Py_ssize_t size) noexcept:
    """FNV-1a with a last stir, so that its low bits are good enough for slots."""
    cdef uint32_t value = 2166136261u
    cdef Py_ssize_t i
    for i in range(size):
        value = (value ^ <unsigned char>text[i]) * 16777619u
    value ^= value >> 16
    value *= 0x85EBCA6Bu
    value ^= value >> 13
    value *= 0xC2B2AE35u
    return value ^ (value >> 16)


cdef inline uint32_t length_of(const char* text) noexcept nogil:
    cdef uint32_t size
    memcpy(&size, text, 4)
    return size


cdef inline bytes subject_of(const Entry* entry):
    return PyBytes_FromStringAndSize(entry.text + 4, length_of(entry.text))


cdef int compare(
    const char* a, Py_ssize_t a_size, const char* b, Py_ssize_t b_size
) noexcept nogil:
    cdef int verdict = memcmp(a, b, min(a_size, b_size))
    return verdict if verdict else (a_size > b_size) - (a_size < b_size)


cdef Entry* sorting = NULL  # for `by_text`; the interpreter lock is held while it is used


cdef int by_text(const void* a, const void* b) noexcept nogil:
    cdef const char* one = sorting[(<const uint32_t*>a)[0]].text
    cdef const char* other = sorting[(<const uint32_t*>b)[0]].text
    return compare(one + 4, length_of(one), other + 4, length_of(other))


cdef int by_value(const void* a, const void* b) noexcept nogil:
    cdef uint32_t one = (<const uint32_t*>a)[0]
    cdef uint32_t other = (<const uint32_t*>b)[0]
    return (one > other) - (one < other)


cdef class SubjectEntry:
    """A handle on one entry; good until subjects are added."""

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
        found.frombytes((<char*>(entry.trail + 2))[: 16 * entry.trail[0]])
        return found

    @trail.setter
    def trail(self, pairs):
        cdef Entry* entry = self.entry()
        free(entry.trail)
        entry.trail = NULL
        if pairs is not None:
            grow_trail(entry, len(pairs) // 2)
            for pair in range(0, len(pairs), 2):
                add_pair(entry, pairs[pair], pairs[pair + 1])

    def trail_grew(self, int64_t count, added):
        cdef Entry* entry = self.entry()
        if entry.count == count:
            free(entry.trail)
            entry.trail = NULL
            grow_trail(entry, 1)
        if entry.trail != NULL:
            if len(added) == 2 * count:
                for pair in range(0, 2 * count, 2):
                    add_pair(entry, added[pair], added[pair + 1])
            else:
                self.trail = None

    def trail_shrank(self, int64_t count):
        shrink_trail(self.entry(), count)


cdef int grow_trail(Entry* entry, int64_t room) except -1:
    cdef bint fresh = entry.trail == NULL
    cdef int64_t* grown = <int64_t*>realloc(entry.trail, 16 + 16 * max(room, 1))
    if grown == NULL:
        raise MemoryError
    if fresh:
        grown[0] = 0
    grown[1] = max(room, 1)
    entry.trail = grown
    return 0


cdef int add_pair(Entry* entry, int64_t seq, int64_t size) except -1:
    cdef int64_t held
    if entry.trail == NULL or entry.trail[0] == entry.trail[1]:
        grow_trail(entry, 1 if entry.trail == NULL else entry.trail[1] + entry.trail[1] // 2 + 1)
    held = entry.trail[0]
    entry.trail[2 + 2 * held] = seq
    entry.trail[3 + 2 * held] = size
    entry.trail[0] = held + 1
    return 0


cdef void shrink_trail(Entry* entry, int64_t count) noexcept:
    cdef int64_t* trail = entry.trail
    if trail != NULL and count > 0:
        trail[0] = max(trail[0] - count, 0)
        memmove(trail + 2, trail + 2 + 2 * count, 16 * trail[0])


cdef class SubjectIndex:
    cdef public int64_t floor
    cdef Entry* entries
    cdef Py_ssize_t used  # entries numbered so far, gone ones included
    cdef Py_ssize_t room
    cdef Py_ssize_t live
    cdef uint32_t* slots
    cdef Py_ssize_t slot_count  # a power of two
    cdef Chunk* chunk
    cdef Py_ssize_t text_bytes
    cdef Py_ssize_t dead_bytes
    cdef uint32_t* order  # numbers by subject; may hold gone ones
    cdef Py_ssize_t ordered
    cdef Py_ssize_t order_upto  # entries from this number on are not in it yet
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
                    entry = NULL  # not known, and not the first time we see it
            if entry != NULL:
                headers = block.ends[HEADERS][row + 1] - block.ends[HEADERS][row]
                size = per_message + headers + (per_header if headers else 0)
                size += block.ends[SUBJECTS][row + 1] - block.ends[SUBJECTS][row]
                size += block.ends[DATA][row + 1] - block.ends[DATA][row]
                add_pair(entry, seq, size)

    def trail_of(self, SubjectEntry handle not None):
        cdef Entry* entry = handle.entry()
        cdef int64_t gone = 0
        if entry.trail == NULL:
            return None
        while gone < entry.trail[0] and entry.trail[2 + 2 * gone] < self.floor:
            gone += 1
        shrink_trail(entry, gone)
        if entry.trail[0] != entry.count:
            handle.trail = None
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
            free(entry.trail)
            entry.trail = NULL
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

    @property
    def nbytes(self):
        """Memory of the table, trails not counted."""
        cdef Py_ssize_t chunks = 0
        cdef Chunk* chunk = self.chunk
        while chunk != NULL:
            chunks += chunk.room
            chunk = chunk.before
        return self.used * sizeof(Entry) + 4 * (self.slot_count + self.ordered) + chunks

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
        self.chunk = NULL
        self.text_bytes = self.dead_bytes = 0
        self.order = NULL
        self.ordered = self.order_upto = 0
        self.generation += 1

    def forget_trails(self):
        self.drop_trails()

    cdef void drop_trails(self) noexcept:
        cdef Py_ssize_t number
        for number in range(self.used):
            free(self.entries[number].trail)
            self.entries[number].trail = NULL

    cdef void release(self) noexcept:
        self.drop_trails()
        free(self.entries)
        free(self.slots)
        free(self.order)
        free_chunks(self.chunk)

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
        """The number of the entry that has these messages now."""
        cdef Py_ssize_t number = self.find(text, size)
        cdef Entry* entry
        if number != NOT_FOUND:
            entry = &self.entries[number]
            entry.count += count
            entry.last = last
            return number
        if 4 * (self.used + 1) > 3 * self.slot_count:  # gone ones count: they fill slots too
            self.rebuild()
        if self.used == self.room:
            self.make_room(self.room + self.room // 2 + 8)
        number = self.used
        entry = &self.entries[number]
        entry.text = self.keep_text(text, size)
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

    cdef int make_room(self, Py_ssize_t room) except -1:
        cdef Entry* grown = <Entry*>realloc(self.entries, room * sizeof(Entry))
        if grown == NULL:
            raise MemoryError
        self.entries = grown
        self.room = room
        return 0

    cdef char* keep_text(self, const char* text, Py_ssize_t size) except NULL:
        cdef Py_ssize_t needed = 4 + size
        cdef Py_ssize_t room
        cdef Chunk* chunk = self.chunk
        cdef uint32_t length = <uint32_t>size
        cdef char* place
        if chunk == NULL or chunk.used + needed > chunk.room:
            room = max(needed, min(CHUNK_MAX, max(CHUNK_MIN, self.text_bytes)))
            chunk = <Chunk*>malloc(sizeof(Chunk) + room)
            if chunk == NULL:
                raise MemoryError
            chunk.before, chunk.room, chunk.used = self.chunk, room, 0
            self.chunk = chunk
        place = <char*>(chunk + 1) + chunk.used
        memcpy(place, &length, 4)
        memcpy(place + 4, text, size)
        chunk.used += needed
        self.text_bytes += needed
        return place

    cdef int rebuild(self) except -1:
        """Without gone entries, with slots for twice as many, and with all texts moved if most
        are of gone entries."""
        cdef Py_ssize_t slot_count = 8
        cdef uint32_t* slots
        cdef Py_ssize_t number
        cdef Py_ssize_t kept = 0
        cdef Chunk* old = NULL
        cdef char* text
        while slot_count < 2 * (self.live + 1):
            slot_count *= 2
        slots = <uint32_t*>calloc(slot_count, sizeof(uint32_t))
        if slots == NULL:
            raise MemoryError
        free(self.slots)
        self.slots, self.slot_count = slots, slot_count
        if 2 * self.dead_bytes > self.text_bytes:
            old, self.chunk = self.chunk, NULL
            self.text_bytes = self.dead_bytes = 0
        for number in range(self.used):
            if self.entries[number].count:
                self.entries[kept] = self.entries[number]
                if old != NULL:
                    text = self.entries[kept].text
                    self.entries[kept].text = self.keep_text(text + 4, length_of(text))
                self.place(kept)
                kept += 1
        free_chunks(old)
        if kept < self.used:
            free(self.order)
            self.order = NULL
            self.ordered = self.order_upto = 0
            self.generation += 1
        self.used = kept
        return 0

    cdef int sort(self) except -1:
        """Bring the order up to date: sort what is new, then merge."""
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
        """Where the subjects not before `prefix` begin."""
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


cdef void free_chunks(Chunk* chunk) noexcept:
    cdef Chunk* before
    while chunk != NULL:
        before = chunk.before
        free(chunk)
        chunk = before


cdef inline bint same_subject(Rows rows, Py_ssize_t a, Py_ssize_t b) noexcept:
    cdef int32_t* ends = rows.ends[SUBJECTS]
    cdef Py_ssize_t size = ends[a + 1] - ends[a]
    if ends[b + 1] - ends[b] != size:
        return False
    return memcmp(rows.blobs[SUBJECTS] + ends[a], rows.blobs[SUBJECTS] + ends[b], size) == 0


def subject_hashes(subjects):
    """Of all these subjects, sorted, four bytes each."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 4 * len(subjects))
    cdef uint32_t* values = <uint32_t*>PyBytes_AS_STRING(made)
    cdef Py_ssize_t i = 0
    cdef bytes subject
    for subject in subjects:
        values[i] = hashed(PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject))
        i += 1
    qsort(values, i, 4, by_value)
    return made


def among_hashes(bytes hashes not None, bytes subject not None):
    """False only when the subject was not among those hashed."""
    cdef const uint32_t* values = <const uint32_t*>PyBytes_AS_STRING(hashes)
    cdef uint32_t value = hashed(PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject))
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = PyBytes_GET_SIZE(hashes) // 4
    cdef Py_ssize_t middle
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low < PyBytes_GET_SIZE(hashes) // 4 and values[low] == value
