"""Heap memory of topic lists (PIP-442): for reading a namespace, and for making a list of it.

A permit of the initial size comes first and grows to the actual size. Sizes are those of the objects, as measured, not
of names on the wire.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

from engine.aio.memory_limiter import AsyncDualMemoryLimiter, LimitType, MemoryPermit
from engine.limits import TOPIC_LIST_INITIAL_SIZE

LIST_SIZE = 4 * 1024  # a list without names
LISTED_NAME_SIZE = 32  # one name in a list: two references, and as much again while sorting
READ_TOPIC_SIZE = 512  # one topic of a namespace, beside its record


@asynccontextmanager
async def permit_of(memory: AsyncDualMemoryLimiter | None, size: int) -> AsyncIterator[None]:
    """Hold a permit. Raises PermitTimeoutError, PermitQueueFullError. Without `memory` there is no limit."""
    if memory is None:
        yield
        return
    permit = await memory.acquire(size, LimitType.HEAP_MEMORY)
    try:
        yield
    finally:
        memory.release(permit)


class Growing:
    """A permit that grows while data is read. Acquired on entry, released on exit or before."""

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
        """Add to the permit. Raises PermitTimeoutError, PermitQueueFullError."""
        self._needed += size
        if self._memory is not None and self._permit is not None and self._needed > self._permit.size:
            await self._memory.update(self._permit, self._needed + TOPIC_LIST_INITIAL_SIZE)

    def release(self) -> None:
        """The data is complete. Idempotent."""
        if self._memory is not None and self._permit is not None:
            self._memory.release(self._permit)
            self._permit = None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
