"""`AsyncDualMemoryLimiter`: two pools of memory, for what is being put together and for what is on its way out.

A topic list costs both (PIP-442): the names while an answer is assembled, and its bytes until the socket has taken
them. Each pool has its own limit, queue and time to wait.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from engine.aio.semaphore import AsyncSemaphore, Permit, PoolStatistics


class LimitType(enum.Enum):
    """Which pool: "heap" for assembled lists, "direct" for buffers that wait for a socket."""

    HEAP_MEMORY = "heap"
    DIRECT_MEMORY = "direct"


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Of one pool. `timeout`: seconds to wait for a permit; `queue_max`: how many may wait."""

    size: int
    timeout: float
    queue_max: int


@dataclass(frozen=True, slots=True)
class MemoryPermit:
    """Of one pool, which it goes back to."""

    limit_type: LimitType
    permit: Permit

    @property
    def size(self) -> int:
        """Bytes; 0 once it is released."""
        return self.permit.size


class AsyncDualMemoryLimiter:
    """Loop thread only."""

    def __init__(self, heap: MemoryLimit, direct: MemoryLimit, name: str = "memory") -> None:
        """`name`: what errors and metrics call it, followed by that of the pool."""
        limits = {LimitType.HEAP_MEMORY: heap, LimitType.DIRECT_MEMORY: direct}
        self._pools: Mapping[LimitType, AsyncSemaphore] = {
            kind: AsyncSemaphore(
                limit.size, timeout=limit.timeout, queue_max=limit.queue_max, name=f"{name}_{kind.value}"
            )
            for kind, limit in limits.items()
        }

    def pool(self, limit_type: LimitType) -> AsyncSemaphore:
        """One of the two, to change its limits."""
        return self._pools[limit_type]

    async def acquire(self, size: int, limit_type: LimitType) -> MemoryPermit:
        """A permit for so many bytes, which has to be released.

        Raises PermitTimeoutError, PermitQueueFullError, InvalidArgumentError.
        """
        return MemoryPermit(limit_type, await self._pools[limit_type].acquire(size))

    def acquire_nowait(self, size: int, limit_type: LimitType) -> MemoryPermit | None:
        """The same if it can be had at once and no request waits; otherwise None."""
        permit = self._pools[limit_type].acquire_nowait(size)
        return None if permit is None else MemoryPermit(limit_type, permit)

    async def update(self, permit: MemoryPermit, size: int) -> MemoryPermit:
        """Make a held permit smaller or larger; the same permit. When it fails the permit stays as it was, and held.

        Raises PermitTimeoutError, PermitQueueFullError, InvalidArgumentError.
        """
        await self._pools[permit.limit_type].update(permit.permit, size)
        return permit

    def release(self, permit: MemoryPermit) -> None:
        """Give it back. Idempotent."""
        self._pools[permit.limit_type].release(permit.permit)

    def statistics(self) -> dict[LimitType, PoolStatistics]:
        """Of both pools."""
        return {kind: pool.statistics() for kind, pool in self._pools.items()}
