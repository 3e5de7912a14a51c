"""Blocking work under simulation: done on the loop, at a random moment, answered at a later one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any


class SimWorkers:
    """`aio.workers.Workers` with time: jobs of different files overtake each other, as on threads."""

    def __init__(self, rng: random.Random, *, delay_s_max: float = 0.002) -> None:
        self._rng = rng
        self._delay_s_max = delay_s_max
        self._stalled: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] | None = None

    def stall(self) -> None:
        """From now on jobs are begun, as far as anybody knows, and done only after resume()."""
        self._stalled = []

    def resume(self) -> None:
        """Do what was held up."""
        stalled, self._stalled = self._stalled or [], None
        for work, done in stalled:
            self.post(work, done)

    def post(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Do the work after a while, answer after another."""
        if self._stalled is not None:
            self._stalled.append((work, done))
            return
        loop = asyncio.get_running_loop()
        loop.call_later(self._rng.uniform(0, self._delay_s_max), self._run, work, done)

    def _run(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as e:
            error = e
        loop = asyncio.get_running_loop()
        loop.call_later(self._rng.uniform(0, self._delay_s_max), done, result, error)

    def close(self) -> None:
        """Nothing to stop."""
