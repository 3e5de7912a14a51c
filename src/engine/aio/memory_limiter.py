"""`AsyncDualMemoryLimiter`: two memory pools, one for answers being assembled, one for bytes on the way out.

A topic list costs both (PIP-442): the names while an answer is assembled, and its bytes until the socket has taken
them. Each pool has its own limit, queue and timeout.
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
    """The limit of one pool. `timeout`: seconds to wait for a permit; `queue_max`: requests that may wait."""

    size: int
    timeout: float
    queue_max: int


@dataclass(frozen=True, slots=True)
class MemoryPermit:
    """A permit of one pool, to which it must be released."""

    limit_type: LimitType
    permit: Permit

    @property
    def size(self) -> int:
        """The permit's bytes; 0 once it is released."""
        return self.permit.size


class AsyncDualMemoryLimiter:
    """The two pools. Loop thread only."""

    def __init__(self, heap: MemoryLimit, direct: MemoryLimit, name: str = "memory") -> None:
        """`name`: the name in errors and metrics, followed by that of the pool."""
        limits = {LimitType.HEAP_MEMORY: heap, LimitType.DIRECT_MEMORY: direct}
        self._pools: Mapping[LimitType, AsyncSemaphore] = {
            kind: AsyncSemaphore(
                limit.size, timeout=limit.timeout, queue_max=limit.queue_max, name=f"{name}_{kind.value}"
            )
            for kind, limit in limits.items()
        }

    def pool(self, limit_type: LimitType) -> AsyncSemaphore:
        return self._pools[limit_type]

    async def acquire(self, size: int, limit_type: LimitType) -> MemoryPermit:
        """Acquire a permit for `size` bytes, which must be released.

        Raises PermitTimeoutError, PermitQueueFullError, InvalidArgumentError.
        """
        return MemoryPermit(limit_type, await self._pools[limit_type].acquire(size))

    def acquire_nowait(self, size: int, limit_type: LimitType) -> MemoryPermit | None:
        """Acquire a permit if it is free now and no request waits; otherwise None."""
        permit = self._pools[limit_type].acquire_nowait(size)
        return None if permit is None else MemoryPermit(limit_type, permit)

    async def update(self, permit: MemoryPermit, size: int) -> MemoryPermit:
        """Resize a permit that is held, and return it. If that fails the permit stays held, with its old size.

        Raises PermitTimeoutError, PermitQueueFullError, InvalidArgumentError.
        """
        await self._pools[permit.limit_type].update(permit.permit, size)
        return permit

    def release(self, permit: MemoryPermit) -> None:
        """Return the permit to its pool. Idempotent."""
        self._pools[permit.limit_type].release(permit.permit)

    def statistics(self) -> dict[LimitType, PoolStatistics]:
        return {kind: pool.statistics() for kind, pool in self._pools.items()}
