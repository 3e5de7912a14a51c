# cython: language_level=3
"""What readers of a segment must know of the transactional entries in a block; plain functions, nothing to cimport."""
