"""`AsyncSemaphore`: permits counted in bytes (or other units), granted in order, with a timeout and a bounded queue.

The rules are those of PIP-442. Three cases that it leaves open are decided here:

* A request for more than the whole limit is neither refused nor cut down: it is granted when no other permit is out.
  `used` then exceeds the limit.
* Requests to grow a held permit are served before new ones: the held part comes free only when they proceed.
* When every permit that is out waits to grow, the first is served although it does not fit; otherwise all would wait
  for each other until their timeouts. So `used` may exceed the limit by one such growth.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from engine import checks
from engine.aio.histogram import WAIT_MS, Histogram, HistogramStatistics
from engine.errors import InvalidArgumentError, PermitQueueFullError, PermitTimeoutError

_NO_WAITS = Histogram(WAIT_MS).statistics()


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A bounded resource at one moment. Fields behind `limit` are zero where nothing queues for it."""

    name: str
    unit: str  # "bytes", or another unit
    used: int
    limit: int  # 0: none
    queue: int = 0  # requests waiting now
    queue_max: int = 0
    waits: HistogramStatistics = _NO_WAITS  # milliseconds, of requests that were granted
    timeouts: int = 0  # requests that timed out
    refusals: int = 0  # requests that found the queue full


class Permit:
    """An acquired permit. `size` is that of the last grant; 0 once it is released."""

    __slots__ = ("released", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.released = False


class _Waiter:
    """A queued request for `size` in all; `permit`, if any, holds a part of it already."""

    __slots__ = ("future", "permit", "since", "size")

    def __init__(self, size: int, permit: Permit | None, since: float, future: asyncio.Future[Permit]) -> None:
        self.size = size
        self.permit = permit
        self.since = since
        self.future = future


class AsyncSemaphore:
    """Loop thread only. Times are the running loop's.

    Invariant: `used` is the sum of the sizes of all permits that are not released. Checked by _check(), with
    ENGINE_DEBUG=1.
    """

    __slots__ = ("_acquiring", "_granted", "_growing", "_limit", "_refusals", "_timeouts", "_waits", "name",
                 "queue_max", "timeout", "unit", "used")  # fmt: skip

    def __init__(
        self, limit: int, *, timeout: float | None = None, queue_max: int = 1_000, name: str = "", unit: str = "bytes"
    ) -> None:
        """`timeout`: seconds to wait for a permit; None: no limit. `queue_max`: requests that may wait at once."""
        self.name = name
        self.unit = unit
        self.timeout = timeout
        self.queue_max = queue_max
        self.used = 0
        self._limit = limit
        # Both queues are served in the order of arrival.
        self._growing: OrderedDict[_Waiter, None] = OrderedDict()
        self._acquiring: OrderedDict[_Waiter, None] = OrderedDict()
        self._granted: set[Permit] = set()  # for _check() alone
        # Counters.
        self._waits = Histogram(WAIT_MS)
        self._timeouts = 0
        self._refusals = 0

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def queue(self) -> int:
        return len(self._growing) + len(self._acquiring)

    # -- acquire, update, release --------------------------------------------------------------------------------

    async def acquire(self, size: int) -> Permit:
        """Acquire a permit for `size`, which must be released.

        Raises PermitTimeoutError, PermitQueueFullError, InvalidArgumentError.
        """
        return self.acquire_nowait(size) or await self._wait(size, None, self._acquiring)

    def acquire_nowait(self, size: int) -> Permit | None:
        """Acquire a permit if it is free now and no request waits; otherwise None."""
        _check(size)
        if self.queue or not self._fits(size, 0):
            return None
        self._waits.observe(0.0)
        return self._grant(Permit(0), size)

    async def update(self, permit: Permit, size: int) -> Permit:
        """Resize a permit that is held, and return it. Shrinking takes effect at once, growing may wait.

        While it waits, and when it fails, the permit keeps its old size and must still be released.
        Raises PermitTimeoutError, PermitQueueFullError, InvalidArgumentError.
        """
        _check(size)
        if permit.released:
            raise _released()
        if size <= permit.size:
            self._grant(permit, size)
            self._serve()
        elif not self._growing and self._fits(size, permit.size):
            self._grant(permit, size)
        else:
            await self._wait(size, permit, self._growing)
        return permit

    def release(self, permit: Permit) -> None:
        """Return the permit. Idempotent."""
        if not permit.released:
            permit.released = True
            self._grant(permit, 0)
            self._serve()

    def resize(self, limit: int) -> None:
        """Change the limit. Permits that are out stay out, even when they exceed the new limit."""
        self._limit = limit
        self._serve()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _fits(self, size: int, held: int) -> bool:
        others = self.used - held
        return others + size <= self._limit or others == 0

    def _stuck(self) -> bool:
        """Whether every permit that is out waits to grow."""
        return sum(waiter.permit.size for waiter in self._growing if waiter.permit is not None) >= self.used

    def _grant(self, permit: Permit, size: int) -> Permit:
        self.used += size - permit.size
        permit.size = size
        if checks.COSTLY:
            self._check(permit)
        return permit

    def _check(self, changed: Permit) -> None:
        if changed.released:
            self._granted.discard(changed)
        else:
            self._granted.add(changed)
        checks.check(
            self.used == sum(permit.size for permit in self._granted), f"{self.name}: used is the sum of permits"
        )

    async def _wait(self, size: int, permit: Permit | None, queue: OrderedDict[_Waiter, None]) -> Permit:
        if self.queue >= self.queue_max:
            self._refusals += 1
            raise PermitQueueFullError(f"{self._sentence(size)}, and {self.queue} wait already; try again later")
        loop = asyncio.get_running_loop()
        waiter = _Waiter(size, permit, loop.time(), loop.create_future())
        queue[waiter] = None
        self._serve()
        timer = None if self.timeout is None else loop.call_later(self.timeout, self._expire, waiter)
        try:
            return await waiter.future
        except BaseException:
            self._abandon(waiter, permit)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _expire(self, waiter: _Waiter) -> None:
        if not waiter.future.done():
            self._timeouts += 1
            text = f"{self._sentence(waiter.size)}, and no room came free within {self.timeout:g} s"
            waiter.future.set_exception(PermitTimeoutError(text))
            self._leave(waiter)

    def _abandon(self, waiter: _Waiter, permit: Permit | None) -> None:
        """A request ends without its permit: timed out or cancelled, perhaps after the grant."""
        self._leave(waiter)
        granted = waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None
        if granted and permit is None:
            self.release(waiter.future.result())

    def _leave(self, waiter: _Waiter) -> None:
        """Remove from the queue; requests behind it may fit now."""
        self._growing.pop(waiter, None)
        self._acquiring.pop(waiter, None)
        self._serve()

    def _serve(self) -> None:
        """Grant requests in order, as far as they fit."""
        for queue in (self._growing, self._acquiring):
            while queue:
                waiter = next(iter(queue))
                held = 0 if waiter.permit is None else waiter.permit.size
                gone = waiter.future.done() or (waiter.permit is not None and waiter.permit.released)
                if not (gone or self._fits(waiter.size, held) or (queue is self._growing and self._stuck())):
                    return
                del queue[waiter]
                if not gone:
                    self._hand_over(waiter)
                elif not waiter.future.done():
                    waiter.future.set_exception(_released())

    def _hand_over(self, waiter: _Waiter) -> None:
        permit = self._grant(waiter.permit or Permit(0), waiter.size)
        self._waits.observe(1000 * (asyncio.get_running_loop().time() - waiter.since))
        waiter.future.set_result(permit)

    def _sentence(self, size: int) -> str:
        return f"{size} {self.unit} of {self.name or 'memory'} were asked for, {self.used} of {self._limit} are in use"

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(
            name=self.name,
            unit=self.unit,
            used=self.used,
            limit=self._limit,
            queue=self.queue,
            queue_max=self.queue_max,
            waits=self._waits.statistics(),
            timeouts=self._timeouts,
            refusals=self._refusals,
        )


def _check(size: int) -> None:
    if size < 0:
        raise InvalidArgumentError(f"the size of a permit must be 0 or more, got {size}")


def _released() -> InvalidArgumentError:
    return InvalidArgumentError("the permit was released; acquire another one")
