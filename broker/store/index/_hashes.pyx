# cython: language_level=3
"""Compiled subject hashes. The hash function is in the .pxd, because the index uses it too.

Owns: sorting and searching hashes.
May not touch: the index.
Spec: hashes_py.py."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t
from libc.stdlib cimport qsort


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
