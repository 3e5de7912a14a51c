"""`ReplyTopics`: deletes topics of replies whose client is gone.

A client deletes its topics of replies when it closes. One that has died, or may not delete topics, leaves them.
Retention passes on what it comes by in its rounds: open segments, and the names of closed ones that are this broker's,
so that what is kept here does not grow with those of other brokers. A topic of replies without a consumer for
`REPLY_TOPIC_IDLE_S` is deleted by the owner of its segments.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from engine.broker.hosting.open_segments import OpenSegments
from engine.clock import Clock
from engine.control.service import ScalableTopicService
from engine.errors import EngineError, NotFoundError, NotOwnerError
from engine.limits import REPLY_TOPIC_IDLE_S
from engine.model.names import TopicName
from engine.model.reply_topics import is_reply_topic

log = logging.getLogger(__name__)

Delete = Callable[[TopicName], Awaitable[object]]  # wherever the topic's leader is


class ReplyTopics:
    """Loop thread only."""

    def __init__(self, service: ScalableTopicService, segments: OpenSegments, clock: Clock, delete: Delete) -> None:
        self._service, self._segments, self._clock, self._delete = service, segments, clock, delete
        self._unused: dict[TopicName, float] = {}  # since when, by the monotonic clock

    def found(self, topics: Iterable[TopicName]) -> None:
        """There are these topics, of which segments are this broker's, and may be closed."""
        now = self._clock.monotonic()
        for topic in topics:
            if is_reply_topic(topic):
                self._unused.setdefault(topic, now)

    async def sweep(self) -> int:
        """Delete those that were unused for long enough; returns how many."""
        self.found({hosted.name.topic for hosted in self._segments})
        for hosted in self._segments:
            if hosted.readers:
                self._unused.pop(hosted.name.topic, None)
        now = self._clock.monotonic()
        due = [topic for topic, since in self._unused.items() if now - since >= REPLY_TOPIC_IDLE_S]
        return sum([await self._collect(topic) for topic in due])

    async def _collect(self, topic: TopicName) -> bool:
        self._unused.pop(topic, None)
        try:
            if not await self._is_unused(topic):
                return False
            await self._delete(topic)
        except (NotFoundError, NotOwnerError):
            return False  # deleted meanwhile; or another broker sees whether it is used
        except EngineError as e:
            log.warning("%s, which no client reads any more, could not be deleted: %s", topic, e)
            return False
        log.info("%s is deleted: no client reads it any more", topic)
        return True

    async def _is_unused(self, topic: TopicName) -> bool:
        """Whether its segments are here, and no consumer is attached to one. Raises NotOwnerError, NotFoundError."""
        layout = (await self._service.ensure_topic(topic, create=False)).layout
        for segment_id, info in layout.segments.items():
            if info.active:
                hosted = await self._segments.open(await self._service.segment_spec(topic, segment_id), create=False)
                if hosted.readers:
                    return False
        return True
