"""A steady beat, for open-loop measures: event-loop timers round to a millisecond, a timerfd does not."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time

NS = 10**9


class Ticker:
    """Ticks `rate` times a second on the running loop. Times are nanoseconds of time.monotonic_ns(). Linux only."""

    def __init__(self, rate: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self.period_ns = NS // rate
        self.total = 0
        self._ready = asyncio.Event()
        self.start_ns = time.monotonic_ns()
        beat = (ctypes.c_long * 4)(*divmod(self.period_ns, NS), *divmod(self.period_ns, NS))
        libc.timerfd_settime(self.fd, 0, ctypes.byref(beat), None)
        asyncio.get_running_loop().add_reader(self.fd, self._tick)

    def _tick(self) -> None:
        self.total += int.from_bytes(os.read(self.fd, 8), "little")
        self._ready.set()

    def due_ns(self, tick: int) -> int:
        """When tick `tick` (from 0) was due."""
        return self.start_ns + (tick + 1) * self.period_ns

    async def wait(self) -> int:
        """The number of ticks since the start, once there is a new one."""
        await self._ready.wait()
        self._ready.clear()
        return self.total

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.fd)
        os.close(self.fd)
