# cython: language_level=3, auto_pickle=False
"""What a cumulative acknowledgement asks for: position vectors, segment by segment.

A place is a segment, or one bucket of a shared one (model/positions.py). Plain Python for by_segment() and merged() is
`tests/reference/receiving_reference.py`.
"""
from engine._native.consume.message cimport Message, Origin
from libc.stdint cimport INT64_MAX, int64_t

# As in model/positions.py. Users store these numbers in message ids: do not change.
cdef enum:
    BUCKET_BITS = 10

cdef int64_t SEGMENT_MASK = (<int64_t> 1 << 52) - 1
cdef int64_t LAST = INT64_MAX


def vector_of(Message message not None):
    """The positions delivered up to and including a message: those of its id, which costs more."""
    cdef Origin origin = message.slice.origin
    cdef dict positions = origin.positions_before(message.slice.rank)
    positions[message.slice.place] = message.slice.entry.first_offset + message.index + 1
    return positions


def by_segment(vector):
    """{segment: {bucket, or None for the segment as a whole: position}} of a position vector."""
    cdef dict found = {}, asked
    cdef int64_t place, segment_id
    for place, position in vector.items():
        segment_id, bucket = place, None
        if place >> 62 == 1 and place != LAST:
            segment_id, bucket = place >> BUCKET_BITS & SEGMENT_MASK, place & ((1 << BUCKET_BITS) - 1)
        asked = found.get(segment_id)
        if asked is None:
            found[segment_id] = {bucket: position}
        else:
            asked[bucket] = position
    return found


def merged(one, other):
    """The larger position of each place, of two that by_segment() has returned."""
    cdef dict found = {}, known
    for segment_id, asked in one.items():
        found[segment_id] = asked.copy()
    for segment_id, asked in other.items():
        known = found.get(segment_id)
        if known is None:
            found[segment_id] = asked.copy()
            continue
        for bucket, position in asked.items():
            before = known.get(bucket)
            if before is None or before < position:
                known[bucket] = position
    return found
