"""A clock that runs, and can be moved forward, together with the event loops whose timers follow it.

Moving it goes from timer to timer, over long times in steps of at most STEP_S_MAX, and lets the loop do what these have
started before it goes on. So a minute of back-off or an hour of delay take milliseconds, and nothing that is under way
times out, as the step is below every deadline.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import weakref
from typing import Any

from engine.clock import SystemClock
from engine.errors import InvalidArgumentError, UnsupportedError
from engine.model.checks import check_number

SECONDS_MAX = 10 * 366 * 86_400
STEP_S_MAX = 10.0  # connections without a sign of life for 30 s are taken for lost
_STEPS = 200  # that a long time is divided into, or more
_TURNS_MAX = 1_000  # that a loop gets at each timer before time goes on
_QUIET_TURNS = 3  # turns without anything to do: nothing is under way


class MovableClock:
    """Shows the machine's time plus what it was moved by. A Clock; from any thread, but for advance_async()."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self._moved_s = 0.0
        self._loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

    def time_ms(self) -> int:
        """Wall-clock milliseconds since the epoch."""
        return self._system.time_ms() + round(self._moved_s * 1000)

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return self._system.monotonic() + self._moved_s

    def advance(self, seconds: float) -> None:
        """Move it forward, and return when what that has started is done. For blocking engines.

        Raises InvalidArgumentError for a step back, and on the thread of a loop that follows the clock.
        """
        check_number("seconds", seconds, 0, SECONDS_MAX)
        loops = [loop for loop in self._loops if not loop.is_closed() and loop.is_running()]
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not None and running in loops:
            raise InvalidArgumentError("advance() blocks the loop, use `await clock.advance_async(…)` there")
        if not loops:
            self._moved_s += seconds
            return
        last = self._moved_s + seconds
        moves = [asyncio.run_coroutine_threadsafe(self._move(loop, last), loop) for loop in loops]
        concurrent.futures.wait(moves)
        for move in moves:
            move.result()

    async def advance_async(self, seconds: float) -> None:
        """advance() for engines on the running loop. Raises UnsupportedError where that is not asyncio's own."""
        check_number("seconds", seconds, 0, SECONDS_MAX)
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            raise UnsupportedError(f"a clock moves the timers of asyncio's own event loop alone, got {type(loop)}")
        await self._move(loop, self._moved_s + seconds)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the loop's timers follow this clock, if it is one of asyncio's own."""
        if isinstance(loop, asyncio.BaseEventLoop) and loop not in self._loops:
            own_time = loop.time
            loop.time = lambda: own_time() + self._moved_s  # type: ignore[method-assign]
            self._loops.add(loop)

    async def _move(self, loop: Any, last: float) -> None:
        await _settle(loop)
        least = min((last - self._moved_s) / _STEPS, STEP_S_MAX)
        while self._moved_s < last:
            due = _next_timer(loop)
            step = STEP_S_MAX if due is None else min(due - loop.time(), STEP_S_MAX)
            self._moved_s = min(self._moved_s + max(step, least), last)
            await _settle(loop)


def _next_timer(loop: Any) -> float | None:
    """When the loop's next timer is due, by its own time. asyncio keeps timers in a heap, cancelled ones included."""
    return min((timer.when() for timer in loop._scheduled if not timer.cancelled()), default=None)


async def _settle(loop: Any) -> None:
    """Let the loop do what is ready, and what follows from that."""
    quiet = 0
    for _ in range(_TURNS_MAX):
        await asyncio.sleep(0)
        quiet = 0 if loop._ready else quiet + 1
        if quiet == _QUIET_TURNS:
            return
