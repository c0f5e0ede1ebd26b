# cython: language_level=3
"""Compiled block builder: columns in C memory, filled by copying whole ranges of rows.

Owns: rows that are not sealed yet, and their numbering.
May not touch: files, clocks, what a message means.
Spec: builder_py.py; the format is in block_format.py."""

from isal.isal_zlib import crc32

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from broker.store.block._block cimport DATA, HEADERS, SUBJECTS, BlockHeader, block_size, padded
from broker.wire._run cimport PubRecord, PubRun
from broker.wire._text cimport reserve

from broker.store.block import block_format

cdef uint32_t MAGIC = block_format.MAGIC
cdef uint16_t VERSION = block_format.VERSION
cdef uint16_t HAS_SEQS = block_format.HAS_SEQS
cdef Py_ssize_t CRC_FROM = block_format.CRC_FROM
cdef Py_ssize_t SECTION_BYTES_MAX = block_format.SECTION_BYTES_MAX
cdef Py_ssize_t TOTAL_BYTES_MAX = block_format.TOTAL_BYTES_MAX
cdef int64_t SEQ_MAX = block_format.SEQ_MAX
cdef Py_ssize_t KEPT_BYTES_MAX = 1 << 16  # clear() frees larger columns
cdef Py_ssize_t LARGE_BYTES = 1 << 20  # reserved at once: doubling would copy what is there


@cython.final
cdef class BlockBuilder(Rows):
    def __init__(self, int64_t first_seq=0):
        check_seq(first_seq)
        self.first_seq = first_seq
        self.last_seq = max(first_seq - 1, <int64_t>0)
        self.forget_rows()

    def __dealloc__(self):
        cdef int column
        free(self.seqs_memory)
        free(self.times)
        for column in range(COLUMNS):
            free(self.ends[column])
            free(self.blobs[column])

    @property
    def nbytes(self):
        return block_size(self.rows, self.seqs != NULL, self.lengths)

    def append(
        self,
        bytes subject not None,
        bytes headers not None,
        bytes data not None,
        *,
        int64_t time_ns=0,
        int64_t seq=0,
    ):
        cdef Py_ssize_t[COLUMNS] added
        added[SUBJECTS], added[HEADERS], added[DATA] = len(subject), len(headers), len(data)
        self.check_next(seq, 1)
        self.check_room(1, added)
        self.number(1, seq, NULL)
        self.times[self.rows] = time_ns
        self.add_field(SUBJECTS, PyBytes_AS_STRING(subject), added[SUBJECTS])
        self.add_field(HEADERS, PyBytes_AS_STRING(headers), added[HEADERS])
        self.add_field(DATA, PyBytes_AS_STRING(data), added[DATA])
        self.rows += 1

    def append_run(self, PubRun run not None, Py_ssize_t start, Py_ssize_t stop):
        cdef Py_ssize_t[COLUMNS] added
        cdef PubRecord* record
        cdef Py_ssize_t i
        run.check(start, stop)
        added[:] = [0, 0, 0]
        for i in range(start, stop):
            record = &run.records[i]
            added[SUBJECTS] += record.subject_size
            added[HEADERS] += record.header_size
            added[DATA] += record.size - record.header_size
        self.check_next(0, stop - start)
        self.check_room(stop - start, added)
        self.number(stop - start, 0, NULL)
        for i in range(start, stop):
            record = &run.records[i]
            self.times[self.rows] = 0
            self.add_field(SUBJECTS, run.base + record.subject, record.subject_size)
            self.add_field(HEADERS, run.base + record.body, record.header_size)
            self.add_field(
                DATA, run.base + record.body + record.header_size, record.size - record.header_size
            )
            self.rows += 1

    def append_block(self, Block block not None, *, time_ns=None, first_seq=None, skip=None):
        cdef bint stamped = time_ns is not None
        cdef int64_t stamp = time_ns if stamped else 0
        cdef list kept = kept_ranges(block.rows, skip)
        cdef bint numbered = first_seq is not None or not block.first_seq
        cdef int64_t seq = first_seq if first_seq is not None else 0
        cdef Py_ssize_t[COLUMNS] added
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t start, stop
        cdef int column
        check_seq(seq)
        added[:] = [0, 0, 0]
        for start, stop in kept:
            count += stop - start
            for column in range(COLUMNS):
                added[column] += block.ends[column][stop] - block.ends[column][start]
        if count == 0:
            return
        start = kept[0][0]
        self.check_next(seq if numbered else block.seq_at(start), count if numbered else 1)
        self.check_room(count, added)
        for start, stop in kept:
            if numbered:
                self.number(stop - start, seq, NULL)
                seq += stop - start if seq else 0
            elif block.seqs != NULL:
                self.number(stop - start, 0, block.seqs + start)
            else:
                self.number(stop - start, block.first_seq + start, NULL)
            self.copy_rows(block, start, stop, stamped, stamp)

    def build(self, *, bint seal=True):
        cdef Py_ssize_t total = block_size(self.rows, self.seqs != NULL, self.lengths)
        cdef bytes raw = PyBytes_FromStringAndSize(NULL, total)
        cdef char* start = PyBytes_AS_STRING(raw)
        cdef char* at = start + sizeof(BlockHeader)
        cdef BlockHeader header
        cdef Py_ssize_t i
        cdef int column
        memset(&header, 0, sizeof(BlockHeader))
        header.magic = MAGIC
        header.version = VERSION
        header.flags = HAS_SEQS if self.seqs != NULL else 0
        header.count = <uint32_t>self.rows
        header.first_seq = <uint64_t>self.first_seq
        header.last_seq = <uint64_t>self.last_seq
        header.total_len = <uint32_t>total
        if self.rows:
            header.min_time = header.max_time = self.times[0]
        for i in range(self.rows):
            header.min_time = min(header.min_time, self.times[i])
            header.max_time = max(header.max_time, self.times[i])
        if self.seqs != NULL:
            at = put_padded(at, <char*>self.seqs, 8 * self.rows)
        at = put_padded(at, <char*>self.times, 8 * self.rows)
        for column in range(COLUMNS):
            if self.rows:
                at = put_padded(at, <char*>self.ends[column], 4 * (self.rows + 1))
            else:
                memset(at, 0, 8)
                at += 8
        for column in range(COLUMNS):
            header.lengths[column] = <uint32_t>self.lengths[column]
            at = put_padded(at, self.blobs[column], self.lengths[column])
        assert at == start + total
        # No other reference to the object exists yet, so its bytes may still be changed.
        memcpy(start, &header, sizeof(BlockHeader))
        if seal:
            header.crc = crc32(memoryview(raw)[CRC_FROM:])
            memcpy(start, &header, sizeof(BlockHeader))
        return raw

    def clear(self):
        if self.first_seq:
            self.first_seq = self.last_seq + 1
        self.forget_rows()

    cdef int forget_rows(self) except -1:
        cdef int column
        self.rows = 0
        self.widest = -1
        self.seqs = NULL
        for column in range(COLUMNS):
            self.lengths[column] = 0
            if self.blob_capacity[column] > KEPT_BYTES_MAX:
                free(self.blobs[column])
                self.blobs[column] = NULL
                self.blob_capacity[column] = 0
        return 0

    cdef int check_room(self, Py_ssize_t count, const Py_ssize_t* added) except -1:
        """Reserve memory for `count` more rows. If it raises, nothing has changed."""
        cdef Py_ssize_t[COLUMNS] lengths
        cdef Py_ssize_t rows = self.rows + count
        cdef bint too_long = False
        cdef Py_ssize_t wanted
        cdef int column
        for column in range(COLUMNS):
            lengths[column] = self.lengths[column] + added[column]
            too_long = too_long or lengths[column] > SECTION_BYTES_MAX
        # Includes a sequence column, because any later row may bring a gap.
        if too_long or block_size(rows, True, lengths) > TOTAL_BYTES_MAX:
            raise OverflowError("a block cannot hold that many bytes")
        reserve(<void**>&self.times, &self.times_capacity, rows, sizeof(int64_t))
        for column in range(COLUMNS):
            reserve(
                <void**>&self.ends[column], &self.ends_capacity[column], rows + 1, sizeof(int32_t)
            )
            # At least one byte: memcpy needs a valid pointer even for size 0.
            wanted = max(lengths[column], <Py_ssize_t>1)
            if wanted > KEPT_BYTES_MAX:
                wanted = max(wanted, LARGE_BYTES)
            reserve(<void**>&self.blobs[column], &self.blob_capacity[column], wanted, 1)
            self.ends[column][0] = 0
        self.widest = -1
        return 0

    cdef int check_next(self, int64_t seq, Py_ssize_t count) except -1:
        """Raises if `count` rows from sequence `seq` on (0: the next one) cannot be appended."""
        check_seq(seq)
        if seq == 0:
            seq = self.last_seq + 1 if self.first_seq else 0
        elif self.rows and not self.first_seq:
            raise ValueError("rows without a sequence come before this one")
        elif seq <= self.last_seq:
            raise ValueError(f"sequence {seq} after {self.last_seq}")
        if count > 0 and seq > SEQ_MAX - (count - 1):
            raise OverflowError("a sequence needs more than 63 bits")
        return 0

    cdef int number(self, Py_ssize_t count, int64_t first, const int64_t* seqs) except -1:
        """Give the next `count` rows their sequences: `seqs`, or `first` and following (0: the next
        ones). The sequence column is created at the first gap."""
        cdef int64_t last
        cdef bint gap
        cdef Py_ssize_t i
        if seqs != NULL:
            first = seqs[0]
        elif first == 0 and self.first_seq:
            first = self.last_seq + 1
        if count == 0 or first == 0:
            return 0
        last = first + count - 1 if seqs == NULL else seqs[count - 1]
        gap = last - first != count - 1 or (self.rows > 0 and first != self.last_seq + 1)
        if gap or self.seqs != NULL:
            reserve(
                <void**>&self.seqs_memory,
                &self.seqs_capacity,
                self.rows + count,
                sizeof(int64_t),
            )
            if self.seqs == NULL:
                for i in range(self.rows):
                    self.seqs_memory[i] = self.first_seq + i
            self.seqs = self.seqs_memory
            for i in range(count):
                self.seqs[self.rows + i] = first + i if seqs == NULL else seqs[i]
        if self.rows == 0:
            self.first_seq = first
        self.last_seq = last
        return 0

    cdef void add_field(self, int column, const char* text, Py_ssize_t size) noexcept:
        """Append one field of row `rows`; check_room() has reserved the memory."""
        memcpy(self.blobs[column] + self.lengths[column], text, <size_t>size)
        self.lengths[column] += size
        self.ends[column][self.rows + 1] = <int32_t>self.lengths[column]

    cdef void copy_rows(
        self, Block block, Py_ssize_t start, Py_ssize_t stop, bint stamped, int64_t stamp
    ) noexcept:
        cdef Py_ssize_t count = stop - start
        cdef int32_t* source
        cdef int32_t* target
        cdef int32_t shift
        cdef Py_ssize_t i, size
        cdef int column
        for column in range(COLUMNS):
            source = block.ends[column] + start
            target = self.ends[column] + self.rows
            size = source[count] - source[0]
            shift = <int32_t>(self.lengths[column] - source[0])
            memcpy(
                self.blobs[column] + self.lengths[column],
                block.blobs[column] + source[0],
                <size_t>size,
            )
            for i in range(1, count + 1):
                target[i] = source[i] + shift
            self.lengths[column] += size
        for i in range(count):
            self.times[self.rows + i] = stamp if stamped else block.times[start + i]
        self.rows += count


def stamped(Block block not None, *, int64_t time_ns, int64_t first_seq):
    cdef Py_ssize_t total = block.header.total_len
    cdef bytes raw
    cdef char* start
    cdef int64_t* times
    cdef BlockHeader header = block.header
    cdef Py_ssize_t i
    check_unnumbered(block, first_seq)
    raw = PyBytes_FromStringAndSize(NULL, total)
    start = PyBytes_AS_STRING(raw)
    # Without a sequence column, the times follow the header.
    memcpy(start, <char*>block.times - sizeof(BlockHeader), <size_t>total)
    times = <int64_t*>(start + sizeof(BlockHeader))
    for i in range(block.rows):
        times[i] = time_ns
    header.min_time = header.max_time = time_ns
    header.first_seq = <uint64_t>first_seq
    header.last_seq = <uint64_t>(first_seq + block.rows - 1)
    header.crc = 0
    # No other reference to the object exists yet, so its bytes may still be changed.
    memcpy(start, &header, sizeof(BlockHeader))
    header.crc = crc32(memoryview(raw)[CRC_FROM:])
    memcpy(start, &header, sizeof(BlockHeader))
    return raw


cdef int check_unnumbered(Block block, int64_t first_seq) except -1:
    if not block.rows or block.first_seq or block.seqs != NULL or first_seq < 1:
        raise ValueError("only rows without sequences can be numbered")
    if first_seq > SEQ_MAX - (block.rows - 1):
        raise OverflowError("a sequence needs more than 63 bits")
    return 0


cdef char* put_padded(char* at, const char* section, Py_ssize_t size) noexcept:
    if size:
        memcpy(at, section, <size_t>size)
    memset(at + size, 0, <size_t>(padded(size) - size))
    return at + padded(size)


cdef list kept_ranges(Py_ssize_t rows, skip):
    """The rows not in `skip`, as ranges, so that each range is copied at once."""
    cdef list ranges = []
    cdef Py_ssize_t start = 0
    for i in sorted(skip) if skip else ():
        if 0 <= i < rows:
            if start < i:
                ranges.append((start, i))
            start = i + 1
    if start < rows:
        ranges.append((start, rows))
    return ranges


cdef int check_seq(int64_t seq) except -1:
    if seq < 0:
        raise ValueError(f"sequence {seq} is negative")
    if seq > SEQ_MAX:
        raise OverflowError("a sequence needs more than 63 bits")
    return 0
