# cython: language_level=3
"""One partition of the compiled subject index: a hash table of packed entries, and their order.

Owns: the hash table, the texts of the subjects, their order, and all memory of these.
May not touch: rows; the other partitions.
Spec: docs/decisions/0009-subjects-in-a-packed-table.md. An entry takes about 75 bytes plus the
subject: 48 for the entry, 4 to 12 for its slot, 4 for its place in the order, 4 for the length of
its text.

Entries are numbered in the order they are added. Only `rebuild` reuses numbers: it renumbers all
entries, which invalidates handles (SubjectEntry) and the order. It looks at every entry at once,
and so does `split`: the index splits a partition before that takes milliseconds."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memmove

from broker.store.index._texts cimport (
    Texts, compare, free_texts, keep_text, length_of, memory_of,
)
from broker.store.index._trail cimport forget

cdef uint32_t NOBODY = 0  # a slot that was never used; other slots hold an entry number plus 1
cdef uint32_t GONE = 0xFFFFFFFF


cdef bytes subject_of(const Entry* entry):
    return PyBytes_FromStringAndSize(entry.text + 4, length_of(entry.text))


cdef Entry* sorting = NULL  # argument of `by_text`; protected by the GIL


cdef int by_text(const void* a, const void* b) noexcept nogil:
    """Of two entries with the same subject the older one was removed; it sorts behind."""
    cdef uint32_t newer = (<const uint32_t*>a)[0]
    cdef uint32_t older = (<const uint32_t*>b)[0]
    cdef const char* one = sorting[newer].text
    cdef const char* other = sorting[older].text
    cdef int verdict = compare(one + 4, length_of(one), other + 4, length_of(other))
    return verdict if verdict else (newer < older) - (newer > older)


cdef class Partition:
    def __cinit__(self, int bits):
        self.bits = bits
        self.entries = NULL
        self.used = self.room = self.live = 0
        self.slots = NULL
        self.slot_count = 0
        self.texts.newest = NULL
        self.texts.nbytes = self.dead_bytes = 0
        self.order = NULL
        self.ordered = self.order_upto = 0
        self.generation = 0

    def __dealloc__(self):
        self.forget_trails()
        free(self.entries)
        free(self.slots)
        free(self.order)
        free_texts(&self.texts)

    cdef void forget_trails(self) noexcept:
        cdef Py_ssize_t number
        for number in range(self.used):
            forget(&self.entries[number].trail)

    cdef Py_ssize_t memory(self) noexcept:
        """Without trails."""
        cdef Py_ssize_t table = self.used * sizeof(Entry)
        return table + 4 * (self.slot_count + self.ordered) + memory_of(&self.texts)

    # -- the table --------------------------------------------------------------------------------

    cdef Py_ssize_t find(self, const char* text, Py_ssize_t size, uint32_t hash) noexcept:
        """The number of its entry, or NOT_FOUND."""
        cdef Py_ssize_t slot = self.slot_of(text, size, hash)
        return NOT_FOUND if slot == NOT_FOUND else <Py_ssize_t>self.slots[slot] - 1

    cdef Py_ssize_t slot_of(self, const char* text, Py_ssize_t size, uint32_t hash) noexcept:
        cdef Py_ssize_t mask = self.slot_count - 1
        cdef Py_ssize_t slot = hash & mask
        cdef Entry* entry
        if not self.slot_count:
            return NOT_FOUND
        while self.slots[slot] != NOBODY:
            if self.slots[slot] != GONE:
                entry = &self.entries[self.slots[slot] - 1]
                if (
                    entry.hash == hash
                    and length_of(entry.text) == size
                    and memcmp(entry.text + 4, text, size) == 0
                ):
                    return slot
            slot = (slot + 1) & mask
        return NOT_FOUND

    cdef bint is_full(self) noexcept:
        """Removed entries occupy slots too, until `rebuild`."""
        return 4 * (self.used + 1) > 3 * self.slot_count

    cdef Py_ssize_t append(
        self, const char* text, Py_ssize_t size, uint32_t hash,
        int64_t count, int64_t first, int64_t last,
    ) except -1:
        """Add an entry for a subject that has none; the partition is not full. Its number."""
        cdef Py_ssize_t number = self.used
        cdef Entry* entry
        if self.used == self.room:
            self.grow(self.room + self.room // 2 + 8)
        entry = &self.entries[number]
        entry.text = keep_text(&self.texts, text, size)
        entry.first, entry.last, entry.count = first, last, count
        entry.trail = NULL
        entry.hash = hash
        self.place(number)
        self.used += 1
        self.live += 1
        return number

    cdef int remove(self, const char* text, Py_ssize_t size, uint32_t hash, int64_t count) except -1:
        """Remove messages of a subject that has as many. 1 if it was removed with them, else 0."""
        cdef Py_ssize_t slot = self.slot_of(text, size, hash)
        cdef Entry* entry
        if slot == NOT_FOUND:
            raise KeyError(text[:size])
        entry = &self.entries[self.slots[slot] - 1]
        assert entry.count >= count, f"subject {text[:size]!r} has lost more messages than it had"
        entry.count -= count
        if entry.count:
            return 0
        forget(&entry.trail)
        self.slots[slot] = GONE
        self.dead_bytes += 4 + length_of(entry.text)
        self.live -= 1
        return 1

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

    cdef int make_slots(self, Py_ssize_t entries) except -1:
        """Replace the slots by empty ones, twice as many as entries."""
        cdef Py_ssize_t slot_count = 8
        cdef uint32_t* slots
        while slot_count < 2 * (entries + 1):
            slot_count *= 2
        slots = <uint32_t*>calloc(slot_count, sizeof(uint32_t))
        if slots == NULL:
            raise MemoryError
        free(self.slots)
        self.slots, self.slot_count = slots, slot_count
        return 0

    cdef int rebuild(self) except -1:
        """Drop removed entries, resize the slots, and copy the texts if most of them belong to
        removed entries."""
        cdef Py_ssize_t number
        cdef Py_ssize_t kept = 0
        cdef bint moving = 2 * self.dead_bytes > self.texts.nbytes
        cdef Texts old = self.texts
        cdef char* text
        self.make_slots(self.live)
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

    cdef tuple split(self):
        """Two partitions with all its entries, divided by the next bit of the hash. This one is
        empty after it."""
        cdef Partition low = Partition.__new__(Partition, self.bits + 1)
        cdef Partition high = Partition.__new__(Partition, self.bits + 1)
        cdef Partition half
        cdef Entry* entry
        cdef Py_ssize_t number, moved
        cdef int shift = 31 - self.bits
        low.make_slots(self.live // 2)
        high.make_slots(self.live // 2)
        for number in range(self.used):
            entry = &self.entries[number]
            if not entry.count:
                continue
            half = high if (entry.hash >> shift) & 1 else low
            if half.is_full():
                half.rebuild()
            moved = half.append(
                entry.text + 4, length_of(entry.text), entry.hash,
                entry.count, entry.first, entry.last,
            )
            half.entries[moved].trail, entry.trail = entry.trail, NULL
        self.used = self.live = 0
        self.generation += 1
        return low, high

    # -- the order --------------------------------------------------------------------------------

    cdef int sort(self) except -1:
        """Bring the order up to date: sort the new entries, then move the old ones apart."""
        global sorting
        cdef Py_ssize_t fresh_count = self.used - self.order_upto
        cdef Py_ssize_t end = self.ordered
        cdef Py_ssize_t i, low, high, middle
        cdef uint32_t* fresh
        cdef uint32_t* order
        if not fresh_count:
            return 0
        fresh = <uint32_t*>malloc(4 * fresh_count)
        order = <uint32_t*>realloc(self.order, 4 * (self.ordered + fresh_count))
        if order != NULL:
            self.order = order
        if order == NULL or fresh == NULL:
            free(fresh)
            raise MemoryError
        for i in range(fresh_count):
            fresh[i] = <uint32_t>(self.order_upto + i)
        sorting = self.entries
        qsort(fresh, fresh_count, 4, by_text)
        for i in range(fresh_count - 1, -1, -1):  # the last one first: each old entry moves once
            low, high = 0, end
            while low < high:
                middle = (low + high) >> 1
                if by_text(&order[middle], &fresh[i]) < 0:
                    low = middle + 1
                else:
                    high = middle
            memmove(&order[low + i + 1], &order[low], 4 * (end - low))
            order[low + i] = fresh[i]
            end = low
        free(fresh)
        self.ordered += fresh_count
        self.order_upto = self.used
        return 0

    cdef Py_ssize_t first_from(self, bytes prefix) noexcept:
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
