"""`SealedSegments`: deletes drained sealed segments after their retention."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass

from engine.broker.hosting.open_segments import OpenSegments
from engine.broker.hosting.open_subscriptions import OpenSubscriptions
from engine.broker.upkeep.expiry import Expiry
from engine.clock import Ages, Clock, ForwardSteps
from engine.control.base.ports import segment_spec
from engine.control.service import ScalableTopicService
from engine.errors import NotOwnerError
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName
from engine.model.segment import SegmentInfo
from engine.model.subscriptions import SubscriptionMetadata

log = logging.getLogger(__name__)

Prune = Callable[[TopicName, int], Awaitable[bool]]  # service.prune_segment, wherever the topic's leader is


@dataclass(frozen=True, slots=True)
class Rule:
    """The retention of one topic. None: no such limit."""

    retention_ms: int | None
    retention_bytes: int | None  # of acknowledged messages, per segment
    ttl_ms: int | None  # of messages that are not acknowledged
    facts: tuple[SubscriptionMetadata, ...]  # of its subscriptions

    @property
    def subscriptions(self) -> list[str]:
        """Their names."""
        return [facts.name for facts in self.facts]


class SealedSegments:
    """A sealed segment is deleted, after its parents, when every subscription drained it and its retention passed.

    Its retention has passed when it was sealed longer ago than `retention_ms`, regardless of changes to the wall clock
    (without a recorded time: when its last message was published longer ago), or when `retention_bytes` is 0. Its owner
    detects this; the topic's leader, which is called to `prune` it, checks the backlogs again.
    """

    def __init__(
        self,
        service: ScalableTopicService,
        segments: OpenSegments,
        subscriptions: OpenSubscriptions,
        clock: Clock,
        steps: ForwardSteps,
        expiry: Expiry,
        prune: Prune,
    ) -> None:
        self._service = service
        self._segments = segments
        self._subscriptions = subscriptions
        self._clock = clock
        self._expiry = expiry
        self._prune = prune
        self._steps = steps
        self._ages: dict[TopicName, Ages[int]] = {}  # of sealed segments, since they were sealed

    def forget(self, others_than: Container[TopicName]) -> None:
        """Drop the state of all other topics."""
        self._ages = {topic: ages for topic, ages in self._ages.items() if topic in others_than}

    async def collect(self, topic: TopicName, rule: Rule) -> int:
        """Delete what is due; returns how many segments. Raises NotFoundError, NotOwnerError, storage errors."""
        layout = (await self._service.ensure_topic(topic, create=False)).layout
        sealed = {i: info.sealed_at_ms or 0 for i, info in layout.segments.items() if not info.active}
        ages = self._ages.setdefault(topic, Ages[int](self._clock, self._steps)).update(sealed)
        gone: set[int] = set()
        for segment_id in sorted(layout.segments):  # parents have smaller ids than their children
            info = layout.segments[segment_id]
            if info.active or not gone.issuperset(info.parent_ids) or not _is_past(ages[segment_id], rule):
                continue
            if await self._may_go(topic, layout, info, rule):
                if not await self._prune(topic, segment_id):
                    break  # the layout has changed
                log.info("%s: sealed segment %d was drained and past its retention: deleted", topic, segment_id)
                gone.add(segment_id)
        return len(gone)

    async def _may_go(self, topic: TopicName, layout: SegmentLayout, info: SegmentInfo, rule: Rule) -> bool:
        spec = segment_spec(topic, layout, info)
        mine = self._segments.get(spec.name)
        try:
            hosted = mine or await self._segments.open_existing(spec)
        except NotOwnerError:
            return False  # its owner checks it
        if hosted is None:
            await self._segments.check_gone(spec)
            return True  # its store is deleted already
        await self._expiry.expire(hosted, rule.ttl_ms, rule.facts)
        newest_s = (self._clock.time_ms() - hosted.segment.statistics().last_publish_ms) / 1000
        past = bool(info.sealed_at_ms) or _is_past(newest_s, rule)
        may_go = past and await self._subscriptions.drained(hosted, rule.subscriptions)
        if mine is None and not may_go:
            await self._segments.unload(hosted)
        return may_go


def _is_past(age_s: float, rule: Rule) -> bool:
    if rule.retention_bytes == 0:
        return True
    return rule.retention_ms is not None and age_s * 1000 >= rule.retention_ms
