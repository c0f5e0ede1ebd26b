# cython: language_level=3
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t

cdef enum:
    SUBJECTS
    HEADERS
    DATA
    COLUMNS

cdef struct BlockHeader:  # natural alignment yields exactly the offsets of the format
    uint32_t magic
    uint16_t version
    uint16_t flags
    uint32_t count
    uint32_t crc
    uint64_t first_seq
    uint32_t lengths[COLUMNS]
    uint32_t total_len
    int64_t min_time
    int64_t max_time
    uint64_t last_seq


cdef class Rows:
    # Invariant: for each column and i < rows, 0 <= ends[i] <= ends[i + 1] <= size of the blob.
    # Code that sets these pointers must check it first; the readers rely on it.
    cdef readonly Py_ssize_t rows
    cdef readonly int64_t first_seq
    cdef readonly int64_t last_seq
    cdef int64_t* seqs  # NULL: contiguous, or not yet assigned
    cdef int64_t* times
    cdef int32_t* ends[COLUMNS]
    cdef char* blobs[COLUMNS]
    cdef Py_ssize_t widest  # largest row_size(), -1 while unknown

    cdef int check(self, Py_ssize_t i) except -1
    cdef int64_t seq_at(self, Py_ssize_t i) noexcept
    cdef bytes field(self, int column, Py_ssize_t i)
    cdef Py_ssize_t row_of(self, int64_t seq) noexcept


cdef class Block(Rows):
    cdef readonly object raw
    cdef object owner  # what the pointers point into; `raw` itself unless that was misaligned
    cdef BlockHeader header

    cdef int check_header(self, Py_ssize_t size) except -1
    cdef int check_columns(self) except -1


cdef inline Py_ssize_t padded(Py_ssize_t size) noexcept nogil:
    return (size + 7) & ~<Py_ssize_t>7


cdef inline Py_ssize_t block_size(
    Py_ssize_t count, bint has_seqs, const Py_ssize_t* lengths
) noexcept nogil:
    cdef Py_ssize_t size = sizeof(BlockHeader) + 8 * count * (2 if has_seqs else 1)
    size += 3 * padded(4 * (count + 1))
    return size + padded(lengths[SUBJECTS]) + padded(lengths[HEADERS]) + padded(lengths[DATA])
