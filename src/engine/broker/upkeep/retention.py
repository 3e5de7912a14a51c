"""The loop that deletes acknowledged messages beyond the retention's time or size, and expires others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING

from engine.broker.hosting.open_segments import OpenSegments
from engine.broker.hosting.open_subscriptions import OpenSubscriptions
from engine.broker.settings.config import BrokerConfig
from engine.broker.upkeep.closed_segments import ClosedSegments
from engine.broker.upkeep.expiry import Expiry
from engine.broker.upkeep.orphans import Orphans
from engine.broker.upkeep.sealed_segments import Prune, Rule, SealedSegments
from engine.clock import Ages, Clock, ForwardSteps
from engine.control.service import ScalableTopicService
from engine.errors import AlreadyClosedError, EngineError, NotFoundError, NotOwnerError
from engine.limits import REPLY_BYTES_MAX, REPLY_RETENTION_S
from engine.model.names import SegmentName, TopicName
from engine.model.policies import NamespacePolicies, resolved
from engine.storage.file.retention import Limits

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.upkeep.reply_topics import Delete, ReplyTopics

log = logging.getLogger(__name__)


_CLOSED_EVERY = 120  # rounds over open segments per search through closed ones


class RetentionLoop:
    """Checks every open segment once per interval, and closed ones when they are due (closed_segments.py).

    A check of a segment acknowledges messages past their time to live, deletes expired files, and ends the last one in
    time for it to expire. Drained sealed segments, and orphans, are searched among the topics that have several
    segments on disk; for topics with open segments in every round.
    """

    def __init__(
        self,
        service: ScalableTopicService,
        segments: OpenSegments,
        subscriptions: OpenSubscriptions,
        config: BrokerConfig,
        clock: Clock,
        prune: Prune,
        delete: Delete,
    ) -> None:
        self._service = service
        self._segments = segments
        self._subscriptions = subscriptions
        self._config = config
        self._clock = clock
        self._delete = delete
        self._steps = ForwardSteps(clock)
        self._expiry = Expiry(subscriptions, self._steps)
        self._sealed = SealedSegments(service, segments, subscriptions, clock, self._steps, self._expiry, prune)
        self._orphans = Orphans(service, segments)
        self._ages: dict[SegmentName, Ages[int]] = {}  # of the files of each checked segment ...
        self._swept: set[SegmentName] = set()  # ... since the last round over closed ones
        self._sweeps = 0
        self._rules: dict[TopicName, Rule] = {}  # during one round; a large topic's layout is costly to read
        self._namespaces: dict[str, NamespacePolicies] = {}  # likewise
        self._closed = ClosedSegments(segments, clock, self._steps, self._find_limits)

    @cached_property
    def _replies(self) -> ReplyTopics:
        from engine.broker.upkeep.reply_topics import ReplyTopics  # with the first round

        return ReplyTopics(self._service, self._segments, self._clock, self._delete)

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
        self._namespaces.clear()
        self._steps.sample()
        deleted = sum([await self._sweep_safely(hosted) for hosted in self._segments])
        for name in list(self._segments.undeleted):
            await self._orphans.remove(name)
        deleted += await self._replies.sweep()
        topics = {hosted.name.topic for hosted in self._segments}
        if self._sweeps % _CLOSED_EVERY == 0:
            try:
                await self._search()
                topics |= await self._sweep_disk()
                self._sealed.forget(topics)
            except EngineError as e:
                log.warning("retention of closed segments: %s", e)
            self._ages = {name: ages for name, ages in self._ages.items() if name in self._swept}
            self._swept.clear()
        self._sweeps += 1
        deleted += sum([await self._sweep_closed(name) for name in self._closed.take_due()])
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

    async def _search(self) -> None:
        self._closed.begin_search(_CLOSED_EVERY * self._config.retention_interval)
        async for topics in self._service.topic_pages():
            await self._closed.search(topics)
            self._replies.found(topic for topic in topics if self._segments.answers_for(topic))

    async def _sweep_closed(self, name: SegmentName) -> int:
        """Open it, check it, and close it again."""
        try:
            spec = await self._service.segment_spec(name.topic, name.segment_id)
            hosted = await self._segments.open(spec, create=False)
        except (NotFoundError, NotOwnerError):
            return 0  # deleted meanwhile, or partly deleted before a crash; or another broker's
        except EngineError as e:
            log.warning("retention of %s: %s", name, e)
            return 0
        deleted = await self._sweep_safely(hosted)
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
        hosted.obey(await self._service.policies_said(hosted.name.topic))
        await self._expiry.expire(hosted, rule.ttl_ms, rule.facts)
        acknowledged = await self._subscriptions.acknowledged(hosted, rule.subscriptions)
        ages = self._ages.setdefault(hosted.name, Ages[int](self._clock, self._steps))
        self._swept.add(hosted.name)
        deleted = await hosted.segment.retain(
            acknowledged,
            retention_ms=rule.retention_ms,
            retention_bytes=rule.retention_bytes,
            ttl_ms=rule.ttl_ms,
            round_s=self._config.retention_interval,
            ages=ages,
        )
        self._closed.note(hosted.name, hosted.segment.retention_due_s)
        return deleted

    async def _rule(self, topic: TopicName) -> Rule:
        rule = self._rules.get(topic)
        if rule is None:
            limits = await self._limits(topic)
            facts = tuple(await self._service.list_subscriptions(topic))
            rule = self._rules[topic] = Rule(limits.retention_ms, limits.retention_bytes, limits.ttl_ms, facts)
        return rule

    async def _find_limits(self, topic: TopicName) -> Limits | None:
        try:
            return await self._limits(topic)
        except NotFoundError:
            return None

    async def _limits(self, topic: TopicName) -> Limits:
        """Field by field: the topic's, else the namespace's, the tenant's, the broker's. Raises NotFoundError."""
        from engine.model.reply_topics import is_reply_topic

        if is_reply_topic(topic):
            round_s = self._config.retention_interval
            return Limits(int(REPLY_RETENTION_S * 1000), REPLY_BYTES_MAX, round_s, None)
        name, config = f"{topic.tenant}/{topic.namespace}", self._config
        namespace = self._namespaces.get(name)
        if namespace is None:
            namespace = self._namespaces[name] = await self._service.get_namespace_policies(name)
        above = await self._service.policies_above(topic.tenant)
        said = resolved(await self._service.find_topic_policies(topic), namespace, above)
        time_s, size = said.get("retention_time_s", config.retention_time), said.get("retention_size_bytes")
        size = config.retention_size if size is None else size
        return Limits(
            _milliseconds(time_s),
            None if size is None or size < 0 else size,
            config.retention_interval,
            _milliseconds(said.get("message_ttl_s", config.message_ttl)),
        )


def _milliseconds(seconds: float | None) -> int | None:
    """None, and below 0: without end."""
    return None if seconds is None or seconds < 0 else int(seconds * 1000)
