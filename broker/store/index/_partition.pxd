# cython: language_level=3
"""Declarations of _partition.pyx, which the index uses."""

from libc.stdint cimport int64_t, uint32_t

from broker.store.index._texts cimport Texts
from broker.store.index._trail cimport Trail

cdef enum:
    NOT_FOUND = -1

cdef struct Entry:
    int64_t first
    int64_t last
    int64_t count  # 0: the subject was removed
    Trail* trail
    char* text  # the length of the subject in four bytes, then the subject
    uint32_t hash


cdef bytes subject_of(const Entry* entry)


cdef class Partition:
    cdef Entry* entries
    cdef Py_ssize_t used  # entries numbered so far, including removed ones
    cdef Py_ssize_t room
    cdef readonly Py_ssize_t live
    cdef uint32_t* slots
    cdef Py_ssize_t slot_count  # a power of two
    cdef Texts texts
    cdef Py_ssize_t dead_bytes  # of texts whose entries were removed
    cdef uint32_t* order  # entry numbers sorted by subject; may include removed entries
    cdef Py_ssize_t ordered
    cdef Py_ssize_t order_upto  # entries from this number on are not in `order` yet
    cdef int64_t generation
    cdef int bits  # so many leading bits of the hash are alike in all entries

    cdef Py_ssize_t find(self, const char* text, Py_ssize_t size, uint32_t hash) noexcept
    cdef bint is_full(self) noexcept
    cdef Py_ssize_t append(
        self, const char* text, Py_ssize_t size, uint32_t hash,
        int64_t count, int64_t first, int64_t last,
    ) except -1
    cdef int remove(self, const char* text, Py_ssize_t size, uint32_t hash, int64_t count) except -1
    cdef int rebuild(self) except -1
    cdef tuple split(self)
    cdef int sort(self) except -1
    cdef Py_ssize_t first_from(self, bytes prefix) noexcept
    cdef void forget_trails(self) noexcept
    cdef Py_ssize_t memory(self) noexcept
    cdef int grow(self, Py_ssize_t room) except -1
    cdef int make_slots(self, Py_ssize_t entries) except -1
    cdef void place(self, Py_ssize_t number) noexcept
    cdef Py_ssize_t slot_of(self, const char* text, Py_ssize_t size, uint32_t hash) noexcept
