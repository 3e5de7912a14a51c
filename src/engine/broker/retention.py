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
from engine.model.names import TopicName

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
        # During one look, of each topic: milliseconds, bytes, subscriptions. Reading its layout is work for large ones.
        self._rules: dict[TopicName, tuple[int | None, int | None, tuple[str, ...]]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._config.retention_interval)
            await self.look()

    async def look(self) -> int:
        """Delete what may go now; how many files that were."""
        self._rules.clear()
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
        rule = self._rules.get(topic)
        if rule is None:
            limits = await self._limits(f"{topic.tenant}/{topic.namespace}")
            names = tuple(facts.name for facts in await self._service.list_subscriptions(topic))
            rule = self._rules[topic] = (*limits, names)
        retention_ms, retention_bytes, subscriptions = rule
        acknowledged = await self._hosting.acknowledged(hosted, subscriptions)
        return await hosted.segment.retain(
            acknowledged, self._clock.time_ms(), retention_ms=retention_ms, retention_bytes=retention_bytes
        )

    async def _limits(self, namespace: str) -> tuple[int | None, int | None]:
        """(milliseconds, bytes): the namespace's, or the broker's where it says nothing."""
        policies = await self._service.find_namespace_policies(namespace)
        if policies is None:
            config = self._config
            return None if config.retention_time is None else int(config.retention_time * 1000), config.retention_size
        return policies.retention_time_s * 1000, policies.retention_size_bytes
