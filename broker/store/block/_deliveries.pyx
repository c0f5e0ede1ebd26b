# cython: language_level=3
"""Compiled encoder of deliveries: a first pass computes the size, a second one writes the text.

Owns: the ack reply subject of a delivery, and the MSG/HMSG around it.
May not touch: consumer state, sockets.
Spec: deliveries_py.py."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.long cimport PyLong_AsSsize_t
from libc.stdint cimport int32_t, int64_t

from broker.store.block._block cimport DATA, HEADERS, SUBJECTS, Rows
from broker.wire._text cimport digits, msg_size, put, put_number, put_sizes

cdef enum:
    FACTS = 5  # delivered, stream sequence, consumer sequence, time, pending


cdef struct Delivery:
    const char* subject
    const char* headers
    const char* data
    Py_ssize_t subject_size
    Py_ssize_t header_size
    Py_ssize_t data_size
    int64_t facts[FACTS]


cdef inline Py_ssize_t locate(Rows rows, int column, Py_ssize_t i, const char** text) noexcept:
    cdef int32_t* ends = rows.ends[column]
    text[0] = rows.blobs[column] + ends[i]
    return ends[i + 1] - ends[i]


cdef int describe(
    Delivery* delivery,
    Rows rows,
    list indices,
    list delivered,
    Py_ssize_t k,
    int64_t consumer_seq,
    int64_t pending,
    bint headers_ok,
) except -1:
    """Fill in the k-th delivery. Runs no Python code, so both passes see the same rows."""
    cdef Py_ssize_t i = PyLong_AsSsize_t(indices[k])
    rows.check(i)
    delivery.subject_size = locate(rows, SUBJECTS, i, &delivery.subject)
    delivery.header_size = locate(rows, HEADERS, i, &delivery.headers)
    if not headers_ok:
        delivery.header_size = 0
    delivery.data_size = locate(rows, DATA, i, &delivery.data)
    delivery.facts[0] = PyLong_AsSsize_t(delivered[k]) if delivered is not None else 1
    delivery.facts[1] = rows.seq_at(i)
    delivery.facts[2] = consumer_seq + k
    delivery.facts[3] = rows.times[i]
    delivery.facts[4] = pending - k
    return 0


def encode_deliveries(
    Rows rows not None,
    list indices not None,
    bytes sid not None,
    bytes ack_prefix not None,
    list delivered,
    int64_t consumer_seq,
    int64_t pending,
    bint headers_ok,
):
    if delivered is not None and len(delivered) != len(indices):
        raise ValueError("delivered and indices differ in length")
    cdef bytes to = b" " + sid + b" " + ack_prefix
    cdef const char* to_text = PyBytes_AS_STRING(to)
    cdef Py_ssize_t to_size = PyBytes_GET_SIZE(to)
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t k, reply_size
    cdef Delivery one
    cdef int fact
    for k in range(PyList_GET_SIZE(indices)):
        describe(&one, rows, indices, delivered, k, consumer_seq, pending, headers_ok)
        reply_size = PyBytes_GET_SIZE(ack_prefix) + FACTS
        for fact in range(FACTS):
            reply_size += digits(one.facts[fact])
        total += msg_size(
            one.subject_size,
            PyBytes_GET_SIZE(sid),
            reply_size,
            one.header_size,
            one.header_size + one.data_size,
        )
    cdef bytes encoded = PyBytes_FromStringAndSize(NULL, total)
    cdef char* at = PyBytes_AS_STRING(encoded)
    for k in range(PyList_GET_SIZE(indices)):
        describe(&one, rows, indices, delivered, k, consumer_seq, pending, headers_ok)
        at = put(at, b"HMSG ", 5) if one.header_size else put(at, b"MSG ", 4)
        at = put(at, one.subject, one.subject_size)
        at = put(at, to_text, to_size)
        for fact in range(FACTS):
            at = put(at, b".", 1)
            at = put_number(at, one.facts[fact])
        at = put_sizes(at, one.header_size, one.header_size + one.data_size)
        at = put(at, one.headers, one.header_size)
        at = put(at, one.data, one.data_size)
        at = put(at, b"\r\n", 2)
    assert at == PyBytes_AS_STRING(encoded) + total
    return encoded
