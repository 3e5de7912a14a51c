# cython: language_level=3
"""One column of many slices as one Arrow column."""

# The values of all messages of Slices, or their keys, as what an Arrow column of binary is made of: (how many, how many
# null, [validity or None, offsets, bytes]). Each text is copied once. Raises InvalidArgumentError beyond 2 GiB.
cdef tuple join_texts(list slices, bint keys)
