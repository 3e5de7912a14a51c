"""The memory that blocks are read into on the loop, reused once no block in it is referenced any more.

New memory costs about as much as reading into it: the system zeroes its pages, and Python zeroes it once more.
"""

from __future__ import annotations

from engine.limits import LOG_INDEX_BYTES_STEP, READ_BLOCK_SIZE

BUFFER_SIZE = READ_BLOCK_SIZE + LOG_INDEX_BYTES_STEP  # enough to find a whole block
BUFFERS_MAX = 4  # kept; a reader that reads and sends in turn needs two or three


class ReadBuffers:
    """The read buffers of one store."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """Memory of `size` bytes with any content. It is in use while a view of it exists."""
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
    """Whether a view of it exists: Python refuses to resize a bytearray then."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return True
    return False
