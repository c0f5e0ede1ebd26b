# cython: language_level=3
from libc.stdint cimport uint32_t


cdef uint32_t hashed(const char* text, Py_ssize_t size) noexcept nogil
