"""`Once`: an end that many may ask for and that happens once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Once:
    """Loop thread only."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """The first call does the work and raises what it raises; the others wait until that has ended.

        The work goes on to its end when a caller is cancelled: half an end would be the last there is.
        """
        if self._task is None:
            self._task = asyncio.ensure_future(work())
            await asyncio.shield(self._task)
        elif not self._task.done():
            await asyncio.wait([self._task])
