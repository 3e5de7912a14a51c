"""`Resumption`: completes pending changes of topics, however often that fails at first (semantics 42).

A pending change is part of the topic's record, so any broker finds it: at its start, when a leader is gone, or when the
record is seen. One task per topic leads the topic and resumes the change at its recorded phase, with growing pauses
after failures; it ends when nothing is pending, or another broker leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from engine.aio.tasks import Supervisor
from engine.errors import AlreadyClosedError, EngineError, NotFoundError, NotOwnerError, UnsupportedError
from engine.limits import RESUME_S_MAX, RESUME_S_MIN
from engine.model.names import TopicName

log = logging.getLogger(__name__)

_AT_ONCE_MAX = 16


class Resumption:
    """Loop thread only. `finish` leads a topic and completes its change; one led elsewhere is left to its leader."""

    def __init__(
        self,
        tasks: Supervisor,
        *,
        unfinished: Callable[[], Awaitable[list[TopicName]]],
        finish: Callable[[TopicName], Awaitable[None]],
    ) -> None:
        self._tasks = tasks
        self._unfinished = unfinished
        self._finish = finish
        self._running: dict[TopicName, bool] = {}  # topics at work: whether they were requested again meanwhile
        self._last: dict[TopicName, str] = {}  # the last failure logged
        self._unknown: set[TopicName] = set()  # their change is of a newer version: not tried again
        self._searching = False
        self._room = asyncio.Semaphore(_AT_ONCE_MAX)

    def search(self) -> None:
        """Search for pending changes: a leader is gone, or this broker has just started."""
        if not self._searching and self._tasks.spawn(self._search(), "unfinished changes") is not None:
            self._searching = True

    async def _search(self) -> None:
        pause = RESUME_S_MIN
        while self._searching:
            self._searching = False
            try:
                topics = await self._unfinished()
            except AlreadyClosedError:
                return  # the store was closed
            except EngineError as e:
                log.warning("pending changes could not be listed: %s", e)
                self._searching = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, RESUME_S_MAX)
                continue
            for topic in topics:
                self.resume(topic)

    def resume(self, topic: TopicName) -> None:
        """Complete the pending change of one topic."""
        if topic in self._unknown:
            return
        if topic in self._running or self._tasks.spawn(self._resume(topic), str(topic)) is not None:
            self._running[topic] = True

    async def _resume(self, topic: TopicName) -> None:
        pause = RESUME_S_MIN
        try:
            while self._running[topic] and topic not in self._unknown:
                self._running[topic] = False
                if not await self._try(topic):
                    self._running[topic] = True
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, RESUME_S_MAX)
        finally:
            del self._running[topic]
            self._last.pop(topic, None)

    async def _try(self, topic: TopicName) -> bool:
        """Whether nothing is left to do for this broker."""
        try:
            async with self._room:
                await self._finish(topic)
        except (NotOwnerError, NotFoundError):
            return True  # another broker leads it
        except UnsupportedError as e:
            self._unknown.add(topic)
            log.warning("%s: %s", topic, e)
        except EngineError as e:
            repeated = self._last.get(topic) == str(e)
            level = logging.DEBUG if repeated else logging.WARNING
            self._last[topic] = str(e)
            log.log(level, "the pending change of %s could not be completed yet: %s", topic, e)
            return False
        return True
