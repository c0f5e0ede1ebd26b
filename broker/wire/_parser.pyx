# cython: language_level=3
"""Compiled client parser: the grammar of parser_py.py, byte for byte.

Owns: the bytes that do not yet make an event, and the limits on them.
May not touch: what an event means, sockets, credentials.
Spec: parser_py.py."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t
from libc.string cimport memchr

from broker.wire._run cimport PubRecord, PubRun, new_run

from broker.wire.ops import (
    BODY_UNTERMINATED,
    CLOSE_SILENTLY,
    CONTROL_LINE_EXCEEDED,
    PAYLOAD_EXCEEDED,
    SIZE_DIGITS_MAX,
    UNKNOWN_OPERATION,
    Op,
    ProtocolViolation,
)

cdef enum:
    PUB
    HPUB
    SUB
    UNSUB
    SCAN
    ERR
    CONNECT
    INFO
    PING
    PONG
    OK
    WORDS

# On a leaf node connection, LMSG, HMSG, LS+ and LS- stand in the places of these.
cdef enum:
    LMSG = PUB
    LSUB = SUB
    LUNSUB = UNSUB

cdef enum:
    INCOMPLETE = -1
    UNKNOWN = -2

cdef enum:
    FIELDS_MAX = 4  # HPUB with a reply has the most

cdef const char* WORD_TEXT[2][WORDS]  # of clients, of leaf nodes
cdef int WORD_SIZE[2][WORDS]
WORD_TEXT[0][:] = [
    b"pub", b"hpub", b"sub", b"unsub", b"scan", b"-err", b"connect", b"info", b"ping", b"pong",
    b"+ok",
]
WORD_SIZE[0][:] = [3, 4, 3, 5, 4, 4, 7, 4, 4, 4, 3]
WORD_TEXT[1][:] = [
    b"lmsg", b"hmsg", b"ls+", b"ls-", b"", b"-err", b"connect", b"info", b"ping", b"pong", b"+ok",
]
WORD_SIZE[1][:] = [4, 4, 3, 3, 0, 4, 7, 4, 4, 4, 3]
cdef tuple WORD_OPS = (
    Op.PUB, Op.PUB, Op.SUB, Op.UNSUB, Op.SCAN, Op.ERR, Op.CONNECT, Op.INFO, Op.PING, Op.PONG, Op.OK,
)
cdef object OP_PUB = Op.PUB
cdef object OP_LMSG = Op.LMSG
cdef object OP_LSUB = Op.LSUB
cdef object OP_LUNSUB = Op.LUNSUB
cdef Py_ssize_t DIGITS_MAX = SIZE_DIGITS_MAX

cdef struct Span:
    Py_ssize_t start
    Py_ssize_t size


@cython.final
cdef class ClientParser:
    cdef public Py_ssize_t max_control_line
    cdef public Py_ssize_t max_payload
    cdef list parts
    cdef Py_ssize_t held
    cdef Py_ssize_t wanted
    cdef bint failed
    cdef object failure
    cdef bint leaf
    cdef bytes queues
    cdef PubRun run  # only while receive() runs
    cdef list events  # likewise

    def __init__(
        self, *, Py_ssize_t max_control_line, Py_ssize_t max_payload, bint leaf=False
    ):
        self.leaf = leaf
        self.queues = b""
        self.max_control_line = max_control_line
        self.max_payload = max_payload
        self.parts = []

    @property
    def unparsed(self):
        return b"".join(self.parts)

    def receive(self, bytes chunk not None):
        if self.failed:
            raise ProtocolViolation(self.failure, events=[])
        self.parts.append(chunk)
        self.held += PyBytes_GET_SIZE(chunk)
        if self.held < self.wanted:
            return []
        cdef bytes data = chunk if len(self.parts) == 1 else b"".join(self.parts)
        cdef list events = []
        cdef Py_ssize_t position = 0
        self.hold(b"", 0)
        self.events = events
        self.run = new_run(data)
        try:
            while 0 <= position < PyBytes_GET_SIZE(data):
                position = self.take(data, position)
        except ProtocolViolation as violation:
            self.failed = True
            self.failure = violation.text
            self.hold(b"", 0)
            self.end_run(data)
            raise ProtocolViolation(violation.text, events=events) from None
        finally:
            self.end_run(data)
            self.run = None
            self.events = None
        return events

    cdef Py_ssize_t take(self, bytes data, Py_ssize_t start) except -2:
        """One operation at `start`: where the next begins, or -1: incomplete, held."""
        cdef const unsigned char* base = <const unsigned char*>PyBytes_AS_STRING(data)
        cdef Py_ssize_t length = PyBytes_GET_SIZE(data)
        cdef int word = word_at(self.leaf, base + start, length - start)
        cdef Py_ssize_t after, first, end, arguments_size
        cdef const unsigned char* newline
        if word == INCOMPLETE:
            return self.hold(data[start:], 0)
        if word == UNKNOWN:
            raise ProtocolViolation(UNKNOWN_OPERATION)
        after = start + WORD_SIZE[self.leaf][word]
        if word >= PING:  # the rest of the line is ignored
            newline = <const unsigned char*>memchr(base + after, c'\n', length - after)
            if newline == NULL:
                return self.hold(data[start:after], 0)
            self.end_run(data)
            self.events.append((WORD_OPS[word],))
            return newline - base + 1
        if word < CONNECT and after < length and not is_blank(base[after]):
            raise ProtocolViolation(UNKNOWN_OPERATION)
        first = after
        while first < length and is_blank(base[first]):
            first += 1
        if first == length:
            return self.hold(data[start:after + 1], 0)
        newline = <const unsigned char*>memchr(base + first, c'\n', length - first)
        end = length if newline == NULL else newline - base
        arguments_size = end - first
        if arguments_size > 0 and base[end - 1] == c'\r':
            arguments_size -= 1
        if arguments_size > self.max_control_line:
            raise ProtocolViolation(CONTROL_LINE_EXCEEDED)
        if newline == NULL:
            return self.hold(data[start:after] + b" " + data[first:], 0)
        if word <= HPUB:
            return self.take_publish(data, start, first, end, word == HPUB)
        if self.leaf and word <= UNSUB:
            event = make_leaf_event(word, data, first, end)
        else:
            event = make_event(word, data, first, end)
        self.end_run(data)
        self.events.append(event)
        return end + 1

    cdef Py_ssize_t take_publish(
        self, bytes data, Py_ssize_t start, Py_ssize_t first, Py_ssize_t newline, bint hpub
    ) except -2:
        cdef const unsigned char* base = <const unsigned char*>PyBytes_AS_STRING(data)
        cdef Span[FIELDS_MAX + 1] fields
        cdef int count = split(base, first, newline, fields)
        cdef int sizes = 2 if hpub else 1
        cdef Py_ssize_t total, header, end
        cdef PubRecord* record
        cdef Span reply
        if self.leaf:
            self.take_queues(data, first, newline, fields, &count, sizes)
        if count != 1 + sizes and count != 2 + sizes:
            raise ProtocolViolation(CLOSE_SILENTLY)
        reply = fields[1]
        if count != 2 + sizes:
            reply.size = 0
        total = size_of(base, fields[count - 1])
        header = size_of(base, fields[count - 2]) if hpub else 0
        if header < 0 or total < 0 or header > total:
            raise ProtocolViolation(CLOSE_SILENTLY)
        if 0 <= self.max_payload < total:
            raise ProtocolViolation(PAYLOAD_EXCEEDED)
        end = newline + 1 + total
        if PyBytes_GET_SIZE(data) < end + 2:
            return self.hold(data[start:], end + 2 - start)
        if base[end] != c'\r' or base[end + 1] != c'\n':
            raise ProtocolViolation(BODY_UNTERMINATED)
        record = self.run.add()
        record.subject = <uint32_t>fields[0].start
        record.subject_size = <uint32_t>fields[0].size
        record.reply = <uint32_t>reply.start
        record.reply_size = <uint32_t>reply.size
        record.body = <uint32_t>(newline + 1)
        record.header_size = <uint32_t>header
        record.size = <uint32_t>total
        self.run.total_bytes += total
        self.run.has_headers = self.run.has_headers or hpub
        return end + 2

    cdef int take_queues(
        self, bytes data, Py_ssize_t first, Py_ssize_t newline, Span* fields, int* count, int sizes
    ) except -1:
        """Leave subject, reply and sizes in `fields`, as of a message without queue groups."""
        cdef bytes queues = b""
        cdef bint replies
        cdef list words
        cdef Py_ssize_t last, at
        cdef const unsigned char* base = <const unsigned char*>PyBytes_AS_STRING(data)
        if count[0] > 2 + sizes and fields[1].size == 1:
            replies = base[fields[1].start] == c'+'
            if not replies and base[fields[1].start] != c'|':
                raise ProtocolViolation(CLOSE_SILENTLY)
            # Not split(): a vertical tab or a form feed is part of a name.
            words = data[first:newline].replace(b"\t", b" ").replace(b"\r", b" ").split(b" ")
            words = [word for word in words if word]
            queues = b" ".join(words[3 if replies else 2:-sizes])
            fields[1] = fields[2]
            if not replies:
                fields[1].size = 0
            at = newline
            for last in range(sizes):  # from the end of the line
                while is_separator(base[at - 1]):
                    at -= 1
                fields[1 + sizes - last].size = at
                while not is_separator(base[at - 1]):
                    at -= 1
                fields[1 + sizes - last].start = at
                fields[1 + sizes - last].size -= at
            count[0] = 2 + sizes
        if queues != self.queues:
            self.end_run(data)
            self.queues = queues
        return 0

    cdef Py_ssize_t hold(self, bytes rest, Py_ssize_t wanted) except -2:
        self.parts = [rest] if rest else []
        self.held = PyBytes_GET_SIZE(rest)
        self.wanted = wanted
        return -1

    cdef int end_run(self, bytes data) except -1:
        if self.run.count:
            self.events.append((OP_LMSG, self.run, self.queues) if self.leaf else (OP_PUB, self.run))
            self.run = new_run(data)
        return 0


cdef inline bint is_blank(unsigned char byte) noexcept nogil:
    return byte == c' ' or byte == c'\t'


cdef inline bint is_separator(unsigned char byte) noexcept nogil:
    return byte == c' ' or byte == c'\t' or byte == c'\r'


cdef int word_at(bint leaf, const unsigned char* text, Py_ssize_t size) noexcept nogil:
    """Which word stands here, in any case; INCOMPLETE if it may become one with more bytes."""
    cdef int word, k, compared, whole
    cdef unsigned char byte
    for word in range(WORDS):
        whole = WORD_SIZE[leaf][word]
        if not whole:
            continue
        compared = whole if size > whole else <int>size
        for k in range(compared):
            byte = text[k]
            if c'A' <= byte <= c'Z':
                byte |= 0x20
            if byte != <unsigned char>WORD_TEXT[leaf][word][k]:
                break
        else:
            return word if compared == whole else INCOMPLETE
    return UNKNOWN


cdef int split(
    const unsigned char* base, Py_ssize_t start, Py_ssize_t end, Span* fields
) noexcept nogil:
    """The arguments between blanks and carriage returns; FIELDS_MAX + 1 stands for too many."""
    cdef int count = 0
    cdef Py_ssize_t at = start
    while True:
        while at < end and (is_blank(base[at]) or base[at] == c'\r'):
            at += 1
        if at == end or count > FIELDS_MAX:
            return count
        fields[count].start = at
        while at < end and not (is_blank(base[at]) or base[at] == c'\r'):
            at += 1
        fields[count].size = at - fields[count].start
        count += 1


cdef Py_ssize_t size_of(const unsigned char* base, Span field) noexcept nogil:
    """-1 unless the field is one to nine decimal digits."""
    cdef Py_ssize_t value = 0
    cdef Py_ssize_t k
    if field.size < 1 or field.size > DIGITS_MAX:
        return -1
    for k in range(field.start, field.start + field.size):
        if not c'0' <= base[k] <= c'9':
            return -1
        value = 10 * value + (base[k] - c'0')
    return value


cdef bytes text_of(bytes data, Span field):
    return data[field.start:field.start + field.size]


cdef tuple make_event(int word, bytes data, Py_ssize_t first, Py_ssize_t end):
    cdef const unsigned char* base = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef Span[FIELDS_MAX + 1] fields
    cdef int count
    if word != SUB and word != UNSUB:
        return (WORD_OPS[word], data[first:end].strip(b" \t\r"))
    count = split(base, first, end, fields)
    if word == SUB:
        if count != 2 and count != 3:
            raise ProtocolViolation(CLOSE_SILENTLY)
        queue = text_of(data, fields[1]) if count == 3 else None
        return (WORD_OPS[word], text_of(data, fields[0]), queue, text_of(data, fields[count - 1]))
    if count != 1 and count != 2:
        raise ProtocolViolation(CLOSE_SILENTLY)
    limit = max(size_of(base, fields[1]), 0) if count == 2 else 0
    return (WORD_OPS[word], text_of(data, fields[0]), limit)


cdef tuple make_leaf_event(int word, bytes data, Py_ssize_t first, Py_ssize_t end):
    cdef const unsigned char* base = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef Span[FIELDS_MAX + 1] fields
    cdef int count = split(base, first, end, fields)
    if word == LSUB:
        if count != 1 and count != 3:
            raise ProtocolViolation(CLOSE_SILENTLY)
        weight = max(size_of(base, fields[2]), 1) if count == 3 else 1
        queue = text_of(data, fields[1]) if count == 3 else b""
        return (OP_LSUB, text_of(data, fields[0]), queue, weight)
    if count != 1 and count != 2:
        raise ProtocolViolation(CLOSE_SILENTLY)
    return (OP_LUNSUB, text_of(data, fields[0]), text_of(data, fields[1]) if count == 2 else b"")
