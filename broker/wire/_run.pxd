# cython: language_level=3
from libc.stdint cimport uint32_t


cdef struct PubRecord:
    uint32_t subject  # offsets into the run's buffer
    uint32_t subject_size
    uint32_t reply
    uint32_t reply_size
    uint32_t body  # headers, then payload
    uint32_t header_size
    uint32_t size  # Invariant: header_size <= size, and all spans lie inside the buffer


cdef class PubRun:
    cdef bytes buffer  # owned: the chunk itself, whenever nothing was left over before it
    cdef const char* base
    cdef PubRecord* records
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef readonly Py_ssize_t total_bytes
    cdef readonly bint has_headers

    cdef PubRecord* add(self) except NULL
    cdef bint is_plain_ack(self, Py_ssize_t i, Py_ssize_t* marks)
    cdef int check(self, Py_ssize_t start, Py_ssize_t stop) except -1


cdef PubRun new_run(bytes buffer)
