# cython: language_level=3
"""The transactional entries of a block, by their headers; plain functions, nothing to cimport."""
