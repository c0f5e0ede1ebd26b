# cython: language_level=3
"""Writing protocol text into memory that has already been sized, and growing columns.

Every `put` trusts its caller: sizes are computed first, in a pass over the same rows."""

cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy


@cython.cdivision(True)
cdef inline int digits(int64_t value) noexcept nogil:
    """Bytes that put_number() will write."""
    cdef uint64_t rest = -<uint64_t>value if value < 0 else <uint64_t>value
    cdef int count = 2 if value < 0 else 1
    while rest >= 10000:
        rest = rest // 10000
        count += 4
    if rest >= 1000:
        return count + 3
    if rest >= 100:
        return count + 2
    return count + 1 if rest >= 10 else count


@cython.cdivision(True)
cdef inline char* put_number(char* at, int64_t value) noexcept nogil:
    cdef uint64_t rest = -<uint64_t>value if value < 0 else <uint64_t>value
    cdef char* end = at + digits(value)
    cdef char* p = end
    while rest >= 10:
        p -= 1
        p[0] = <char>(c'0' + rest % 10)
        rest = rest // 10
    p -= 1
    p[0] = <char>(c'0' + rest)
    if value < 0:
        at[0] = c'-'
    return end


cdef inline char* put(char* at, const char* text, Py_ssize_t size) noexcept nogil:
    memcpy(at, text, <size_t>size)
    return at + size


cdef inline Py_ssize_t msg_size(
    Py_ssize_t subject, Py_ssize_t sid, Py_ssize_t reply, Py_ssize_t header, Py_ssize_t total
) noexcept nogil:
    """Bytes of one MSG, or HMSG if `header` is not 0; `total` counts header and payload."""
    cdef Py_ssize_t size = 4 + subject + 1 + sid + 1 + digits(total) + 2 + total + 2
    if reply:
        size += 1 + reply
    if header:
        size += digits(header) + 2  # the H, the number, a blank
    return size


cdef inline char* put_sizes(char* at, Py_ssize_t header, Py_ssize_t total) noexcept nogil:
    """The end of the control line: ` [header size ]total size CR LF`."""
    at[0] = c' '
    at += 1
    if header:
        at = put_number(at, header)
        at[0] = c' '
        at += 1
    at = put_number(at, total)
    at[0] = c'\r'
    at[1] = c'\n'
    return at + 2


cdef inline int reserve(
    void** column, Py_ssize_t* capacity, Py_ssize_t needed, Py_ssize_t item_size
) except -1:
    """Room for `needed` items, at least doubling, so that appending stays linear."""
    cdef Py_ssize_t larger
    cdef void* moved
    if needed <= capacity[0]:
        return 0
    larger = max(needed, 2 * capacity[0])
    moved = realloc(column[0], <size_t>(larger * item_size))
    if moved == NULL:
        raise MemoryError()
    column[0] = moved
    capacity[0] = larger
    return 0
