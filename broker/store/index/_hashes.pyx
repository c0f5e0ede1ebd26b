# cython: language_level=3
"""Compiled subject hashes. The index uses the hash function too.

Owns: the hash function; sorting and searching hashes.
May not touch: the index.
Spec: hashes_py.py."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcpy

from broker.store.index.hashes_py import KEY

cdef uint64_t KEY_0 = KEY[0]
cdef uint64_t KEY_1 = KEY[1]


cdef inline uint64_t rotated(uint64_t word, int count) noexcept nogil:
    return (word << count) | (word >> (64 - count))


cdef inline void mix(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[1] = rotated(v[1], 13) ^ v[0]
    v[0] = rotated(v[0], 32)
    v[2] += v[3]
    v[3] = rotated(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = rotated(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = rotated(v[1], 17) ^ v[2]
    v[2] = rotated(v[2], 32)


cdef uint32_t hashed(const char* text, Py_ssize_t size) noexcept nogil:
    cdef uint64_t[4] v
    cdef uint64_t word
    cdef Py_ssize_t at = 0
    v[0] = KEY_0 ^ 0x736F6D6570736575ULL
    v[1] = KEY_1 ^ 0x646F72616E646F6DULL
    v[2] = KEY_0 ^ 0x6C7967656E657261ULL
    v[3] = KEY_1 ^ 0x7465646279746573ULL
    while at <= size:
        word = (<uint64_t>size) << 56  # the last word has the length in its highest byte
        if at + 8 <= size:
            memcpy(&word, text + at, 8)
        else:
            memcpy(&word, text + at, size - at)
        v[3] ^= word
        mix(v)
        v[0] ^= word
        at += 8
    v[2] ^= 0xFF
    mix(v)
    mix(v)
    mix(v)
    word = v[0] ^ v[1] ^ v[2] ^ v[3]
    return <uint32_t>(word ^ (word >> 32))


def subject_hashes(subjects):
    """The hashes of the subjects, sorted, four bytes each."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 4 * len(subjects))
    cdef uint32_t* values = <uint32_t*>PyBytes_AS_STRING(made)
    cdef Py_ssize_t i = 0
    cdef bytes subject
    for subject in subjects:
        values[i] = hashed(PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject))
        i += 1
    qsort(values, i, 4, by_value)
    return made


def among_hashes(bytes hashes not None, bytes subject not None):
    """False only if the subject is not in the set."""
    cdef const uint32_t* values = <const uint32_t*>PyBytes_AS_STRING(hashes)
    cdef uint32_t value = hashed(PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject))
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = PyBytes_GET_SIZE(hashes) // 4
    cdef Py_ssize_t middle
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low < PyBytes_GET_SIZE(hashes) // 4 and values[low] == value


cdef int by_value(const void* a, const void* b) noexcept nogil:
    cdef uint32_t one = (<const uint32_t*>a)[0]
    cdef uint32_t other = (<const uint32_t*>b)[0]
    return (one > other) - (one < other)
