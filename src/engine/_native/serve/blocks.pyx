# cython: language_level=3
"""Blocks of whole entries, which readers get."""
from libc.stdint cimport uint32_t, uint64_t


cdef class Block:
    """Whole entries, back to back, as in one file."""

    def __init__(self, list parts not None, uint32_t salt, uint64_t first_offset, uint64_t next_offset,
                 uint64_t messages):
        """`parts`: views of where the entries are in memory, in order."""
        self.parts = parts
        self.salt = salt
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.messages = messages
        for part in parts:
            self.size += len(part)

    @property
    def data(self):
        """All entries in one buffer; joined at the first use."""
        return self.joined()

    cdef object joined(self):
        if len(self.parts) > 1:
            self.parts = [memoryview(b"".join(self.parts))]
        return self.parts[0]

    def __eq__(self, other):
        cdef Block block
        if type(other) is not Block:
            return NotImplemented
        block = other
        same = self.first_offset == block.first_offset and self.next_offset == block.next_offset
        return same and self.salt == block.salt and self.messages == block.messages and self.data == block.data

    def __repr__(self):
        return f"Block({self.first_offset}..{self.next_offset}, {self.size} bytes)"
