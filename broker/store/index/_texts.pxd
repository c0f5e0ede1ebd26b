# cython: language_level=3
"""An arena of texts that do not move: each is its length in four bytes, then its bytes.

Owns: the chunks of memory, which are freed all together.
May not touch: what the texts belong to, or which of them are still needed.
Spec: docs/decisions/0009-subjects-in-a-packed-table.md. A text costs four bytes and no
malloc of its own."""

from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

cdef enum:
    CHUNK_MIN = 256
    CHUNK_MAX = 262144

cdef struct Chunk:
    Chunk* before
    Py_ssize_t room
    Py_ssize_t used  # the texts follow in the same allocation

cdef struct Texts:
    Chunk* newest
    Py_ssize_t nbytes  # of all texts, including their lengths


cdef inline uint32_t length_of(const char* text) noexcept nogil:
    cdef uint32_t size
    memcpy(&size, text, 4)
    return size


cdef inline int compare(
    const char* a, Py_ssize_t a_size, const char* b, Py_ssize_t b_size
) noexcept nogil:
    cdef int verdict = memcmp(a, b, min(a_size, b_size))
    return verdict if verdict else (a_size > b_size) - (a_size < b_size)


cdef inline char* keep_text(Texts* texts, const char* text, Py_ssize_t size) except NULL:
    cdef Py_ssize_t needed = 4 + size
    cdef Py_ssize_t room
    cdef Chunk* chunk = texts.newest
    cdef uint32_t length = <uint32_t>size
    cdef char* place
    if chunk == NULL or chunk.used + needed > chunk.room:
        room = max(needed, min(<Py_ssize_t>CHUNK_MAX, max(<Py_ssize_t>CHUNK_MIN, texts.nbytes)))
        chunk = <Chunk*>malloc(sizeof(Chunk) + room)
        if chunk == NULL:
            raise MemoryError
        chunk.before, chunk.room, chunk.used = texts.newest, room, 0
        texts.newest = chunk
    place = <char*>(chunk + 1) + chunk.used
    memcpy(place, &length, 4)
    memcpy(place + 4, text, size)
    chunk.used += needed
    texts.nbytes += needed
    return place


cdef inline Py_ssize_t memory_of(const Texts* texts) noexcept:
    cdef Py_ssize_t total = 0
    cdef const Chunk* chunk = texts.newest
    while chunk != NULL:
        total += chunk.room
        chunk = chunk.before
    return total


cdef inline void free_texts(Texts* texts) noexcept:
    cdef Chunk* chunk = texts.newest
    cdef Chunk* before
    while chunk != NULL:
        before = chunk.before
        free(chunk)
        chunk = before
    texts.newest = NULL
    texts.nbytes = 0
