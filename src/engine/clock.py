"""The `Clock` that components are given, the system's own clock, and ages that survive changes of the wall clock.

The rule (docs/guarantees.md, "Clocks"): a running process measures by the monotonic clock. The wall clock is read for
times shown to users and for times written by an earlier process, and what it says of those is clamped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Generic, Protocol, TypeVar

K = TypeVar("K")
STEP_MS_MIN = 1_000  # the wall clock was set if it gains so much on the monotonic one between two readings
STEPS_MAX = 64  # remembered one by one


class Clock(Protocol):
    """A wall clock and a monotonic clock. Timers go through the event loop, which a simulation runs on virtual time."""

    def time_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch, UTC. It may jump in either direction."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start. It never goes back."""


# A lease must expire after its seconds even when the machine was asleep for some of them.
_SINCE_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks."""

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Asked for each frame: a function of the interpreter costs half of one in Python.
    monotonic = staticmethod(partial(time.clock_gettime, _SINCE_BOOT))


class ForwardSteps:
    """How far the wall clock was set forward while this process has watched it.

    Time that the wall clock skipped has not passed. Setting the clock back again undoes the latest steps.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps: list[tuple[int, int]] = []  # (wall clock before it, milliseconds), rising by time
        self._seen = clock.time_ms(), clock.monotonic()

    def sample(self) -> int:
        """Compare the two clocks; the wall-clock time. Call it often: a step and its undoing in between are missed."""
        then_ms, then = self._seen
        now_ms, now = self._seen = self._clock.time_ms(), self._clock.monotonic()
        ahead_ms = now_ms - then_ms - round((now - then) * 1000)
        if ahead_ms >= STEP_MS_MIN:
            self._steps.append((now_ms - ahead_ms, ahead_ms))
        elif ahead_ms <= -STEP_MS_MIN:
            self._take_back(-ahead_ms)
        if len(self._steps) > STEPS_MAX:  # the two oldest count as one, at the later moment
            (_, first_ms), (before_ms, second_ms), *rest = self._steps
            self._steps = [(before_ms, first_ms + second_ms), *rest]
        return now_ms

    def _take_back(self, back_ms: int) -> None:
        while self._steps and back_ms > 0:
            before_ms, step_ms = self._steps.pop()
            if step_ms > back_ms:
                self._steps.append((before_ms, step_ms - back_ms))
            back_ms -= step_ms

    def left_out_ms(self, since_ms: int) -> int:
        """The milliseconds that the wall clock has skipped since a moment that it showed."""
        return sum(step_ms for before_ms, step_ms in self._steps if since_ms <= before_ms)

    def shown_ago(self, now_ms: int, ago_ms: int) -> int:
        """What the wall clock, which shows `now_ms`, showed when so much less time had passed."""
        moment_ms = now_ms - ago_ms
        for before_ms, step_ms in reversed(self._steps):
            if moment_ms >= before_ms + step_ms:
                break
            moment_ms -= step_ms
        return moment_ms


class Ages(Generic[K]):
    """Ages of things whose beginnings are known as wall-clock times only, whichever way that clock is set.

    The wall clock is read once for each thing, when it is first seen; its age then grows with the monotonic clock. A
    beginning in the future counts as now, skipped time does not count, and a thing that was absent from one update is
    younger than that update. So setting the clock back makes no known thing younger, and setting it forward while this
    process runs makes none older.
    """

    __slots__ = ("_began", "_clock", "_steps", "_updated")

    def __init__(self, clock: Clock, steps: ForwardSteps) -> None:
        self._clock = clock
        self._steps = steps
        self._began: dict[K, tuple[int, float]] = {}  # by the wall clock, as it was told; by the monotonic clock
        self._updated: float | None = None

    def update(self, began_ms: Mapping[K, int], now: float | None = None) -> dict[K, float]:
        """The ages, in seconds, of all things that exist; things not in `began_ms` are forgotten.

        `now`: the monotonic time at which the things were read, where that took time; default: the present.
        """
        now, wall_ms = self._clock.monotonic() if now is None else now, self._steps.sample()
        began = self._began
        self._began = {}
        for key, said_ms in began_ms.items():
            seen = began.get(key)
            if seen is None or seen[0] != said_ms:
                seen = said_ms, now - self._first(said_ms, now, wall_ms)
            self._began[key] = seen
        self._updated = now
        return {key: max(0.0, now - since) for key, (_, since) in self._began.items()}

    def age(self, key: K, began_ms: int) -> float | None:
        """One thing's age. It is remembered only if update() has seen it. None: its beginning lies in the future."""
        now, wall_ms = self._clock.monotonic(), self._steps.sample()
        seen = self._began.get(key)
        if seen is not None and seen[0] == began_ms:
            return max(0.0, now - seen[1])
        return None if began_ms > wall_ms and self._updated is None else self._first(began_ms, now, wall_ms)

    def _first(self, began_ms: int, now: float, wall_ms: int) -> float:
        age = max(0.0, (wall_ms - began_ms - self._steps.left_out_ms(began_ms)) / 1000)
        return age if self._updated is None else min(age, max(0.0, now - self._updated))
