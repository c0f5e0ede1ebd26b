# cython: language_level=3
"""The trail of a subject: sequence and size of each of its messages, oldest first.

Owns: the memory of one trail. It may move when the trail grows, so functions take a pointer to the
pointer. NULL: the trail is not known.
May not touch: the table whose entries have trails.
Spec: index_py.py, SubjectEntry.trail. The functions are inline: they run for every message."""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

cdef struct Pair:
    int64_t seq
    int64_t size

cdef struct Trail:
    int64_t held  # Invariant: 0 <= held <= room
    int64_t room  # the pairs follow in the same allocation


cdef inline Pair* pairs_of(Trail* trail) noexcept:
    return <Pair*>(trail + 1)


cdef inline int make_room(Trail** place, int64_t room) except -1:
    """Allocate memory for `room` pairs, at least one. A trail that was not known becomes empty."""
    cdef bint fresh = place[0] == NULL
    cdef Trail* grown = <Trail*>realloc(place[0], sizeof(Trail) + max(room, 1) * sizeof(Pair))
    if grown == NULL:
        raise MemoryError
    if fresh:
        grown.held = 0
    grown.room = max(room, 1)
    place[0] = grown
    return 0


cdef inline int add_pair(Trail** place, int64_t seq, int64_t size) except -1:
    cdef Trail* trail = place[0]
    cdef Pair* pair
    if trail == NULL or trail.held == trail.room:
        make_room(place, 1 if trail == NULL else trail.room + trail.room // 2 + 1)
        trail = place[0]
    pair = pairs_of(trail) + trail.held
    pair.seq, pair.size = seq, size
    trail.held += 1
    return 0


cdef inline void drop_oldest(Trail* trail, int64_t count) noexcept:
    cdef Pair* pairs = pairs_of(trail)
    if count > 0:
        trail.held = max(trail.held - count, 0)
        memmove(pairs, pairs + count, trail.held * sizeof(Pair))


cdef inline void drop_below(Trail* trail, int64_t seq) noexcept:
    cdef Pair* pairs = pairs_of(trail)
    cdef int64_t gone = 0
    while gone < trail.held and pairs[gone].seq < seq:
        gone += 1
    drop_oldest(trail, gone)


cdef inline void forget(Trail** place) noexcept:
    free(place[0])
    place[0] = NULL
