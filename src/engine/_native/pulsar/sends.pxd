# cython: language_level=3
"""The SEND that most are, read from its frame in one go; and its receipt."""
from libc.stdint cimport uint64_t

# What is said of a plain batch.
cdef struct Plain:
    uint64_t producer
    uint64_t sequence
    uint64_t highest
    uint64_t first                # sequence id in the metadata
    uint64_t count
