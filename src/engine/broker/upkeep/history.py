"""`HistoryLoop`: one broker of the cluster has the metadata store forget old changes.

A store that keeps every change grows until it is full. Watches that are cut off for less than the time that is kept go
on where they were; others start over with a snapshot. Times and revisions are noted here alone: a broker that has just
begun to lead forgets nothing before that time is over. Two that lead for a moment do no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from engine.clock import Clock
from engine.errors import EngineError
from engine.metadata.store import Historied

log = logging.getLogger(__name__)

KEPT_S = 600.0
INTERVAL_S = 60.0


class HistoryLoop:
    """Loop thread only. `compacted`: the revision up to which this broker has had the history forgotten."""

    def __init__(
        self,
        store: Historied,
        leads: Callable[[], bool],
        clock: Clock,
        *,
        kept: float = KEPT_S,
        interval: float = INTERVAL_S,
    ) -> None:
        """`kept`, `interval`: seconds."""
        self.compacted = 0
        self._store = store
        self._leads = leads
        self._clock = clock
        self._kept = kept
        self._interval = interval
        self._noted: deque[tuple[float, int]] = deque()  # (time, revision then), ascending

    async def run(self) -> None:
        """Until cancelled. A failed turn is logged, and the next one comes."""
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self.look()
            except EngineError as e:
                log.info("the history of the metadata store was not compacted: %s", e)

    async def look(self) -> None:
        """One turn. Raises what the store raises."""
        if not self._leads():
            self._noted.clear()
            return
        now = self._clock.monotonic()
        self._noted.append((now, await self._store.revision()))
        revision = 0
        while self._noted and self._noted[0][0] <= now - self._kept:
            revision = self._noted.popleft()[1]
        if revision > self.compacted:
            await self._store.compact(revision)
            self.compacted = revision
