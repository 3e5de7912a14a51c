"""`QuotaLoop`: what is stored, and not acknowledged, of topics that have limits of it; and what follows above them.

Each broker measures the segments that it answers for, once in ROUND_S, and shows the others the sums of what has a
limit, in a record of its own for each tenant. So limits of storage and backlog are of the whole topic, namespace or
tenant, wherever its segments are; what the others have is as old as their last round.

Above a limit the topic takes no messages, until enough was deleted or acknowledged. Where the backlog is evicted, the
oldest messages of a subscription count as acknowledged instead, as those past their time to live do: each broker evicts
its share of what is too much.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.broker.limits.present import nearest
from engine.broker.upkeep.rounds import Rounds
from engine.broker.upkeep.shown import Shown
from engine.errors import EngineError, LimitExceededError, NotFoundError, NotOwnerError, TimeoutError
from engine.metadata import keys
from engine.model.limits import levels_of

if TYPE_CHECKING:
    from engine.aio.tasks import Supervisor
    from engine.broker.hosting.open_segments import OpenSegments
    from engine.broker.hosting.open_subscriptions import OpenSubscriptions
    from engine.broker.limits.limits import BrokerLimits
    from engine.broker.segment.hosted import HostedSegment
    from engine.clock import Clock
    from engine.control.base.brokers import Brokers
    from engine.control.service import ScalableTopicService
    from engine.metadata.store import MetadataStore
    from engine.model.limits import Limit
    from engine.model.names import TopicName
    from engine.model.subscriptions import SubscriptionMetadata

log = logging.getLogger(__name__)

_SETTLING_ROUNDS = 4
_STORAGE, _BACKLOG = ("storage_bytes_max", "total_storage_bytes"), ("backlog_bytes_max", "backlog_age_s")
NAMES = (*_STORAGE, *_BACKLOG)
_AT_ONCE = 64  # topics between two turns of the loop
_STEPS = 64  # of a limit, by which all brokers together may have more or less than they have shown
_NEAR = 15 / 16  # of a limit, from where on each byte is shown


@dataclass(slots=True)
class Usage:
    """Of one broker, or of all. `stored`: bytes by resource. `backlog`: bytes by "topic\\nsubscription". `old`: topics
    with a message that is not acknowledged and older than the limit, as their resources.
    """

    stored: dict[str, int] = field(default_factory=dict)
    backlog: dict[str, int] = field(default_factory=dict)
    old: list[str] = field(default_factory=list)

    def add(self, other: Usage) -> None:
        """Another broker's."""
        for resource, size in other.stored.items():
            self.stored[resource] = self.stored.get(resource, 0) + size
        for name, size in other.backlog.items():
            self.backlog[name] = self.backlog.get(name, 0) + size
        self.old += other.old

    def by_group(self) -> dict[str, Usage]:
        """What is of each tenant, and of the cluster."""
        found: dict[str, Usage] = defaultdict(Usage)
        for resource, size in self.stored.items():
            found[keys.limit_group(resource)].stored[resource] = size
        for name, size in self.backlog.items():
            found[keys.limit_group(name.partition("\n")[0])].backlog[name] = size
        for resource in self.old:
            found[keys.limit_group(resource)].old.append(resource)
        return dict(found)

    def fullness(self, most: Mapping[str, int]) -> float:
        """Which part is used of the nearest limit. `most`: the limits, by the names of `stored` and `backlog`."""
        sizes = (*self.stored.items(), *self.backlog.items())
        return max([float(bool(self.old)), *(size / max(most[name], 1) for name, size in sizes if name in most)])


class QuotaLoop(Rounds):
    """One per broker, once there is such a limit. Loop thread only."""

    over, names = "what is stored", NAMES

    def __init__(
        self,
        service: ScalableTopicService,
        segments: OpenSegments,
        subscriptions: OpenSubscriptions,
        metadata: MetadataStore,
        limits: BrokerLimits,
        brokers: Brokers,
        clock: Clock,
        tasks: Supervisor,
    ) -> None:
        super().__init__(limits)
        self._service = service
        self._segments = segments
        self._subscriptions = subscriptions
        self._brokers = brokers
        self._clock = clock
        self._records = Shown(metadata, brokers, keys.USAGE, Usage, "what is stored here", tasks)
        self._mine: dict[str, Usage] = {}  # of the last round, by group
        self._whole = Usage()  # likewise, of all brokers
        self._most: dict[str, int] = {}  # the limits by which that is shown, by the names of a Usage
        self.rounds = 0
        self._evicted: dict[str, int] = {}  # the last round in which bytes of "topic\nsubscription" were

    async def check(self) -> None:
        """Measure, tell the others, and close or open topics to producers."""
        by_topic = self._by_topic()
        mine, self._most = Usage(), {}
        facts: dict[str, list[SubscriptionMetadata]] = {}
        for number, (topic, sizes) in enumerate(by_topic.items()):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            try:
                self._count_stored(mine, topic, sum(sizes.values()))
                limited = any(name in self._limits.of_topic(topic) for name in _BACKLOG)
            except TimeoutError as e:
                self._put_back(topic, e)
                continue
            if limited:
                try:
                    facts[levels_of(topic)[0]] = await self._measure_backlog(mine, topic)
                except (NotFoundError, NotOwnerError):
                    continue  # deleted, or another broker's meanwhile
                except EngineError as e:
                    log.warning("the backlog of %s is not known: %s", topic, e)
        whole = await self._share(mine)
        full: dict[TopicName, LimitExceededError] = {}
        for topic in by_topic:
            try:
                error = self._beyond(topic, whole)
            except TimeoutError as e:
                self._put_back(topic, e)
                error = self._limits.full.get(topic)
            if error is not None:
                full[topic] = error
        for topic in by_topic:
            if (known := facts.get(levels_of(topic)[0])) is not None:
                try:
                    if self._evicts(topic):
                        await self._evict(topic, known, mine, whole)
                except TimeoutError as e:
                    self._put_back(topic, e)
        self._limits.full_sums = self._full_sums(whole)
        self._apply(full)
        self.rounds += 1

    async def meet(self, group: str) -> None:
        """Close or open what has no topic here to producers, by what was measured last."""
        if self._brokers.alone:
            return
        whole = Usage()
        for one in await self._records.others_of(group):
            whole.add(one)
        whole.add(self._mine.get(group, Usage()))
        found = self._full_sums(whole, group)
        for limit in self._limits.sums("total_storage_bytes", group):
            if limit.origin in found:
                self._limits.full_sums[limit.origin] = found[limit.origin]
            else:
                self._limits.full_sums.pop(limit.origin, None)

    def _put_back(self, topic: TopicName, error: TimeoutError) -> None:
        """The next round looks at it again, and what is attached once its limits are known."""
        log.debug("what is stored of %s is not looked at: %s", topic, error)
        self._limits.change_again(topic.tenant)

    # -- measuring -------------------------------------------------------------------------------------------------

    def _by_topic(self) -> dict[TopicName, dict[int, int]]:
        """The bytes of each segment that this broker answers for, by topic, where its limits are known."""
        found: dict[TopicName, dict[int, int]] = {}
        for record in self._segments.inventory:
            if self._limits.knows(record.name.topic.tenant):
                found.setdefault(record.name.topic, {})[record.name.segment_id] = record.size_bytes
        for hosted in self._segments:
            found.setdefault(hosted.name.topic, {})[hosted.name.segment_id] = hosted.segment.size_bytes
        return found

    def _count_stored(self, mine: Usage, topic: TopicName, size: int) -> None:
        own = self._limits.of_topic(topic).get("storage_bytes_max")
        scopes = [] if own is None else [(levels_of(topic)[0], own.value)]
        scopes += [(limit.origin, limit.value) for limit in self._limits.totals(topic, "total_storage_bytes")]
        for scope, most in scopes:
            mine.stored[scope] = mine.stored.get(scope, 0) + size
            self._most[scope] = most

    async def _measure_backlog(self, mine: Usage, topic: TopicName) -> list[SubscriptionMetadata]:
        facts = list(await self._service.list_subscriptions(topic))
        limits, resource = self._limits.of_topic(topic), levels_of(topic)[0]
        limit, most = limits.get("backlog_age_s"), limits.get("backlog_bytes_max")
        for hosted in await self._opened(topic):
            old = 0
            if limit is not None:
                before = self._clock.time_ms() - limit.value * 1000
                old = min(await hosted.segment.offset_at(before), hosted.readable)
            for one in facts:
                found = await self._subscriptions.find(hosted, one.name)
                messages = hosted.messages if found is None else found.backlog
                key = f"{resource}\n{one.name}"
                mine.backlog[key] = mine.backlog.get(key, 0) + int(messages * _average(hosted))
                if most is not None:
                    self._most[key] = most.value
                behind = old > hosted.segment.first_offset if found is None else found.backlog_below(old) > 0
                if limit is not None and messages and behind and resource not in mine.old:
                    mine.old.append(resource)
        return facts

    async def _opened(self, topic: TopicName) -> list[HostedSegment]:
        """The topic's segments here, by id; closed ones that have a backlog are opened."""
        found = {hosted.name.segment_id: hosted for hosted in self._segments if hosted.name.topic == topic}
        for record in [record for record in self._segments.inventory if record.name.topic == topic]:
            if record.name.segment_id not in found and record.backlog:
                spec = await self._service.segment_spec(topic, record.name.segment_id)
                found[record.name.segment_id] = await self._segments.open(spec, create=False)
        return [found[segment_id] for segment_id in sorted(found)]

    # -- the whole -------------------------------------------------------------------------------------------------

    async def _share(self, mine: Usage) -> Usage:
        """Show the others what is here; what is there and here together."""
        self._mine = groups = mine.by_group()
        whole = Usage()
        whole.add(mine)
        if not self._brokers.alone:
            full = {group: usage.fullness(self._most) for group, usage in groups.items()}
            shown = nearest(full, self._records.said)
            await self._records.show({group: groups[group] for group in shown}, self._are_alike)
            for other in await self._records.others(self._limits.groups(NAMES)):
                whole.add(other)
        self._whole = whole
        return whole

    def _are_alike(self, mine: Usage, shown: Usage) -> bool:
        """Whether it need not be said again: it differs by less than a step of each limit, and none is near."""
        if set(mine.old) != set(shown.old):
            return False
        stored = self._is_alike(mine.stored, shown.stored, self._whole.stored)
        return stored and self._is_alike(mine.backlog, shown.backlog, self._whole.backlog)

    def _is_alike(self, mine: Mapping[str, int], shown: Mapping[str, int], whole: Mapping[str, int]) -> bool:
        if mine.keys() != shown.keys():
            return False
        steps = _STEPS * max(len(self._brokers.live), 1)
        for name, size in mine.items():
            most, said = self._most.get(name), shown[name]
            if most is None or size == said:
                continue  # without a limit of the bytes nothing goes by them
            if max(whole.get(name, 0), size, said) >= _NEAR * most or abs(size - said) * steps > most:
                return False
        return True

    def _beyond(self, topic: TopicName, whole: Usage) -> LimitExceededError | None:
        """Why the topic takes no messages; None: it does."""
        limits, resource = self._limits.of_topic(topic), levels_of(topic)[0]
        if (own := limits.get("storage_bytes_max")) is not None and whole.stored.get(resource, 0) >= own.value:
            asked = f"{whole.stored[resource]} bytes stored of {resource}"
            return LimitExceededError.of("storage_bytes_max", own.origin, own.value, asked)
        for limit in self._limits.totals(topic, "total_storage_bytes"):
            if (stored := whole.stored.get(limit.origin, 0)) >= limit.value:
                return _full_sum(limit, stored)
        if self._evicts(topic):
            return None
        if (size := limits.get("backlog_bytes_max")) is not None:
            for name, backlog in _backlogs(whole, resource):
                if backlog >= size.value:
                    asked = f"a backlog of {backlog} bytes of the subscription {name} of {resource}"
                    return LimitExceededError.of("backlog_bytes_max", size.origin, size.value, asked)
        if (age := limits.get("backlog_age_s")) is not None and resource in whole.old:
            return LimitExceededError.of("backlog_age_s", age.origin, age.value, f"an older backlog of {resource}")
        return None

    def _full_sums(self, whole: Usage, group: str | None = None) -> dict[str, LimitExceededError]:
        """The namespaces, tenants and the cluster that take no messages, also to topics that have none yet; or those of
        one group.
        """
        found = {}
        for limit in self._limits.sums("total_storage_bytes", group):
            if (stored := whole.stored.get(limit.origin, 0)) >= limit.value:
                found[limit.origin] = _full_sum(limit, stored)
        return found

    def _evicts(self, topic: TopicName) -> bool:
        action = self._limits.of_topic(topic).get("backlog_action")
        return action is not None and action.value == "evict"

    def _apply(self, full: dict[TopicName, LimitExceededError]) -> None:
        """Close producers of topics that are full; the others may attach again."""
        self._limits.full = full
        for hosted in self._segments:
            error = full.get(hosted.name.topic)
            if error is not None and hosted.producers:
                hosted.close_producers(LimitExceededError(str(error)))

    # -- eviction --------------------------------------------------------------------------------------------------

    async def _evict(self, topic: TopicName, facts: Iterable[SubscriptionMetadata], mine: Usage, whole: Usage) -> None:
        limits, resource = self._limits.of_topic(topic), levels_of(topic)[0]
        try:
            opened = await self._opened(topic)
            if (age := limits.get("backlog_age_s")) is not None and resource in mine.old:
                before = self._clock.time_ms() - age.value * 1000
                for hosted in opened:
                    end = min(await hosted.segment.offset_at(before), hosted.readable)
                    for one in facts:
                        await self._subscriptions.expire(hosted, one, end)
            if (size := limits.get("backlog_bytes_max")) is not None:
                for one in facts:
                    key = f"{resource}\n{one.name}"
                    here, all_of_it = mine.backlog.get(key, 0), whole.backlog.get(key, 0)
                    if all_of_it > size.value and here and self._may_evict(key):
                        await self._evict_bytes(opened, one, (all_of_it - size.value) * here // all_of_it)
        except (NotFoundError, NotOwnerError):
            return  # deleted, or another broker's meanwhile
        except EngineError as e:
            log.warning("the backlog of %s is not evicted: %s", topic, e)

    def _may_evict(self, key: str) -> bool:
        """Not again while the others may not have shown what they evicted."""
        last = self._evicted.get(key)
        if last is not None and self.rounds - last < _SETTLING_ROUNDS and not self._brokers.alone:
            return False
        self._evicted[key] = self.rounds
        return True

    async def _evict_bytes(self, opened: list[HostedSegment], facts: SubscriptionMetadata, size: int) -> None:
        """The oldest messages of so many bytes: first those of the segments with lower ids, which are older."""
        for hosted in opened:
            if size <= 0:
                return
            found = await self._subscriptions.open(hosted, facts.name, facts)
            average = max(_average(hosted), 1.0)
            messages = min(int(size / average) + 1, found.backlog)
            if messages:
                start = found.due_from(hosted.segment.first_offset)
                end = min(start + messages, hosted.readable)
                await self._subscriptions.expire(hosted, facts, end)
                size -= int(messages * average)


def _full_sum(limit: Limit, stored: int) -> LimitExceededError:
    return LimitExceededError.of("total_storage_bytes", limit.origin, limit.value, f"{stored} bytes stored")


def _average(hosted: HostedSegment) -> float:
    """The bytes of a message in the segment."""
    segment = hosted.segment
    stored = segment.durable_offset - segment.first_offset
    return segment.size_bytes / stored if stored > 0 else 0.0


def _backlogs(whole: Usage, resource: str) -> list[tuple[str, Any]]:
    """(subscription, bytes) of a topic."""
    start = f"{resource}\n"
    return [(name.removeprefix(start), size) for name, size in whole.backlog.items() if name.startswith(start)]
