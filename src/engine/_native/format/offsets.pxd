# cython: language_level=3
"""Sets of offsets, and the ranges that stand for them in a frame's header."""
from libc.stdint cimport uint64_t

# How many of the offsets [start, stop) are in inclusive ranges.
cpdef uint64_t overlap(object ranges, uint64_t start, uint64_t stop) except? 0
# `found` as a list of tuples of `width` numbers. Raises InvalidArgumentError that calls it `name`.
cdef list ranges_of(object found, int width, str name)
