"""`LateDoors`: addresses that are in use when another process begins to serve, and are bound as soon as that is
possible. The process that served before may take a moment to end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from engine.embedded.doors import Doors
from engine.errors import ConnectError, EngineError

log = logging.getLogger(__name__)

AGAIN_S_FIRST = 0.05
AGAIN_S_MAX = 5.0

Open = Callable[[Doors], Awaitable[Doors]]  # serves there; with the ports that were chosen for 0
_Missing = list[tuple[int, Doors]]


class LateDoors:
    """Of one directory; on the loop of its engine."""

    def __init__(self, name: str, doors: list[Doors]) -> None:
        """`doors`: what its handles have asked for; ports that are chosen are noted there."""
        self._name = name
        self._doors = doors
        self._task: asyncio.Task[None] | None = None

    async def open(self, open_one: Open) -> None:
        """Try each address once, and those in use again in the background, until end()."""
        self.end()
        whole = [(i, part) for i, doors in enumerate(self._doors) for part in doors.parts]
        if missing := await self._try(whole, open_one, logging.ERROR):
            self._task = asyncio.create_task(self._open_late(missing, open_one), name=f"addresses of {self._name}")

    def end(self) -> None:
        """Try no more: another process serves, or none."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _open_late(self, missing: _Missing, open_one: Open) -> None:
        pause_s = AGAIN_S_FIRST
        while missing:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_S_MAX)
            left = await self._try(missing, open_one, logging.DEBUG)
            for _, part in missing:
                if all(part is not other for _, other in left):
                    log.info("%s: %s can be bound now", self._name, part)
            missing = left

    async def _try(self, wanted: _Missing, open_one: Open, level: int) -> _Missing:
        """Those that are in use."""
        missing: _Missing = []
        for i, part in wanted:
            try:
                self._doors[i] = self._doors[i].over(await open_one(part))
            except ConnectError as e:
                log.log(level, "%s: %s; it is tried again until it can be bound", self._name, e)
                missing.append((i, part))
            except EngineError as e:  # a repetition does not help
                log.error("%s: %s is not served: %s", self._name, part, e)
        return missing
