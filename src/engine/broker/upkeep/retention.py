"""The loop that deletes acknowledged messages beyond the retention's time or size."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from engine.broker.hosting.open_segments import OpenSegments
from engine.broker.hosting.open_subscriptions import OpenSubscriptions
from engine.broker.segment.hosted import HostedSegment
from engine.broker.settings.config import BrokerConfig
from engine.broker.upkeep.orphans import Orphans
from engine.broker.upkeep.sealed_segments import Prune, Rule, SealedSegments
from engine.clock import Ages, Clock, ForwardSteps
from engine.control.service import ScalableTopicService
from engine.errors import AlreadyClosedError, EngineError, NotFoundError, NotOwnerError
from engine.model.names import SegmentName, TopicName

log = logging.getLogger(__name__)


_CLOSED_EVERY = 60  # rounds over open segments per round over closed ones, which have to be opened


class RetentionLoop:
    """Checks every open segment once per interval, and closed ones at the start and then every _CLOSED_EVERY rounds.

    A check of an open segment deletes expired files. Drained sealed segments, and orphans, are searched among the
    topics that have several segments on disk; for topics with open segments in every round.
    """

    def __init__(
        self,
        service: ScalableTopicService,
        segments: OpenSegments,
        subscriptions: OpenSubscriptions,
        config: BrokerConfig,
        clock: Clock,
        prune: Prune,
    ) -> None:
        self._service = service
        self._segments = segments
        self._subscriptions = subscriptions
        self._config = config
        self._clock = clock
        self._steps = ForwardSteps(clock)
        self._sealed = SealedSegments(service, segments, subscriptions, clock, self._steps, prune)
        self._orphans = Orphans(service, segments)
        self._ages: dict[SegmentName, Ages[int]] = {}  # of the files of each checked segment ...
        self._swept: set[SegmentName] = set()  # ... since the last round over closed ones
        self._sweeps = 0
        self._rules: dict[TopicName, Rule] = {}  # during one round; a large topic's layout is costly to read

    async def run(self) -> None:
        """Runs until cancelled. A failed round is logged and the next one runs."""
        await self._safely(self._sweep_orphans)
        while True:
            await asyncio.sleep(self._config.retention_interval)
            await self._safely(self.sweep)

    async def _safely(self, step: Callable[[], Awaitable[object]]) -> None:
        try:
            await step()
        except AlreadyClosedError as e:
            log.debug("retention: %s", e)
        except Exception:
            log.exception("a round of retention failed")

    async def _sweep_orphans(self) -> None:
        try:
            await self._orphans.sweep(await self._segments.on_disk())
        except EngineError as e:
            log.warning("orphans could not be deleted: %s", e)

    async def sweep(self) -> int:
        """Delete expired files and segments; returns how many of both together."""
        self._rules.clear()
        self._steps.sample()
        deleted = sum([await self._sweep_safely(hosted) for hosted in self._segments])
        for name in list(self._segments.undeleted):
            await self._orphans.remove(name)
        topics = {hosted.name.topic for hosted in self._segments}
        if self._sweeps % _CLOSED_EVERY == 0:
            try:
                deleted += await self._sweep_closed()
                topics |= await self._sweep_disk()
                self._sealed.forget(topics)
            except EngineError as e:
                log.warning("retention of closed segments: %s", e)
            self._ages = {name: ages for name, ages in self._ages.items() if name in self._swept}
            self._swept.clear()
        self._sweeps += 1
        return deleted + sum([await self._collect(topic) for topic in sorted(topics)])

    async def _sweep_disk(self) -> set[TopicName]:
        """Delete orphans; returns the topics that may have sealed segments."""
        stores = await self._segments.on_disk()
        await self._orphans.sweep(stores)
        return {topic for topic, names in stores.items() if len(names) > 1}

    async def _collect(self, topic: TopicName) -> int:
        try:
            return await self._sealed.collect(topic, await self._rule(topic))
        except (NotFoundError, NotOwnerError):
            return 0  # deleted meanwhile; or there is no leader for now
        except EngineError as e:
            log.warning("retention of the sealed segments of %s: %s", topic, e)
            return 0

    async def _sweep_closed(self) -> int:
        """Open those with several files, check them, and close them again."""
        deleted = 0
        async for topics in self._service.topic_pages():
            deleted += await self._sweep_rolled(topics)
        return deleted

    async def _sweep_rolled(self, topics: Sequence[TopicName]) -> int:
        deleted = 0
        for name in await self._segments.rolled(topics):
            try:
                spec = await self._service.segment_spec(name.topic, name.segment_id)
                hosted = await self._segments.open(spec, create=False)
            except (NotFoundError, NotOwnerError):
                continue  # deleted meanwhile, or partly deleted before a crash; or another broker's
            except EngineError as e:
                log.warning("retention of %s: %s", name, e)
                continue
            deleted += await self._sweep_safely(hosted)
            await self._segments.unload(hosted)
        return deleted

    async def _sweep_safely(self, hosted: HostedSegment) -> int:
        try:
            return await self._sweep_segment(hosted)
        except (NotFoundError, NotOwnerError):
            return 0  # deleted or closed meanwhile
        except EngineError as e:
            log.warning("retention of %s: %s", hosted.name, e)
            return 0

    async def _sweep_segment(self, hosted: HostedSegment) -> int:
        rule = await self._rule(hosted.name.topic)
        acknowledged = await self._subscriptions.acknowledged(hosted, rule.subscriptions)
        ages = self._ages.setdefault(hosted.name, Ages[int](self._clock, self._steps))
        self._swept.add(hosted.name)
        return await hosted.segment.retain(
            acknowledged, retention_ms=rule.retention_ms, retention_bytes=rule.retention_bytes, ages=ages
        )

    async def _rule(self, topic: TopicName) -> Rule:
        rule = self._rules.get(topic)
        if rule is None:
            limits = await self._limits(f"{topic.tenant}/{topic.namespace}")
            names = tuple(facts.name for facts in await self._service.list_subscriptions(topic))
            rule = self._rules[topic] = Rule(*limits, names)
        return rule

    async def _limits(self, namespace: str) -> tuple[int | None, int | None]:
        """(milliseconds, bytes), None for no limit: the namespace's, else the broker's."""
        policies = await self._service.find_namespace_policies(namespace)
        if policies is None:
            config = self._config
            return None if config.retention_time is None else int(config.retention_time * 1000), config.retention_size
        time_ms, size = policies.retention_time_s * 1000, policies.retention_size_bytes
        return None if time_ms < 0 else time_ms, None if size is None or size < 0 else size
