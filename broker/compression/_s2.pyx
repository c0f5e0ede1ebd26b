# cython: language_level=3
"""Compiled: S2 compression.

Owns: the block format and CRC-32C, without state.
May not touch: chunks of a stream and what they hold.
Without the interpreter lock: a chunk of 4 MB takes longer than the event loop may wait.
Spec: s2_py.py."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy, memset

from broker.compression.s2_py import BLOCK_BYTES_MAX as _BLOCK_BYTES_MAX
from broker.compression.s2_py import BadS2, _table

cdef Py_ssize_t BLOCK_BYTES_MAX = _BLOCK_BYTES_MAX
cdef uint32_t CRC[8][256]  # CRC[k]: of a byte with k zero bytes behind it
for _i, _value in enumerate(_table()):
    CRC[0][_i] = _value
for _k in range(1, 8):
    for _i in range(256):
        CRC[_k][_i] = CRC[0][CRC[_k - 1][_i] & 0xFF] ^ (CRC[_k - 1][_i] >> 8)
cdef enum:
    HASH_BITS = 14
    LITERAL_MAX = 65536
    FAR_MAX = 65535
    COPY_MAX = 64


cdef inline uint32_t four(const uint8_t* text) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, text, 4)
    return value


cdef extern from *:
    """
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <stdint.h>
    #include <string.h>
    /* The processor's own instruction for this checksum. */
    __attribute__((target("sse4.2")))
    static uint32_t checksum_by_processor(const uint8_t *text, Py_ssize_t size, uint32_t value) {
        uint64_t eight, wide = value;
        while (size >= 8) {
            memcpy(&eight, text, 8);
            wide = __builtin_ia32_crc32di(wide, eight);
            text += 8;
            size -= 8;
        }
        value = (uint32_t)wide;
        while (size-- > 0) value = __builtin_ia32_crc32qi(value, *text++);
        return value;
    }
    static int processor_knows_it(void) { return __builtin_cpu_supports("sse4.2"); }
    #else
    static uint32_t checksum_by_processor(const uint8_t *text, Py_ssize_t size, uint32_t value) {
        return value;
    }
    static int processor_knows_it(void) { return 0; }
    #endif
    """
    uint32_t checksum_by_processor(const uint8_t*, Py_ssize_t, uint32_t) noexcept nogil
    int processor_knows_it() noexcept nogil

cdef bint BY_PROCESSOR = processor_knows_it()


cdef uint32_t checksum_by_table(const uint8_t* text, Py_ssize_t size, uint32_t value) noexcept nogil:
    cdef uint32_t low, high
    cdef Py_ssize_t i = 0
    while i + 8 <= size:  # eight bytes at a time: their table entries do not wait for each other
        low = value ^ four(text + i)
        high = four(text + i + 4)
        value = (
            CRC[7][low & 0xFF] ^ CRC[6][(low >> 8) & 0xFF]
            ^ CRC[5][(low >> 16) & 0xFF] ^ CRC[4][low >> 24]
            ^ CRC[3][high & 0xFF] ^ CRC[2][(high >> 8) & 0xFF]
            ^ CRC[1][(high >> 16) & 0xFF] ^ CRC[0][high >> 24]
        )
        i += 8
    while i < size:
        value = CRC[0][(value ^ text[i]) & 0xFF] ^ (value >> 8)
        i += 1
    return value


def crc32c(bytes data not None, bint portable=False):
    """`portable`: by tables, as processors that have no instruction for it do."""
    cdef const uint8_t* text = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef uint32_t value
    with nogil:
        if BY_PROCESSOR and not portable:
            value = checksum_by_processor(text, size, 0xFFFFFFFF)
        else:
            value = checksum_by_table(text, size, 0xFFFFFFFF)
    return value ^ 0xFFFFFFFF


cdef Py_ssize_t put_literal(
    uint8_t* out, Py_ssize_t to, const uint8_t* text, Py_ssize_t size
) noexcept nogil:
    cdef Py_ssize_t piece
    while size > 0:
        piece = min(size, <Py_ssize_t>LITERAL_MAX)
        if piece <= 60:
            out[to] = <uint8_t>((piece - 1) << 2)
            to += 1
        else:
            out[to] = 0xF4
            out[to + 1] = <uint8_t>((piece - 1) & 0xFF)
            out[to + 2] = <uint8_t>((piece - 1) >> 8)
            to += 3
        memcpy(out + to, text, <size_t>piece)
        to += piece
        text += piece
        size -= piece
    return to


def compress(bytes data not None):
    cdef const uint8_t* text = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef bytearray space = bytearray(size + size // 16 + 64)
    cdef uint8_t* out = <uint8_t*><char*>space
    cdef Py_ssize_t to
    with nogil:
        to = pack(text, size, out)
    return bytes(space[:to])


cdef Py_ssize_t pack(const uint8_t* text, Py_ssize_t size, uint8_t* out) noexcept nogil:
    """How many bytes were written. A literal and the copy behind it are at most two bytes longer
    than the 65 or more bytes that they stand for, so a sixteenth more is enough."""
    cdef uint32_t[1 << HASH_BITS] seen  # position + 1 of four bytes with this hash
    cdef Py_ssize_t to = 0
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t start = 0  # of what is not written yet
    cdef Py_ssize_t left, length, piece, found
    cdef uint32_t slot
    left = size
    while left >= 128:
        out[to] = <uint8_t>((left & 127) | 128)
        left >>= 7
        to += 1
    out[to] = <uint8_t>left
    to += 1
    memset(seen, 0, sizeof(seen))
    while at + 4 <= size:
        slot = (four(text + at) * <uint32_t>0x1E35A7BD) >> (32 - HASH_BITS)
        found = <Py_ssize_t>seen[slot] - 1
        seen[slot] = <uint32_t>(at + 1)
        if found < 0 or at - found > FAR_MAX or four(text + found) != four(text + at):
            at += 1 + ((at - start) >> 6)  # faster through what does not compress
            continue
        length = 4
        while at + length < size and text[found + length] == text[at + length]:
            length += 1
        to = put_literal(out, to, text + start, at - start)
        left = length
        while left > 0:
            piece = min(left, <Py_ssize_t>COPY_MAX)
            out[to] = <uint8_t>(((piece - 1) << 2) | 2)
            out[to + 1] = <uint8_t>((at - found) & 0xFF)
            out[to + 2] = <uint8_t>((at - found) >> 8)
            to += 3
            left -= piece
        at += length
        start = at
    return put_literal(out, to, text + start, size - start)


cdef enum Problem:
    NONE, SHORT, LONG, BEFORE, LESS

PROBLEMS = (
    "",
    "cut short",
    "longer than it says",
    "a copy from before the start",
    "shorter than it says",
)


def decompress(bytes data not None):
    cdef const uint8_t* text = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t wanted = 0
    cdef Py_ssize_t at = 0
    cdef int shift = 0
    cdef bytes result
    cdef uint8_t* out
    cdef Problem problem
    while True:
        if at >= size:
            raise BadS2(PROBLEMS[SHORT])
        wanted |= <Py_ssize_t>(text[at] & 127) << shift
        shift += 7
        at += 1
        if wanted > BLOCK_BYTES_MAX or shift > 35:
            raise BadS2("a block that is too large")
        if text[at - 1] < 128:
            break
    result = PyBytes_FromStringAndSize(NULL, wanted)
    out = <uint8_t*>PyBytes_AS_STRING(result)  # no other reference to the object exists yet
    with nogil:
        problem = unpack(text + at, size - at, out, wanted)
    if problem != NONE:
        raise BadS2(PROBLEMS[problem])
    return result


cdef Problem unpack(
    const uint8_t* text, Py_ssize_t size, uint8_t* out, Py_ssize_t wanted
) noexcept nogil:
    """Exactly `wanted` bytes are written, or there is a problem."""
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t to = 0
    cdef Py_ssize_t offset = 0
    cdef Py_ssize_t length, extra, i
    cdef uint8_t tag
    while at < size:
        tag = text[at]
        if tag & 3 == 0:
            length = tag >> 2
            at += 1
            if length >= 60:
                extra = length - 59
                if at + extra > size:
                    return SHORT
                length = 0
                for i in range(extra):
                    length |= <Py_ssize_t>text[at + i] << (8 * i)
                at += extra
            length += 1
            if at + length > size:
                return SHORT
            if to + length > wanted:
                return LONG
            memcpy(out + to, text + at, <size_t>length)
            at += length
            to += length
            continue
        extra = 3 if tag & 3 == 2 else 5 if tag & 3 == 3 else 2
        if at + extra > size:
            return SHORT
        if tag & 3 == 2:
            length = 1 + (tag >> 2)
            offset = text[at + 1] | <Py_ssize_t>text[at + 2] << 8
        elif tag & 3 == 3:
            length = 1 + (tag >> 2)
            offset = 0
            for i in range(4):
                offset |= <Py_ssize_t>text[at + 1 + i] << (8 * i)
        else:
            length = (tag >> 2) & 7
            i = (<Py_ssize_t>(tag & 0xE0) << 3) | text[at + 1]
            if i:
                offset = i
            elif length >= 5:  # a long repeat: its length follows in 1 to 3 bytes
                extra = length - 4
                if at + 2 + extra > size:
                    return SHORT
                length = 0
                for i in range(extra):
                    length |= <Py_ssize_t>text[at + 2 + i] << (8 * i)
                length += 4 if extra == 1 else (<Py_ssize_t>1 << (8 * (extra - 1)))
                extra += 2
            length += 4
        at += extra
        if not 0 < offset <= to:
            return BEFORE
        if to + length > wanted:
            return LONG
        for i in range(length):  # it may overlap what it writes
            out[to + i] = out[to + i - offset]
        to += length
    return NONE if to == wanted else LESS
