# cython: language_level=3
"""Compiled: messages of another stream as rows of a block.

Owns: reading MSG and HMSG of a push consumer into rows, and the header line of a source.
May not touch: sockets, the stream that is filled.
Spec: origins_py.py."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from broker.store.block._block cimport COLUMNS, DATA, HEADERS, SUBJECTS, Block, block_size
from broker.store.block._builder cimport BlockBuilder

from broker.store.block import block_format

cdef int64_t SEQ_MAX = block_format.SEQ_MAX
cdef enum:
    WORDS_MAX = 6
    NUMBERS = 4
    LINE_MAX = 4096
    SIZE_DIGITS_MAX = 9
    DIGITS_MAX = 18
    TIME_DIGITS = 19
    SEQ_DIGITS_MAX = 20

cdef struct Head:
    const char* subject
    Py_ssize_t subject_size
    Py_ssize_t header_size
    Py_ssize_t size
    int64_t numbers[NUMBERS]  # stream sequence, consumer sequence, time, pending


def append_delivered(
    BlockBuilder builder not None, bytes received not None, Py_ssize_t at, *,
    int64_t expected, Py_ssize_t rows_max, Py_ssize_t bytes_max,
):
    cdef const char* base = PyBytes_AS_STRING(received)
    cdef Py_ssize_t total = PyBytes_GET_SIZE(received)
    cdef Py_ssize_t[COLUMNS] added
    cdef int64_t pending = -1
    cdef Py_ssize_t end, stop
    cdef const char* body
    cdef Head head
    if at < 0:
        raise IndexError(at)
    while builder.rows < rows_max and (
        block_size(builder.rows, builder.seqs != NULL, builder.lengths) < bytes_max
    ):
        end = line_end(base, at, min(total, at + LINE_MAX))
        if end < 0 or not read_head(base + at, end - at, &head):
            break
        stop = end + 4 + head.size
        if stop > total or base[stop - 2] != c"\r" or base[stop - 1] != c"\n":
            break
        if head.numbers[1] != expected or head.numbers[0] <= builder.last_seq:
            break
        body = base + end + 2
        added[SUBJECTS] = head.subject_size
        added[HEADERS] = head.header_size
        added[DATA] = head.size - head.header_size
        builder.check_next(head.numbers[0], 1)
        builder.check_room(1, added)
        builder.number(1, head.numbers[0], NULL)
        builder.times[builder.rows] = head.numbers[2]
        builder.add_field(SUBJECTS, head.subject, added[SUBJECTS])
        builder.add_field(HEADERS, body, added[HEADERS])
        builder.add_field(DATA, body + head.header_size, added[DATA])
        builder.rows += 1
        pending = head.numbers[3]
        expected += 1
        at = stop
    return at, pending


def append_sourced(
    BlockBuilder builder not None, Block block not None, *, bytes head not None, bytes tail not None
):
    cdef Py_ssize_t[COLUMNS] added
    cdef Py_ssize_t fixed = PyBytes_GET_SIZE(head) + PyBytes_GET_SIZE(tail)
    cdef Py_ssize_t i, kept, digits, subject_size
    cdef const char* subject
    cdef const char* headers
    cdef char[SEQ_DIGITS_MAX] number
    cdef int64_t seq
    for i in range(block.rows):
        seq = block.seq_at(i)
        digits = put_number(number, seq)
        subject = block.blobs[SUBJECTS] + block.ends[SUBJECTS][i]
        subject_size = block.ends[SUBJECTS][i + 1] - block.ends[SUBJECTS][i]
        headers = block.blobs[HEADERS] + block.ends[HEADERS][i]
        kept = block.ends[HEADERS][i + 1] - block.ends[HEADERS][i]
        if kept == 0:
            headers, kept = b"NATS/1.0\r\n", 10
        elif kept >= 2 and headers[kept - 2] == c"\r" and headers[kept - 1] == c"\n":
            kept -= 2
        added[SUBJECTS] = subject_size
        added[HEADERS] = kept + fixed + digits + subject_size + 4
        added[DATA] = block.ends[DATA][i + 1] - block.ends[DATA][i]
        builder.check_next(seq, 1)
        builder.check_room(1, added)
        builder.number(1, seq, NULL)
        builder.times[builder.rows] = block.times[i]
        builder.add_field(SUBJECTS, subject, subject_size)
        add_part(builder, headers, kept)
        add_part(builder, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
        add_part(builder, number, digits)
        add_part(builder, PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail))
        add_part(builder, subject, subject_size)
        builder.add_field(HEADERS, b"\r\n\r\n", 4)
        builder.add_field(DATA, block.blobs[DATA] + block.ends[DATA][i], added[DATA])
        builder.rows += 1


cdef void add_part(BlockBuilder builder, const char* text, Py_ssize_t size) noexcept:
    """A part of the headers of row `rows`; check_room() has reserved the memory."""
    memcpy(builder.blobs[HEADERS] + builder.lengths[HEADERS], text, <size_t>size)
    builder.lengths[HEADERS] += size


cdef Py_ssize_t put_number(char* text, int64_t value) noexcept:
    cdef char[SEQ_DIGITS_MAX] reversed_digits
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t i
    while count == 0 or value > 0:
        reversed_digits[count] = <char>(c"0" + value % 10)
        value = value // 10
        count += 1
    for i in range(count):
        text[i] = reversed_digits[count - 1 - i]
    return count


cdef Py_ssize_t line_end(const char* base, Py_ssize_t at, Py_ssize_t stop) noexcept:
    """Where the CRLF of the line begins, -1 if it is not there."""
    cdef const char* found
    cdef Py_ssize_t start = at
    while start < stop:
        found = <const char*>memchr(base + start, c"\r", <size_t>(stop - start))
        if found == NULL or found - base + 1 >= stop:
            return -1
        if found[1] == c"\n":
            return found - base
        start = found - base + 1
    return -1


cdef bint read_head(const char* line, Py_ssize_t size, Head* head) noexcept:
    """A MSG or HMSG with an ack reply. False for anything else."""
    cdef const char* words[WORDS_MAX]
    cdef Py_ssize_t sizes[WORDS_MAX]
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t start = 0
    cdef Py_ssize_t i
    cdef int64_t value
    for i in range(size + 1):
        if i == size or line[i] == c" ":
            if count == WORDS_MAX:
                return False
            words[count] = line + start
            sizes[count] = i - start
            count += 1
            start = i + 1
    if count == 5 and sizes[0] == 3 and memcmp(words[0], b"MSG", 3) == 0:
        head.header_size = 0
    elif count == 6 and sizes[0] == 4 and memcmp(words[0], b"HMSG", 4) == 0:
        value = read_number(words[4], sizes[4], SIZE_DIGITS_MAX)
        if value < 0:
            return False
        head.header_size = value
    else:
        return False
    value = read_number(words[count - 1], sizes[count - 1], SIZE_DIGITS_MAX)
    if value < head.header_size:
        return False
    head.size = value
    head.subject = words[1]
    head.subject_size = sizes[1]
    return read_reply(words[3], sizes[3], head.numbers)


cdef bint read_reply(const char* reply, Py_ssize_t size, int64_t* numbers) noexcept:
    cdef Py_ssize_t tokens = 1
    cdef Py_ssize_t token = 0
    cdef Py_ssize_t start = 0
    cdef Py_ssize_t i, first, place
    if size < 8 or memcmp(reply, b"$JS.ACK.", 8) != 0:
        return False
    for i in range(size):
        if reply[i] == c".":
            tokens += 1
    first = 5 if tokens < 11 else 7
    if tokens < first + NUMBERS:
        return False
    for i in range(size + 1):
        if i < size and reply[i] != c".":
            continue
        place = token - first
        if 0 <= place < NUMBERS:
            numbers[place] = read_number(
                reply + start, i - start, TIME_DIGITS if place == 2 else DIGITS_MAX
            )
            if numbers[place] < 0:
                return False
        token += 1
        start = i + 1
    return True


cdef int64_t read_number(const char* text, Py_ssize_t size, Py_ssize_t most) noexcept:
    """-1 if it is not a number of at most `most` digits that fits."""
    cdef uint64_t value = 0
    cdef Py_ssize_t i
    if size < 1 or size > most:
        return -1
    for i in range(size):
        if text[i] < c"0" or text[i] > c"9":
            return -1
        value = value * 10 + <uint64_t>(text[i] - c"0")
    return <int64_t>value if value <= <uint64_t>SEQ_MAX else -1
