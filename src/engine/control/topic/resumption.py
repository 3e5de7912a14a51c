"""`Resumption`: what topics' records say is unfinished is finished, however often it fails at first (semantics 42)."""

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
    """Loop thread only. `finish` leads a topic and finishes its change; one that another broker leads is left to it."""

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
        self._running: dict[TopicName, bool] = {}  # topics at work: whether they were asked for once more meanwhile
        self._last: dict[TopicName, str] = {}  # what was said of them last
        self._unknown: set[TopicName] = set()  # their change is of a newer version: not asked for again
        self._looking = False
        self._room = asyncio.Semaphore(_AT_ONCE_MAX)

    def look(self) -> None:
        """A leader is gone, or this broker is new: see which changes wait for somebody."""
        if not self._looking and self._tasks.spawn(self._look(), "unfinished changes") is not None:
            self._looking = True

    async def _look(self) -> None:
        pause = RESUME_S_MIN
        while self._looking:
            self._looking = False
            try:
                topics = await self._unfinished()
            except AlreadyClosedError:
                return  # the store
            except EngineError as e:
                log.warning("the unfinished changes are not known for now: %s", e)
                self._looking = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, RESUME_S_MAX)
                continue
            for topic in topics:
                self.resume(topic)

    def resume(self, topic: TopicName) -> None:
        """One topic has a change that somebody must finish."""
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
        """Whether there is nothing left to do for this broker."""
        try:
            async with self._room:
                await self._finish(topic)
        except (NotOwnerError, NotFoundError):
            return True  # another broker is at it, or was
        except UnsupportedError as e:
            self._unknown.add(topic)
            log.warning("%s: %s", topic, e)
        except EngineError as e:
            level = logging.DEBUG if self._last.get(topic) == str(e) else logging.WARNING  # once is enough
            self._last[topic] = str(e)
            log.log(level, "the unfinished change of %s stays unfinished for now: %s", topic, e)
            return False
        return True
