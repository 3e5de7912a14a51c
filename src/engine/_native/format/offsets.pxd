# cython: language_level=3
"""Sets of offsets, and the ranges that stand for them in a frame's header."""
from libc.stdint cimport uint64_t

cpdef uint64_t overlap(object ranges, uint64_t start, uint64_t stop) except? 0
# What was given as ranges, as a list of tuples of so many numbers. Raises InvalidArgumentError that calls it `name`.
cdef list ranges_of(object found, int width, str name)
