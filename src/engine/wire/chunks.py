"""The memory that received bytes land in: big chunks, lent out as views, reused when the last view is gone.

A receiver holds a chunk only while it has part of a frame; otherwise it fills the pool's current one further.
So an idle connection owns no receive memory at all, and a thousand of them share one chunk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from engine.limits import FRAME_ALIGNMENT, MIB

CHUNK_SIZE = 1 * MIB
CHUNK_SIZE_SCARCE = CHUNK_SIZE // 16
CHUNKS_RETIRED_MAX = 192  # full chunks kept for reuse; more are left to the memory manager
_TRIED_MAX = 8


class Chunk:
    """`size` bytes of memory, of which the first `used` are spoken for.

    Invariant: bytes below `used` are never written again while a view of them exists. Checked by lent().
    """

    __slots__ = ("memory", "size", "used", "view")

    def __init__(self, size: int) -> None:
        self.memory = bytearray(size)
        self.view: memoryview | None = memoryview(self.memory)
        self.size = size
        self.used = 0

    def lent(self) -> bool:
        """Whether a view of it still exists. A bytearray refuses to change its size while one exists."""
        self.view = None
        try:
            self.memory.append(self.memory.pop())
        except BufferError:
            return True
        return False

    def recycle(self) -> None:
        """Make the whole chunk free again. Only after lent() said no."""
        self.view = memoryview(self.memory)
        self.used = 0


class ChunkPool:
    """The chunks of one event loop. Not for several threads.

    `taken` is what receivers hold now: each has a chunk while it has half a frame. When that passes half of `limit`,
    they get no more than they need; when it passes the limit, `on_full` is called at the next turn of the loop.
    """

    __slots__ = ("_current", "_reporting", "_retired", "chunk_size", "limit", "on_full", "taken")

    def __init__(self, chunk_size: int = CHUNK_SIZE) -> None:
        self.chunk_size = chunk_size
        self.limit = 0  # none
        self.on_full: Callable[[], None] | None = None
        self.taken = 0
        self._reporting = False
        self._current: Chunk | None = None
        self._retired: deque[Chunk] = deque(maxlen=CHUNKS_RETIRED_MAX)

    def take(self, room: int = 0) -> Chunk:
        """A chunk with at least `room` bytes free, and not too few in any case; the caller's until it gives it back."""
        chunk = self._find(room)
        self.taken += chunk.size
        if self.taken > self.limit > 0 and not self._reporting:
            self._reporting = True
            asyncio.get_running_loop().call_soon(self._report_full)
        return chunk

    def _find(self, room: int) -> Chunk:
        chunk, self._current = self._current, None
        if chunk is not None:
            if chunk.size - chunk.used >= max(room, self.chunk_size // 4):
                return chunk
            self._retire(chunk)
        if room > self.chunk_size:
            return Chunk(room)
        if self.taken > self.limit // 2 > 0:
            return Chunk(max(room, CHUNK_SIZE_SCARCE))
        return self._reusable() or Chunk(self.chunk_size)

    def take_exactly(self, size: int) -> Chunk:
        """A chunk for what is there, and not more."""
        self.taken += size
        return Chunk(size)

    def _report_full(self) -> None:
        self._reporting = False
        if self.taken > self.limit > 0 and self.on_full is not None:
            self.on_full()

    def give(self, chunk: Chunk, used: int) -> None:
        """Take a chunk back of which the first `used` bytes are, or were, lent."""
        self.taken -= chunk.size
        chunk.used = -(-used // FRAME_ALIGNMENT) * FRAME_ALIGNMENT
        if self._current is None and chunk.size - chunk.used >= self.chunk_size // 4:
            self._current = chunk
        else:
            self._retire(chunk)

    def trim(self) -> None:
        """Let go of every chunk kept for reuse. For a broker that has gone idle."""
        self._retired.clear()

    def _retire(self, chunk: Chunk) -> None:
        if chunk.size == self.chunk_size:
            chunk.view = None
            self._retired.append(chunk)

    def _reusable(self) -> Chunk | None:
        """A retired chunk of which no view exists any more. Chunks become free roughly in the order of their use."""
        for at in range(min(_TRIED_MAX, len(self._retired))):
            chunk = self._retired[at]
            if not chunk.lent():
                del self._retired[at]
                chunk.recycle()
                return chunk
        return None
