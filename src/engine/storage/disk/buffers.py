"""The memory that blocks are read into on the loop, used again when nobody holds a block of it any more.

New memory costs about what it costs to read into it: the system clears its pages, and Python clears it once more.
"""

from __future__ import annotations

from engine.limits import LOG_INDEX_BYTES_STEP, READ_BLOCK_SIZE

BUFFER_SIZE = READ_BLOCK_SIZE + LOG_INDEX_BYTES_STEP  # what it takes to find a whole block
BUFFERS_MAX = 4  # kept; who reads and sends in turn needs two or three


class ReadBuffers:
    """Those of a store. Loop thread only."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """Memory of that size; what stands in it does not matter. It is in use while any view of it exists."""
        if not BUFFER_SIZE // 4 < size <= BUFFER_SIZE:
            return memoryview(bytearray(size))
        for buffer in self._kept:
            if not _is_lent(buffer):
                return memoryview(buffer)[:size]
        made = bytearray(BUFFER_SIZE)
        if len(self._kept) < BUFFERS_MAX:
            self._kept.append(made)
        return memoryview(made)[:size]


def _is_lent(buffer: bytearray) -> bool:
    """Whether there is a view of it: then it refuses to change its size."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return True
    return False
