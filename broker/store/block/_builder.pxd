# cython: language_level=3
from libc.stdint cimport int64_t

from broker.store.block._block cimport COLUMNS, Block, Rows


cdef class BlockBuilder(Rows):
    cdef Py_ssize_t lengths[COLUMNS]
    cdef Py_ssize_t blob_capacity[COLUMNS]
    cdef Py_ssize_t ends_capacity[COLUMNS]
    cdef Py_ssize_t times_capacity
    cdef Py_ssize_t seqs_capacity
    cdef int64_t* seqs_memory  # `seqs` points here once there is a gap; before that it is NULL

    cdef int check_room(self, Py_ssize_t count, const Py_ssize_t* added) except -1
    cdef int check_next(self, int64_t seq, Py_ssize_t count) except -1
    cdef int number(self, Py_ssize_t count, int64_t first, const int64_t* seqs) except -1
    cdef int forget_rows(self) except -1
    cdef void add_field(self, int column, const char* text, Py_ssize_t size) noexcept
    cdef void copy_rows(
        self, Block block, Py_ssize_t start, Py_ssize_t stop, bint stamped, int64_t stamp
    ) noexcept
