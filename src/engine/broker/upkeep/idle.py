"""The loop that closes idle segments, so that memory follows the segments in use."""

from __future__ import annotations

import asyncio
import logging

from engine.broker.hosting.open_segments import OpenSegments
from engine.errors import EngineError

log = logging.getLogger(__name__)

_SWEEPS_PER_LIMIT = 4
_PAUSE_S_MAX = 60.0


class IdleLoop:
    """Unloads a segment that had no attachment and no request for `limit` seconds."""

    def __init__(self, segments: OpenSegments, limit: float) -> None:
        self._segments = segments
        self._limit = limit

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(min(self._limit / _SWEEPS_PER_LIMIT, _PAUSE_S_MAX))
            await self.sweep()

    async def sweep(self) -> int:
        """Unload the segments that are idle for long enough; returns how many."""
        now = asyncio.get_running_loop().time()
        unloaded = 0
        for hosted in self._segments:
            if hosted.in_use:
                hosted.idle_since = None
            elif hosted.idle_since is None:
                hosted.idle_since = now
            elif now - hosted.idle_since >= self._limit:
                try:
                    unloaded += await self._segments.unload(hosted)
                except EngineError as e:
                    log.warning("unloading %s: %s", hosted.name, e)
        return unloaded
