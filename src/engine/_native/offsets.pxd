# cython: language_level=3
"""Sets of offsets, and the ranges that stand for them in a frame's header."""
