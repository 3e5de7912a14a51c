"""Blocking work under simulation: done on the loop, at a random moment, answered at a later one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

Work = Callable[[], Any]
Done = Callable[[Any, BaseException | None], None]


class SimWorkers:
    """`aio.workers.Workers` with time: jobs of different files overtake each other, as on threads."""

    def __init__(self, rng: random.Random, *, delay_s_max: float = 0.002) -> None:
        self._rng = rng
        self._delay_s_max = delay_s_max
        self._stalled: list[tuple[Work, Done, Context]] | None = None

    def stall(self) -> None:
        """From now on jobs appear to run, and are executed only after resume()."""
        self._stalled = []

    def resume(self) -> None:
        """Execute the stalled jobs now, as if already with the system. Their posters are notified when they run."""
        stalled, self._stalled = self._stalled or [], None
        for work, done, context in stalled:
            self._run(work, done, context)

    def post(self, work: Work, done: Done) -> None:
        """Run the job after a random delay, and report its result after another."""
        if self._stalled is not None:
            self._stalled.append((work, done, copy_context()))
            return
        loop = asyncio.get_running_loop()
        loop.call_later(self._rng.uniform(0, self._delay_s_max), self._run, work, done)

    def _run(self, work: Work, done: Done, context: Context | None = None) -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as e:
            error = e
        loop = asyncio.get_running_loop()
        loop.call_later(self._rng.uniform(0, self._delay_s_max), done, result, error, context=context)

    def close(self) -> None:
        pass
