"""Heap memory of topic lists (PIP-442): for a namespace that is read, and for a list that is made of it.

A permit of the initial size comes first and grows to the real one. The sizes are what objects take, measured, not what
their names take on the wire.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

from engine.aio.memory_limiter import AsyncDualMemoryLimiter, LimitType, MemoryPermit
from engine.limits import TOPIC_LIST_INITIAL_SIZE

LIST_SIZE = 4 * 1024  # of a list without names
LISTED_NAME_SIZE = 32  # of a name in a list: two references, and as much again while it is sorted
READ_TOPIC_SIZE = 512  # of a topic of a namespace, beside its record


@asynccontextmanager
async def permit_of(memory: AsyncDualMemoryLimiter | None, size: int) -> AsyncIterator[None]:
    """Hold so much meanwhile. Raises PermitTimeoutError, PermitQueueFullError. Without `memory` there is no limit."""
    if memory is None:
        yield
        return
    permit = await memory.acquire(size, LimitType.HEAP_MEMORY)
    try:
        yield
    finally:
        memory.release(permit)


class Growing:
    """A permit for what is read piece by piece. Acquired on entry, released on exit or before."""

    def __init__(self, memory: AsyncDualMemoryLimiter | None) -> None:
        self._memory = memory
        self._permit: MemoryPermit | None = None
        self._needed = 0

    async def __aenter__(self) -> Growing:
        """Raises PermitTimeoutError, PermitQueueFullError."""
        if self._memory is not None:
            self._permit = await self._memory.acquire(TOPIC_LIST_INITIAL_SIZE, LimitType.HEAP_MEMORY)
        return self

    async def grow(self, size: int) -> None:
        """So much more is there. Raises PermitTimeoutError, PermitQueueFullError."""
        self._needed += size
        if self._memory is not None and self._permit is not None and self._needed > self._permit.size:
            await self._memory.update(self._permit, self._needed + TOPIC_LIST_INITIAL_SIZE)

    def release(self) -> None:
        """It is all there. Idempotent."""
        if self._memory is not None and self._permit is not None:
            self._memory.release(self._permit)
            self._permit = None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release it."""
        self.release()
