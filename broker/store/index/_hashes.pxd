# cython: language_level=3
from libc.stdint cimport uint32_t


cdef inline uint32_t hashed(const char* text, Py_ssize_t size) noexcept:
    """FNV-1a with a final mix, so that the low bits can select a hash table slot."""
    cdef uint32_t value = 2166136261u
    cdef Py_ssize_t i
    for i in range(size):
        value = (value ^ <unsigned char>text[i]) * 16777619u
    value ^= value >> 16
    value *= 0x85EBCA6Bu
    value ^= value >> 13
    value *= 0xC2B2AE35u
    return value ^ (value >> 16)
