# cython: language_level=3
"""What a subscription has acknowledged in a segment, as its dispatch sees it."""


cdef class Acked:
    """The heir is `storage/cursor/cursor.py`."""
