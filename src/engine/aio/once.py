"""`Once`: a shutdown that several callers may request and that runs once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from engine.aio.shielded import shielded


class Once:
    """Runs one piece of work for all its callers. Loop thread only."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do the work for the first caller, which gets its error; later callers wait until it has ended.

        A cancelled caller does not cancel the work: a half-done shutdown would never be completed.
        """
        if self._task is None:
            self._task = asyncio.ensure_future(work())
            await shielded(self._task)
        elif not self._task.done():
            await asyncio.wait([self._task])
