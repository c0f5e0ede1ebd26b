# cython: language_level=3
"""Compiled encoders: messages and publish acknowledgements, sized first and then written once.

Owns: the text of MSG, HMSG and of a pub ack; the column of replies a batch waits for.
May not touch: routing, sequence assignment, sockets.
Spec: encode_py.py."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy

from broker.wire._run cimport PubRecord, PubRun
from broker.wire._text cimport digits, msg_size, put, put_number, put_sizes, reserve


def encode_msg(
    bytes subject not None,
    bytes sid not None,
    bytes reply not None,
    bytes headers not None,
    bytes payload not None,
):
    cdef Py_ssize_t header = len(headers)
    cdef Py_ssize_t body = header + len(payload)
    cdef Py_ssize_t total = msg_size(len(subject), len(sid), len(reply), header, body)
    cdef bytes encoded = PyBytes_FromStringAndSize(NULL, total)
    cdef char* at = PyBytes_AS_STRING(encoded)
    at = put(at, b"HMSG ", 5) if header else put(at, b"MSG ", 4)
    at = put(at, PyBytes_AS_STRING(subject), len(subject))
    at = put(at, b" ", 1)
    at = put(at, PyBytes_AS_STRING(sid), len(sid))
    if reply:
        at = put(at, b" ", 1)
        at = put(at, PyBytes_AS_STRING(reply), len(reply))
    at = put_sizes(at, header, body)
    at = put(at, PyBytes_AS_STRING(headers), header)
    at = put(at, PyBytes_AS_STRING(payload), len(payload))
    at = put(at, b"\r\n", 2)
    assert at == PyBytes_AS_STRING(encoded) + total
    return encoded


def encode_pub(PubRun run not None, Py_ssize_t start, Py_ssize_t stop):
    run.check(start, stop)
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t i
    cdef PubRecord* record
    for i in range(start, stop):
        record = &run.records[i]
        # As a MSG, but for the blank and the sid that a publish does not have.
        total += msg_size(
            record.subject_size, 0, record.reply_size, record.header_size, record.size
        ) - 1
    cdef bytes encoded = PyBytes_FromStringAndSize(NULL, total)
    cdef char* at = PyBytes_AS_STRING(encoded)
    for i in range(start, stop):
        record = &run.records[i]
        at = put(at, b"HPUB ", 5) if record.header_size else put(at, b"PUB ", 4)
        at = put(at, run.base + record.subject, record.subject_size)
        if record.reply_size:
            at = put(at, b" ", 1)
            at = put(at, run.base + record.reply, record.reply_size)
        at = put_sizes(at, record.header_size, record.size)
        at = put(at, run.base + record.body, record.size)
        at = put(at, b"\r\n", 2)
    assert at == PyBytes_AS_STRING(encoded) + total
    return encoded


def encode_leaf(PubRun run not None, Py_ssize_t start, Py_ssize_t stop, bytes queues not None):
    run.check(start, stop)
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t i
    cdef Py_ssize_t groups = len(queues)
    cdef PubRecord* record
    for i in range(start, stop):
        record = &run.records[i]
        # As a MSG without the blank and the sid, but LMSG is longer by a byte.
        total += msg_size(
            record.subject_size, 0, record.reply_size, record.header_size, record.size
        ) - 1
        if not record.header_size:
            total += 1
        if groups:
            total += groups + 3
    cdef bytes encoded = PyBytes_FromStringAndSize(NULL, total)
    cdef char* at = PyBytes_AS_STRING(encoded)
    for i in range(start, stop):
        record = &run.records[i]
        at = put(at, b"HMSG ", 5) if record.header_size else put(at, b"LMSG ", 5)
        at = put(at, run.base + record.subject, record.subject_size)
        if groups:
            at = put(at, b" + ", 3) if record.reply_size else put(at, b" | ", 3)
            if record.reply_size:
                at = put(at, run.base + record.reply, record.reply_size)
                at = put(at, b" ", 1)
            at = put(at, PyBytes_AS_STRING(queues), groups)
        elif record.reply_size:
            at = put(at, b" ", 1)
            at = put(at, run.base + record.reply, record.reply_size)
        at = put_sizes(at, record.header_size, record.size)
        at = put(at, run.base + record.body, record.size)
        at = put(at, b"\r\n", 2)
    assert at == PyBytes_AS_STRING(encoded) + total
    return encoded


@cython.final
cdef class ReplyColumn:
    def __dealloc__(self):
        free(self.text)
        free(self.ends)

    def __len__(self):
        return self.count

    def append_run(self, PubRun run not None, Py_ssize_t start, Py_ssize_t stop):
        run.check(start, stop)
        cdef Py_ssize_t end = self.begin(self.count)
        cdef Py_ssize_t added = 0
        cdef Py_ssize_t i
        cdef PubRecord* record
        for i in range(start, stop):
            added += run.records[i].reply_size
        self._reserve(stop - start, end + added)
        for i in range(start, stop):
            record = &run.records[i]
            put(self.text + end, run.base + record.reply, record.reply_size)
            end += record.reply_size
            self.ends[self.count] = end
            self.count += 1

    def append(self, bytes reply not None):
        cdef Py_ssize_t end = self.begin(self.count)
        self._reserve(1, end + len(reply))
        put(self.text + end, PyBytes_AS_STRING(reply), len(reply))
        self.ends[self.count] = end + len(reply)
        self.count += 1

    def get(self, Py_ssize_t i):
        self.check(i, i + 1)
        return self.text[self.begin(i):self.ends[i]]

    def ending(self, bytes suffix not None):
        cdef const char* wanted = PyBytes_AS_STRING(suffix)
        cdef Py_ssize_t size = len(suffix)
        cdef Py_ssize_t i
        cdef list found = []
        for i in range(self.count):
            if self.ends[i] - self.begin(i) > size:
                if memcmp(self.text + self.ends[i] - size, wanted, size) == 0:
                    found.append(i)
        return found

    def prefix(self, Py_ssize_t start, Py_ssize_t stop):
        self.check(start, stop)
        if start == stop:
            return None
        cdef const char* first = self.text + self.begin(start)
        cdef Py_ssize_t shared = self.ends[start] - self.begin(start)
        cdef const char* reply
        cdef Py_ssize_t i, size
        while shared > 0 and first[shared - 1] != c'.':
            shared -= 1
        if shared == 0:
            return None
        for i in range(start, stop):
            reply = self.text + self.begin(i)
            size = self.ends[i] - self.begin(i)
            if size <= shared or memcmp(reply, first, shared) != 0:
                return None
            if memchr(reply + shared, c'.', size - shared) != NULL:
                return None
        return first[:shared]

    def _reserve(self, Py_ssize_t rows, Py_ssize_t text_size):
        reserve(
            <void**>&self.ends, &self.ends_capacity, self.count + rows, sizeof(Py_ssize_t)
        )
        # One byte at least, so that `text` is never NULL once there is a row.
        reserve(<void**>&self.text, &self.text_capacity, max(text_size, 1), 1)

    cdef Py_ssize_t begin(self, Py_ssize_t i) noexcept:
        return self.ends[i - 1] if i > 0 else 0

    cdef int check(self, Py_ssize_t start, Py_ssize_t stop) except -1:
        if not 0 <= start <= stop <= self.count:
            raise IndexError(f"rows {start}:{stop} of {self.count} replies")
        return 0


def encode_pub_acks(
    ReplyColumn replies not None,
    Py_ssize_t start,
    Py_ssize_t stop,
    bytes sid not None,
    bytes stream not None,
    int64_t first_seq,
    bytes extra not None,
):
    replies.check(start, stop)
    # Two texts surround the reply, the body size and the sequence of each ack.
    cdef bytes head = b'\r\n{"stream":"' + stream + b'","seq":'
    cdef bytes tail = extra + b"}\r\n"
    cdef bytes to = b" " + sid + b" "
    cdef const char* head_text = PyBytes_AS_STRING(head)
    cdef const char* tail_text = PyBytes_AS_STRING(tail)
    cdef const char* to_text = PyBytes_AS_STRING(to)
    cdef Py_ssize_t head_size = PyBytes_GET_SIZE(head)
    cdef Py_ssize_t tail_size = PyBytes_GET_SIZE(tail)
    cdef Py_ssize_t to_size = PyBytes_GET_SIZE(to)
    cdef Py_ssize_t body_size = head_size + tail_size - 4  # both carry a CR LF, neither counts
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t i, reply_size
    cdef int width
    for i in range(start, stop):
        reply_size = replies.ends[i] - replies.begin(i)
        if reply_size:
            width = digits(first_seq + (i - start))
            total += 4 + reply_size + to_size + digits(body_size + width)
            total += head_size + width + tail_size
    cdef bytes encoded = PyBytes_FromStringAndSize(NULL, total)
    cdef char* at = PyBytes_AS_STRING(encoded)
    for i in range(start, stop):
        reply_size = replies.ends[i] - replies.begin(i)
        if reply_size:
            at = put(at, b"MSG ", 4)
            at = put(at, replies.text + replies.begin(i), reply_size)
            at = put(at, to_text, to_size)
            at = put_number(at, body_size + digits(first_seq + (i - start)))
            at = put(at, head_text, head_size)
            at = put_number(at, first_seq + (i - start))
            at = put(at, tail_text, tail_size)
    assert at == PyBytes_AS_STRING(encoded) + total
    return encoded


def unmask(bytes data not None, bytes key not None):
    cdef Py_ssize_t size = len(data), at = 0
    cdef bytes mixed = PyBytes_FromStringAndSize(NULL, size)
    cdef const char* given = PyBytes_AS_STRING(data)
    cdef char* put_at = PyBytes_AS_STRING(mixed)
    cdef char pad[8]
    cdef uint64_t mask, word
    if len(key) != 4:
        raise ValueError("a mask has 4 bytes")
    memcpy(pad, PyBytes_AS_STRING(key), 4)
    memcpy(pad + 4, pad, 4)
    memcpy(&mask, pad, 8)
    while at + 8 <= size:
        memcpy(&word, given + at, 8)
        word ^= mask
        memcpy(put_at + at, &word, 8)
        at += 8
    while at < size:
        put_at[at] = given[at] ^ pad[at & 7]
        at += 1
    return mixed
