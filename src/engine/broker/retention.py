"""The loop that lets acknowledged messages go when their time or their room is over."""

from __future__ import annotations

import asyncio
import logging

from engine.broker.config import BrokerConfig
from engine.broker.segment_host import SegmentHosting
from engine.broker.topics import HostedSegment
from engine.clock import Clock
from engine.control.service import ScalableTopicService
from engine.errors import EngineError, NotFoundError

log = logging.getLogger(__name__)


_CLOSED_EVERY = 60  # looks at open segments for one at those that are closed, which has to open them


class RetentionLoop:
    """Looks at every open segment once per interval, and at the closed ones at the start and then more seldom."""

    def __init__(
        self, service: ScalableTopicService, hosting: SegmentHosting, config: BrokerConfig, clock: Clock
    ) -> None:
        self._service = service
        self._hosting = hosting
        self._config = config
        self._clock = clock
        self._looks = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._config.retention_interval)
            await self.look()

    async def look(self) -> int:
        """Delete what may go now; how many files that were."""
        deleted = sum([await self._look_safely(hosted) for hosted in self._hosting])
        if self._looks % _CLOSED_EVERY == 0:
            try:
                deleted += await self._look_at_closed()
            except EngineError as e:
                log.warning("retention of closed segments: %s", e)
        self._looks += 1
        return deleted

    async def _look_at_closed(self) -> int:
        """Open those with several files, look, and close them again."""
        deleted = 0
        for name in await self._hosting.rolled(await self._service.every_topic()):
            try:
                spec = await self._service.segment_spec(name.topic, name.segment_id)
                hosted = await self._hosting.open(spec, create=False)
            except NotFoundError:
                continue  # deleted meanwhile, or the left-over of a deletion that a crash cut short
            except EngineError as e:
                log.warning("retention of %s: %s", name, e)
                continue
            deleted += await self._look_safely(hosted)
            await self._hosting.unload(hosted)
        return deleted

    async def _look_safely(self, hosted: HostedSegment) -> int:
        try:
            return await self._look_at(hosted)
        except NotFoundError:
            return 0  # deleted meanwhile
        except EngineError as e:
            log.warning("retention of %s: %s", hosted.name, e)
            return 0

    async def _look_at(self, hosted: HostedSegment) -> int:
        topic = hosted.name.topic
        limits = await self._limits(f"{topic.tenant}/{topic.namespace}")
        acknowledged = hosted.segment.durable_offset
        for subscription in await self._service.list_subscriptions(topic):
            found = await self._hosting.subscription(hosted, subscription.name)
            acknowledged = min(acknowledged, found.cursor.position)
        return await hosted.segment.retain(
            acknowledged, self._clock.time_ms(), retention_ms=limits[0], retention_bytes=limits[1]
        )

    async def _limits(self, namespace: str) -> tuple[int | None, int | None]:
        """(milliseconds, bytes): the namespace's, or the broker's where it says nothing."""
        policies = await self._service.find_namespace_policies(namespace)
        if policies is None:
            config = self._config
            return None if config.retention_time is None else int(config.retention_time * 1000), config.retention_size
        return policies.retention_time_s * 1000, policies.retention_size_bytes
