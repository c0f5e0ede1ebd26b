# cython: language_level=3
"""Compiled PubRun: one buffer and an array of offsets, no object per message.

Owns: the spans of the messages inside the chunk they came in.
May not touch: subjects' meaning, subscriptions, sockets.
Spec: run_py.py."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp

from broker.wire._text cimport msg_size, put, put_sizes, reserve

cdef Py_ssize_t FIRST_RECORDS = 16
cdef Py_ssize_t BUFFER_BYTES_MAX = 0xFFFFFFFF


cdef bint digits(const char* text, Py_ssize_t start, Py_ssize_t stop):
    """1 to 18 decimal digits, so that the number fits."""
    cdef Py_ssize_t at
    if stop - start < 1 or stop - start > 18:
        return False
    for at in range(start, stop):
        if text[at] < c"0" or text[at] > c"9":
            return False
    return True


cdef long long number(const char* text, Py_ssize_t start, Py_ssize_t stop):
    cdef long long value = 0
    cdef Py_ssize_t at
    for at in range(start, stop):
        value = value * 10 + (text[at] - c"0")
    return value


cdef bint names(const char* block, Py_ssize_t block_size, const char* name, Py_ssize_t size):
    """Whether some line but the first begins with the name, in any case, and a colon."""
    cdef const char* end = block + block_size
    cdef const char* at = <const char*>memchr(block, c"\n", block_size)
    cdef Py_ssize_t i
    while at != NULL and end - at > size + 1:
        at += 1
        if at[size] == c":":
            for i in range(size):
                if lower(at[i]) != name[i]:
                    break
            else:
                return True
        at = <const char*>memchr(at, c"\n", end - at)
    return False


cdef int first_bytes(tuple prefixes, bint* starts) except -1:
    cdef bytes prefix
    cdef int i
    for i in range(256):
        starts[i] = False
    for prefix in prefixes:
        starts[<unsigned char>prefix[0]] = True
    return 0


cdef bint begins_with(const char* text, Py_ssize_t size, tuple prefixes):
    cdef bytes prefix
    for prefix in prefixes:
        if PyBytes_GET_SIZE(prefix) <= size and (
            memcmp(text, PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix)) == 0
        ):
            return True
    return False


cdef inline char lower(char one):
    return one + 32 if c"A" <= one <= c"Z" else one


@cython.final
cdef class PubRun:
    def __cinit__(self):
        self.buffer = b""
        self.base = PyBytes_AS_STRING(self.buffer)

    def __dealloc__(self):
        free(self.records)

    def __len__(self):
        return self.count

    @staticmethod
    def of(messages):
        cdef PubRun run
        cdef PubRecord* record
        cdef list parts = []
        cdef bytes subject, reply, headers, payload
        cdef Py_ssize_t at = 0
        messages = list(messages)
        for message in messages:
            parts.extend(message)
        run = new_run(b"".join(parts))
        for subject, reply, headers, payload in messages:
            record = run.add()
            record.subject = <uint32_t>at
            record.subject_size = <uint32_t>len(subject)
            record.reply = <uint32_t>(at + len(subject))
            record.reply_size = <uint32_t>len(reply)
            record.body = <uint32_t>(at + len(subject) + len(reply))
            record.header_size = <uint32_t>len(headers)
            record.size = <uint32_t>(len(headers) + len(payload))
            at = record.body + record.size
            run.total_bytes += record.size
            run.has_headers = run.has_headers or record.header_size != 0
        return run

    def segments(self, Py_ssize_t start=0, Py_ssize_t stop=-1):
        cdef list found = []
        cdef Py_ssize_t end = self.count if stop < 0 else stop
        cdef Py_ssize_t i
        cdef PubRecord* first
        cdef PubRecord* record
        self.check(start, end)
        for i in range(start + 1, end + 1):
            first = &self.records[start]
            if i < end:
                record = &self.records[i]
                if record.subject_size == first.subject_size and memcmp(
                    self.base + record.subject, self.base + first.subject, first.subject_size
                ) == 0:
                    continue
            found.append((self.base[first.subject:first.subject + first.subject_size], start, i))
            start = i
        return found

    def message(self, Py_ssize_t i):
        self.check(i, i + 1)
        cdef PubRecord* record = &self.records[i]
        cdef Py_ssize_t payload = <Py_ssize_t>record.body + record.header_size
        cdef Py_ssize_t end = <Py_ssize_t>record.body + record.size
        return (
            self.base[record.subject:record.subject + record.subject_size],
            self.base[record.reply:record.reply + record.reply_size],
            self.base[record.body:payload],
            self.base[payload:end],
        )

    def names(self, Py_ssize_t i):
        self.check(i, i + 1)
        cdef PubRecord* record = &self.records[i]
        return (
            self.base[record.subject:record.subject + record.subject_size],
            self.base[record.reply:record.reply + record.reply_size],
        )

    def any_reply(self, Py_ssize_t start, Py_ssize_t stop):
        self.check(start, stop)
        cdef Py_ssize_t i
        for i in range(start, stop):
            if self.records[i].reply_size:
                return True
        return False

    def size(self, Py_ssize_t start, Py_ssize_t stop):
        self.check(start, stop)
        cdef Py_ssize_t i
        cdef Py_ssize_t total = 0
        for i in range(start, stop):
            total += self.records[i].size
        return total

    def ack_spans(self):
        cdef list spans = []
        cdef list groups = None
        cdef list stream_seqs = None
        cdef list consumer_seqs = None
        cdef const char* named = NULL  # "stream.consumer" of the group that grows
        cdef Py_ssize_t named_size = 0
        cdef Py_ssize_t start = 0
        cdef Py_ssize_t i, begin
        cdef Py_ssize_t marks[8]  # where the eight dots of an ack subject stand
        cdef const char* subject
        for i in range(self.count):
            if not self.is_plain_ack(i, marks):
                if groups is not None:
                    spans.append((start, i, groups))
                    groups = None
                continue
            subject = self.base + self.records[i].subject
            begin = marks[1] + 1
            if groups is None:
                groups = []
                start = i
                named = NULL
            if named == NULL or named_size != marks[3] - begin or memcmp(
                named, subject + begin, named_size
            ) != 0:
                named = subject + begin
                named_size = marks[3] - begin
                stream_seqs = []
                consumer_seqs = []
                groups.append((
                    subject[begin:marks[2]], subject[marks[2] + 1:marks[3]],
                    stream_seqs, consumer_seqs,
                ))
            stream_seqs.append(number(subject, marks[4] + 1, marks[5]))
            consumer_seqs.append(number(subject, marks[5] + 1, marks[6]))
        if groups is not None:
            spans.append((start, self.count, groups))
        return spans

    cdef bint is_plain_ack(self, Py_ssize_t i, Py_ssize_t* marks):
        """Whether message i is a plain ack that wants no answer; marks its dots."""
        cdef PubRecord* record = &self.records[i]
        cdef const char* subject = self.base + record.subject
        cdef Py_ssize_t size = record.subject_size
        cdef Py_ssize_t dots = 0
        cdef Py_ssize_t at
        if size < 9 or memcmp(subject, b"$JS.ACK.", 8) != 0:
            return False
        if record.reply_size or record.header_size:
            return False
        if not (record.size == 0 or (
            record.size == 4 and memcmp(self.base + record.body, b"+ACK", 4) == 0
        )):
            return False
        for at in range(size):
            if subject[at] == c".":
                if dots == 8:
                    return False
                marks[dots] = at
                dots += 1
        return (
            dots == 8
            and digits(subject, marks[4] + 1, marks[5])
            and digits(subject, marks[5] + 1, marks[6])
        )

    def begins(self, tuple subjects not None, tuple replies not None):
        cdef bint[256] subject_starts
        cdef bint[256] reply_starts
        cdef Py_ssize_t i
        cdef PubRecord* record
        first_bytes(subjects, subject_starts)
        first_bytes(replies, reply_starts)
        for i in range(self.count):
            record = &self.records[i]
            if record.subject_size and subject_starts[<unsigned char>self.base[record.subject]]:
                if begins_with(self.base + record.subject, record.subject_size, subjects):
                    return True
            if record.reply_size and reply_starts[<unsigned char>self.base[record.reply]]:
                if begins_with(self.base + record.reply, record.reply_size, replies):
                    return True
        return False

    def rows_naming(self, bytes name not None):
        cdef list found = []
        cdef const char* text = PyBytes_AS_STRING(name)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(name)
        cdef Py_ssize_t i
        if not self.has_headers:
            return found
        for i in range(self.count):
            if self.records[i].header_size > size and names(
                self.base + self.records[i].body, self.records[i].header_size, text, size
            ):
                found.append(i)
        return found

    def encode(self, Py_ssize_t start, Py_ssize_t stop, bytes sid not None, bint headers_ok):
        self.check(start, stop)
        cdef const char* sid_text = PyBytes_AS_STRING(sid)
        cdef Py_ssize_t sid_size = PyBytes_GET_SIZE(sid)
        cdef Py_ssize_t total = 0
        cdef Py_ssize_t i, cut, header
        cdef PubRecord* record
        for i in range(start, stop):
            record = &self.records[i]
            cut = 0 if headers_ok else record.header_size
            header = record.header_size - cut
            total += msg_size(
                record.subject_size, sid_size, record.reply_size, header, record.size - cut
            )
        cdef bytes encoded = PyBytes_FromStringAndSize(NULL, total)
        cdef char* at = PyBytes_AS_STRING(encoded)
        for i in range(start, stop):
            record = &self.records[i]
            cut = 0 if headers_ok else record.header_size
            header = record.header_size - cut
            at = put(at, b"HMSG ", 5) if header else put(at, b"MSG ", 4)
            at = put(at, self.base + record.subject, record.subject_size)
            at = put(at, b" ", 1)
            at = put(at, sid_text, sid_size)
            if record.reply_size:
                at = put(at, b" ", 1)
                at = put(at, self.base + record.reply, record.reply_size)
            at = put_sizes(at, header, record.size - cut)
            at = put(at, self.base + record.body + cut, record.size - cut)
            at = put(at, b"\r\n", 2)
        assert at == PyBytes_AS_STRING(encoded) + total
        return encoded

    cdef PubRecord* add(self) except NULL:
        """A record the caller fills completely; the pointer holds until the next add()."""
        if self.count == self.capacity:
            reserve(
                <void**>&self.records,
                &self.capacity,
                max(FIRST_RECORDS, self.count + 1),
                sizeof(PubRecord),
            )
        self.count += 1
        return &self.records[self.count - 1]

    cdef int check(self, Py_ssize_t start, Py_ssize_t stop) except -1:
        if not 0 <= start <= stop <= self.count:
            raise IndexError(f"rows {start}:{stop} of a run of {self.count}")
        return 0


cdef PubRun new_run(bytes buffer):
    if PyBytes_GET_SIZE(buffer) > BUFFER_BYTES_MAX:
        raise OverflowError("offsets of a run are 32 bits wide")
    cdef PubRun run = PubRun.__new__(PubRun)
    run.buffer = buffer
    run.base = PyBytes_AS_STRING(buffer)
    return run
