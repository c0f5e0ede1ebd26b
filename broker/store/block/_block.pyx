# cython: language_level=3
"""Compiled block reader: pointers into the columns, checked once, read without copies.

Owns: the view over one block's bytes.
May not touch: files, clocks, what a message means.
Spec: block_format.py, which also specifies the format."""

import sys
from array import array

from isal.isal_zlib import crc32

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from broker.store.block import block_format
from broker.store.block.block_format import BlockDamaged

cdef extern from "string.h" nogil:
    void* memmem(const void* where, size_t size, const void* what, size_t what_size)

if sys.byteorder != "little":
    raise ImportError("compiled blocks need a little-endian machine; set JETRAFT_PURE=1")
assert sizeof(BlockHeader) == block_format.HEADER.size

cdef enum:
    RECENT_BITS = 11
    RECENT = 1 << RECENT_BITS  # subjects that a summary finds without making an object

cdef uint32_t MAGIC = block_format.MAGIC
cdef uint16_t VERSION = block_format.VERSION
cdef uint16_t HAS_SEQS = block_format.HAS_SEQS
cdef Py_ssize_t CRC_FROM = block_format.CRC_FROM
cdef uint32_t SECTION_BYTES_MAX = block_format.SECTION_BYTES_MAX
cdef uint64_t SEQ_MAX = block_format.SEQ_MAX


cdef class Rows:
    def subject(self, Py_ssize_t i):
        return self.field(SUBJECTS, i)

    def headers(self, Py_ssize_t i):
        return self.field(HEADERS, i)

    def data(self, Py_ssize_t i):
        return self.field(DATA, i)

    def time(self, Py_ssize_t i):
        self.check(i)
        return self.times[i]

    def seq(self, Py_ssize_t i):
        self.check(i)
        return self.seq_at(i)

    def row_size(self, Py_ssize_t i):
        self.check(i)
        return row_bytes(self, i)

    @property
    def max_row_size(self):
        cdef Py_ssize_t i
        if self.widest < 0:
            self.widest = 0
            for i in range(self.rows):
                self.widest = max(self.widest, row_bytes(self, i))
        return self.widest

    def first_at_or_after(self, int64_t seq):
        return self.row_of(seq)

    def index_of(self, int64_t seq):
        cdef Py_ssize_t i = self.row_of(seq)
        return i if i < self.rows and self.seq_at(i) == seq else -1

    def subject_runs(self):
        cdef list found = []
        cdef Py_ssize_t start = 0
        cdef Py_ssize_t i
        for i in range(1, self.rows + 1):
            if i == self.rows or not same_subject(self, start, i):
                found.append((self.field(SUBJECTS, start), start, i))
                start = i
        return found

    def subject_summary(self):
        """Most runs find their subject among the recent ones, without making an object. One that
        does not, because another subject has its place, asks the dict, whose hash is keyed."""
        cdef dict numbers = {}
        cdef int32_t recent[RECENT]  # number of a subject + 1, 0: none
        cdef Py_ssize_t start = 0
        cdef Py_ssize_t i, place, number, distinct
        cdef int32_t* firsts = <int32_t*>malloc(3 * sizeof(int32_t) * max(self.rows, 1))
        if firsts == NULL:
            raise MemoryError
        cdef int32_t* lasts = firsts + self.rows
        cdef int32_t* counts = lasts + self.rows
        memset(recent, 0, sizeof(recent))
        try:
            for i in range(1, self.rows + 1):
                if i < self.rows and same_subject(self, start, i):
                    continue
                place = recent_place(self, start)
                number = recent[place] - 1
                if number < 0 or not same_subject(self, firsts[number], start):
                    distinct = len(numbers)
                    number = numbers.setdefault(self.field(SUBJECTS, start), distinct)
                    recent[place] = <int32_t>number + 1
                    if number == distinct:
                        firsts[number] = <int32_t>start
                        counts[number] = 0
                counts[number] += <int32_t>(i - start)
                lasts[number] = <int32_t>i - 1
                start = i
            return {
                subject: [counts[number], firsts[number], lasts[number]]
                for subject, number in numbers.items()
            }
        finally:
            free(firsts)

    def rows_of(self, bytes subject not None):
        cdef list found = []
        cdef const char* text = subject
        cdef Py_ssize_t size = len(subject)
        cdef int32_t* ends = self.ends[SUBJECTS]
        cdef char* blob = self.blobs[SUBJECTS]
        cdef Py_ssize_t start = -1
        cdef Py_ssize_t i
        for i in range(self.rows):
            if ends[i + 1] - ends[i] == size and memcmp(blob + ends[i], text, size) == 0:
                if start < 0:
                    start = i
            elif start >= 0:
                found.append((start, i))
                start = -1
        if start >= 0:
            found.append((start, self.rows))
        return found

    def rows_matching(self, patterns):
        cdef list known = [bytes(pattern) for pattern in patterns]
        cdef list found = []
        cdef int32_t* ends = self.ends[SUBJECTS]
        cdef char* blob = self.blobs[SUBJECTS]
        cdef bytes pattern
        cdef bint matched = False
        cdef Py_ssize_t start = -1
        cdef Py_ssize_t i
        for i in range(self.rows):
            if i == 0 or not same_subject(self, i - 1, i):
                matched = False
                for pattern in known:
                    if fits(pattern, len(pattern), blob + ends[i], ends[i + 1] - ends[i]):
                        matched = True
                        break
            if matched:
                if start < 0:
                    start = i
            elif start >= 0:
                found.append((start, i))
                start = -1
        if start >= 0:
            found.append((start, self.rows))
        return found

    def seqs_of(self, stretches):
        cdef Py_ssize_t begin, end, i
        cdef Py_ssize_t count = 0
        cdef int64_t* seqs
        for begin, end in stretches:
            if begin < end:
                self.check(begin)
                self.check(end - 1)
                count += end - begin
        cdef bytearray found = bytearray(8 * count)
        seqs = <int64_t*>PyByteArray_AS_STRING(found)
        for begin, end in stretches:
            for i in range(begin, end):
                seqs[0] = self.seq_at(i)
                seqs += 1
        numbers = array("Q")
        numbers.frombytes(found)
        return numbers

    def any_nats_header(self):
        cdef const char* text = self.blobs[HEADERS]
        cdef int32_t* ends = self.ends[HEADERS]
        cdef Py_ssize_t i, size
        if self.rows == 0 or memmem(text, ends[self.rows], b"Nats-", 5) == NULL:
            return False
        for i in range(self.rows):
            size = ends[i + 1] - ends[i]
            if size >= 5 and memcmp(text + ends[i], b"Nats-", 5) == 0:
                return True
            if memmem(text + ends[i], size, b"\nNats-", 6) != NULL:
                return True
        return False

    cdef int check(self, Py_ssize_t i) except -1:
        if not 0 <= i < self.rows:
            raise IndexError(f"row {i} of {self.rows}")
        return 0

    cdef int64_t seq_at(self, Py_ssize_t i) noexcept:
        if self.seqs != NULL:
            return self.seqs[i]
        return self.first_seq + i if self.first_seq else 0

    cdef bytes field(self, int column, Py_ssize_t i):
        self.check(i)
        cdef int32_t* ends = self.ends[column]
        return self.blobs[column][ends[i]:ends[i + 1]]

    @cython.cdivision(True)
    cdef Py_ssize_t row_of(self, int64_t seq) noexcept:
        """The first row with a sequence of at least `seq`; `rows` if there is none."""
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.rows
        cdef Py_ssize_t middle
        if not self.first_seq or seq > self.last_seq:
            return self.rows
        if seq <= self.first_seq:
            return 0
        if self.seqs == NULL:
            return seq - self.first_seq
        while low < high:
            middle = low + (high - low) // 2
            if self.seqs[middle] < seq:
                low = middle + 1
            else:
                high = middle
        return low


cdef bint fits(
    const char* pattern, Py_ssize_t size, const char* subject, Py_ssize_t length
) noexcept:
    """Whether the pattern matches: `*` is one token, `>` at the end is all that follow."""
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t at = 0
    while True:  # at the beginning of a token, in both
        if at == size - 1 and pattern[at] == b">":
            return True
        if at < size and pattern[at] == b"*" and (at + 1 == size or pattern[at + 1] == b"."):
            at += 1
            while i < length and subject[i] != b".":
                i += 1
        else:
            while at < size and pattern[at] != b".":
                if i >= length or subject[i] != pattern[at]:
                    return False
                i += 1
                at += 1
            if i < length and subject[i] != b".":
                return False
        if at == size or i == length:
            return at == size and i == length
        at += 1
        i += 1


cdef inline Py_ssize_t row_bytes(Rows rows, Py_ssize_t i) noexcept:
    cdef Py_ssize_t headers = rows.ends[HEADERS][i + 1] - rows.ends[HEADERS][i]
    return headers + rows.ends[DATA][i + 1] - rows.ends[DATA][i]


cdef inline Py_ssize_t recent_place(Rows rows, Py_ssize_t i) noexcept:
    """By the end of the subject, where subjects differ."""
    cdef int32_t* ends = rows.ends[SUBJECTS]
    cdef Py_ssize_t size = ends[i + 1] - ends[i]
    cdef Py_ssize_t tail = min(size, 8)
    cdef uint64_t word = 0
    memcpy(&word, rows.blobs[SUBJECTS] + ends[i + 1] - tail, tail)
    return <Py_ssize_t>(((word ^ <uint64_t>size) * 0x9E3779B97F4A7C15ULL) >> (64 - RECENT_BITS))


cdef inline bint same_subject(Rows rows, Py_ssize_t a, Py_ssize_t b) noexcept:
    cdef int32_t* ends = rows.ends[SUBJECTS]
    cdef Py_ssize_t size = ends[a + 1] - ends[a]
    if ends[b + 1] - ends[b] != size:
        return False
    return memcmp(rows.blobs[SUBJECTS] + ends[a], rows.blobs[SUBJECTS] + ends[b], size) == 0


@cython.final
cdef class Block(Rows):
    def __init__(self, raw, *, bint verify=True):
        cdef Py_buffer view
        cdef char* at
        cdef Py_ssize_t size
        cdef int column
        if self.owner is not None:
            raise TypeError("a block is opened once")
        if not isinstance(raw, bytes) and not memoryview(raw).readonly:
            raw = bytes(raw)  # the bytes must not change after the checks
        self.raw = raw
        # The memory does not move: `owner` is bytes, or a memoryview that keeps its buffer locked.
        self.owner = raw if isinstance(raw, bytes) else memoryview(raw)
        PyObject_GetBuffer(self.owner, &view, PyBUF_SIMPLE)
        at = <char*>view.buf
        size = view.len
        PyBuffer_Release(&view)
        if <uintptr_t>at % 8:  # the integer columns need 8-byte alignment
            self.owner = bytes(self.owner)
            at = self.owner
        if size >= <Py_ssize_t>sizeof(BlockHeader):
            memcpy(&self.header, at, sizeof(BlockHeader))
        self.check_header(size)
        if verify and crc32(memoryview(self.owner).cast("B")[CRC_FROM:]) != self.header.crc:
            raise BlockDamaged("the checksum differs")
        self.widest = -1
        at += sizeof(BlockHeader)
        if self.header.flags & HAS_SEQS:
            self.seqs = <int64_t*>at
            at += 8 * <Py_ssize_t>self.header.count
        self.times = <int64_t*>at
        at += 8 * <Py_ssize_t>self.header.count
        for column in range(COLUMNS):
            self.ends[column] = <int32_t*>at
            at += padded(4 * (<Py_ssize_t>self.header.count + 1))
        for column in range(COLUMNS):
            self.blobs[column] = at
            at += padded(self.header.lengths[column])
        self.check_columns()
        # Set last: until the checks have passed, readers see a block without rows.
        self.rows = self.header.count
        self.first_seq = <int64_t>self.header.first_seq
        self.last_seq = <int64_t>self.header.last_seq

    @property
    def count(self):
        return self.header.count

    @property
    def subjects_len(self):
        return self.header.lengths[SUBJECTS]

    @property
    def headers_len(self):
        return self.header.lengths[HEADERS]

    @property
    def data_len(self):
        return self.header.lengths[DATA]

    @property
    def nbytes(self):
        return self.header.total_len

    @property
    def min_time(self):
        return self.header.min_time

    @property
    def max_time(self):
        return self.header.max_time

    cdef int check_header(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t lengths[COLUMNS]
        cdef Py_ssize_t expected
        cdef bint too_long = False
        cdef int column
        if size < <Py_ssize_t>sizeof(BlockHeader):
            raise BlockDamaged("shorter than a header")
        if self.header.magic != MAGIC:
            raise BlockDamaged("not a block")
        if self.header.version != VERSION:
            raise BlockDamaged(f"format version {self.header.version}")
        if self.header.flags & ~HAS_SEQS:
            raise BlockDamaged(f"unknown flags {self.header.flags:#x}")
        for column in range(COLUMNS):
            lengths[column] = self.header.lengths[column]
            too_long = too_long or self.header.lengths[column] > SECTION_BYTES_MAX
        expected = block_size(self.header.count, self.header.flags & HAS_SEQS, lengths)
        if too_long or expected != size or expected != <Py_ssize_t>self.header.total_len:
            raise BlockDamaged("the lengths contradict each other")
        return 0

    cdef int check_columns(self) except -1:
        """Check everything the readers rely on, in one pass over the ends and the sequences."""
        cdef Py_ssize_t count = self.header.count
        cdef uint64_t first = self.header.first_seq
        cdef uint64_t expected_last = 0
        cdef int32_t* ends
        cdef bint falls
        cdef Py_ssize_t i
        cdef int column
        for column in range(COLUMNS):
            ends = self.ends[column]
            falls = False
            for i in range(count):
                falls |= ends[i + 1] < ends[i]
            if falls or ends[0] != 0 or ends[count] != <int64_t>self.header.lengths[column]:
                raise BlockDamaged("the ends of a column are out of order")
        if first > SEQ_MAX + 1 or first + <uint64_t>count > SEQ_MAX + 1:
            raise BlockDamaged("the first and last sequence contradict the rows")
        if first:
            expected_last = first + count - 1
        if self.seqs != NULL and count > 0:
            expected_last = <uint64_t>self.seqs[count - 1]
            if first == 0 or <uint64_t>self.seqs[0] != first:
                raise BlockDamaged("the sequence column does not begin at the first sequence")
            falls = False
            for i in range(count - 1):
                falls |= self.seqs[i + 1] <= self.seqs[i]
            if falls:
                raise BlockDamaged("the sequences do not increase")
        if self.header.last_seq != expected_last or expected_last > SEQ_MAX:
            raise BlockDamaged("the first and last sequence contradict the rows")
        return 0
