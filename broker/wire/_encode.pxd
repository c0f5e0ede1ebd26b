# cython: language_level=3


cdef class ReplyColumn:
    cdef char* text
    cdef Py_ssize_t text_capacity
    cdef Py_ssize_t* ends  # Invariant: never decreasing; reply i is text[ends[i - 1]:ends[i]]
    cdef Py_ssize_t ends_capacity
    cdef Py_ssize_t count

    cdef Py_ssize_t begin(self, Py_ssize_t i) noexcept
    cdef int check(self, Py_ssize_t start, Py_ssize_t stop) except -1
