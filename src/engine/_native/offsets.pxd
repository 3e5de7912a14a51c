# cython: language_level=3
"""Sets of offsets: from the ranges of a frame's header to parts that a compressed set takes at once, and back."""
