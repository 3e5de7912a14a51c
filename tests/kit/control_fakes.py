"""What control's tests stand on: a segment host in memory, channels and listeners that remember, a broker's service."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from engine.clock import Clock
from engine.control.base.config import ControlConfig
from engine.control.base.ports import (
    HostedSegmentStatistics,
    SegmentEnd,
    SegmentSpec,
    SubscriptionStatistics,
    TopicView,
)
from engine.control.base.topic_records import INDEX_TOPICS, index_key
from engine.control.service import ScalableTopicService
from engine.errors import AuthorizationError, EngineError, FencedError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import Stat
from engine.model.layout import SegmentLayout
from engine.model.names import SegmentName, TopicName
from engine.model.subscriptions import ConsumerAssignment, InitialPosition
from engine.testing.clock import LoopClock
from engine.testing.loop import run_virtual
from engine.testing.metadata import FaultyMetadataStore

TOPIC = TopicName.parse("orders")


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a loop of virtual time, which fixtures do not have. It gets what it names of these:

    * `brokers`: none of them started;
    * `service`: what `await brokers.start("a")` gives.
    """
    signature = inspect.signature(test)
    others = [p for p in signature.parameters.values() if p.name not in ("brokers", "service")]

    async def body(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(others) < len(signature.parameters):
            brokers = Brokers()
            if "service" in signature.parameters:
                kwargs["service"] = await brokers.start("a")
            if "brokers" in signature.parameters:
                kwargs["brokers"] = brokers
        await test(*args, **kwargs)

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtual(body(args, kwargs), 100_000.0)

    run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    return run


Hook = Callable[[], Coroutine[Any, Any, None]]


class FakeHost:
    """Segments as dictionaries, shared by all brokers of a test. `fail` makes the next calls of a method raise.

    `before` and `after` run around what a method does; what they raise, it raises.
    """

    def __init__(self, metadata: MemoryMetadataStore | None = None) -> None:
        self.stores: dict[int, bool] = {}  # segment id -> sealed
        self.inherited: dict[int, list[bytes]] = {}
        self.cursors: dict[int, dict[str, InitialPosition | int]] = {}
        self.backlogs: dict[tuple[int, str], int] = {}
        self.waiting: dict[tuple[int, str], list[Callable[[], None]]] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.deleted: set[str] = set()
        self.leftovers: list[SegmentName] = []  # stores that no layout names
        self.failures: dict[str, EngineError] = {}
        self.before: dict[str, Hook] = {}
        self.after: dict[str, Hook] = {}
        self.times: dict[int, list[int]] = {}  # segment id -> publish times
        self.terms: dict[TopicName, int] = {}
        self._metadata = metadata

    def _call(self, method: str, *args: Any, term: int | None = None, topic: TopicName = TOPIC) -> None:
        self.calls.append((method, *args))
        seen = self.terms.get(topic, 0)
        if term is not None and term < seen:
            raise FencedError(f"term {term} is older than {seen}")
        self.terms[topic] = max(seen, term or 0)
        if method in self.failures:
            raise self.failures[method]

    @asynccontextmanager
    async def _asked(self, method: str, spec: SegmentSpec, term: int | None = None, *args: Any) -> AsyncIterator[int]:
        """The segment's id. A host refuses a broker that is not the leader by the store, or was replaced."""
        if (hook := self.before.get(method)) is not None:
            await hook()
        leader = None if self._metadata is None else await self._metadata.get(keys.controller(spec.name.topic))
        if term is not None and leader is not None and leader.stat.version != term:
            raise FencedError(f"term {term} is not that of the leader, {leader.stat.version}")
        self._call(method, spec.name.segment_id, *args, term=term, topic=spec.name.topic)
        yield spec.name.segment_id
        if (hook := self.after.get(method)) is not None:
            await hook()

    async def create_segment(self, spec: SegmentSpec, subscriptions: Sequence[str], *, term: int) -> None:
        async with self._asked("create_segment", spec, term) as segment_id:
            self.stores.setdefault(segment_id, False)
            self.cursors[segment_id] = dict.fromkeys(subscriptions, InitialPosition.EARLIEST)

    async def terminate_segment(self, spec: SegmentSpec, *, term: int) -> SegmentEnd:
        async with self._asked("terminate_segment", spec, term) as segment_id:
            self.stores[segment_id] = True
        return SegmentEnd(0, b"known to %d" % segment_id)

    async def inherit(self, spec: SegmentSpec, producers: Sequence[bytes], *, term: int) -> None:
        async with self._asked("inherit", spec, term) as segment_id:
            self.inherited[segment_id] = list(producers)

    async def delete_segment(self, spec: SegmentSpec, *, term: int) -> None:
        async with self._asked("delete_segment", spec, term) as segment_id:
            self.deleted.add(str(spec.name))
            self.stores.pop(segment_id, None)
            self.cursors.pop(segment_id, None)

    async def stored(self, topic: TopicName) -> list[SegmentName]:
        return list(self.leftovers)

    async def subscriptions(self, spec: SegmentSpec) -> list[str]:
        async with self._asked("subscriptions", spec) as segment_id:
            return sorted(self.cursors.get(segment_id, {}))

    async def create_subscription(
        self, spec: SegmentSpec, subscription: str, position: InitialPosition, *, term: int
    ) -> None:
        await asyncio.sleep(0)
        async with self._asked("create_subscription", spec, term, subscription) as segment_id:
            self.stores.setdefault(segment_id, False)
            self.cursors.setdefault(segment_id, {}).setdefault(subscription, position)

    async def delete_subscription(self, spec: SegmentSpec, subscription: str, *, term: int) -> None:
        async with self._asked("delete_subscription", spec, term, subscription) as segment_id:
            self.cursors.get(segment_id, {}).pop(subscription, None)

    async def seek_subscription(self, spec: SegmentSpec, subscription: str, offset: int | InitialPosition) -> None:
        self._call("seek_subscription", spec.name.segment_id, subscription, offset)
        self.cursors.setdefault(spec.name.segment_id, {})[subscription] = offset

    async def offset_at(self, spec: SegmentSpec, time_ms: int) -> int:
        return sum(t < time_ms for t in self.times.get(spec.name.segment_id, ()))

    async def backlog(self, spec: SegmentSpec, subscription: str) -> int:
        if "backlog" in self.failures:
            raise self.failures["backlog"]
        return self.backlogs.get((spec.name.segment_id, subscription), 0)

    def watch_drained(self, spec: SegmentSpec, subscription: str, drained: Callable[[], None]) -> Callable[[], None]:
        key = (spec.name.segment_id, subscription)
        if "watch_drained" in self.failures:
            raise self.failures["watch_drained"]
        self.waiting.setdefault(key, []).append(drained)
        if not self.backlogs.get(key, 0):
            asyncio.get_running_loop().call_soon(self._fire, key, drained)
        return lambda: self._cancel(key, drained)

    def _cancel(self, key: tuple[int, str], drained: Callable[[], None]) -> None:
        if drained in self.waiting.get(key, []):
            self.waiting[key].remove(drained)

    def _fire(self, key: tuple[int, str], drained: Callable[[], None]) -> None:
        if drained in self.waiting.get(key, []) and not self.backlogs.get(key, 0):
            self.waiting[key].remove(drained)
            drained()

    def acknowledge_all(self, segment_id: int, subscription: str) -> None:
        """The backlog is gone."""
        key = (segment_id, subscription)
        self.backlogs[key] = 0
        for drained in list(self.waiting.get(key, [])):
            self._fire(key, drained)

    async def statistics(self, spec: SegmentSpec) -> HostedSegmentStatistics:
        segment_id = spec.name.segment_id
        subscriptions = {
            name: SubscriptionStatistics(backlog=self.backlogs.get((segment_id, name), 0), msg_rate_out=1.0)
            for name in self.cursors.get(segment_id, {})
        }
        return HostedSegmentStatistics(next_offset=10, size_bytes=100, msg_rate_in=2.0, subscriptions=subscriptions)

    async def segment_urls(self, names: Sequence[SegmentName]) -> list[str]:
        return ["engine://owner:6650"] * len(names)


class Channel:
    """A consumer that remembers what it was told."""

    def __init__(self, role: str = "") -> None:
        self.role = role
        self.pushed: list[ConsumerAssignment] = []
        self.closed: list[EngineError] = []

    def denial(self, reason: str) -> EngineError:
        return AuthorizationError(reason)

    def push_assignment(self, assignment: ConsumerAssignment) -> None:
        assert not self.closed
        self.pushed.append(assignment)

    def close(self, error: EngineError) -> None:
        assert not self.closed
        self.closed.append(error)


class Listener:
    """A watching client that remembers what it was told."""

    def __init__(self) -> None:
        self.views: list[TopicView] = []
        self.deleted = 0

    def topic_changed(self, view: TopicView) -> None:
        assert not self.deleted
        self.views.append(view)

    def topic_deleted(self) -> None:
        self.deleted += 1
        assert self.deleted == 1


class ScriptedStore(FaultyMetadataStore):
    """`before` and `after` run around every write of the topic's record; what they raise, it raises."""

    before: Hook | None = None
    after: Hook | None = None

    async def put(self, key: str, *args: Any, **kwargs: Any) -> Stat:
        mine = key == keys.topic(TOPIC)
        if mine and self.before is not None:
            await self.before()
        stat = await super().put(key, *args, **kwargs)
        if mine and self.after is not None:
            await self.after()
        return stat


class Brokers:
    """Several brokers' control planes on one metadata store and one segment host."""

    def __init__(self, **config: Any) -> None:
        self.clock: Clock = LoopClock(asyncio.get_running_loop())
        self.store = MemoryMetadataStore(self.clock)
        self.host = FakeHost(self.store)
        self.stores: dict[str, ScriptedStore] = {}
        self.config = ControlConfig(**config)
        self.handles: dict[str, MemoryMetadataStore] = {}
        # How the metadata store of brokers started from now on behaves.
        self.rng = random.Random(0)
        self.delay_s_max = 0.0
        self.unknown_rate = 0.0
        self.scripted = False  # whether `stores` are used

    async def start(self, name: str, **config: Any) -> ScalableTopicService:
        """A broker called `engine://{name}`."""
        handle = self.handles[name] = self.store.client()
        faulty = self.stores[name] = ScriptedStore(handle, self.rng)
        faulty.delay_s_max, faulty.unknown_rate = self.delay_s_max, self.unknown_rate
        service = ScalableTopicService(
            faulty if self.delay_s_max or self.unknown_rate or self.scripted else handle,
            self.host,
            clock=self.clock,
            broker_url=f"engine://{name}",
            config=ControlConfig(**config) if config else self.config,
        )
        await service.start()
        return service

    async def kill(self, name: str) -> None:
        """The broker stops in mid-air, and the store notices."""
        self.handles[name].abandon()
        await asyncio.sleep(31.0)


def ids(assignment: ConsumerAssignment) -> list[int]:
    """The segment ids of a share."""
    return [s.segment_id for s in assignment.segments]


def deafen(service: ScalableTopicService) -> None:
    """It hears of nothing that others write from now on, as a broker that was stopped."""
    watches: Any = service._watches
    watches._topic_seen = watches._leader_seen = lambda *_: None


async def settle() -> None:
    """Let everything that is ready run."""
    for _ in range(50):
        await asyncio.sleep(0)


async def subscribe(service: ScalableTopicService, name: str, channel: Channel | None = None, **more: Any) -> list[int]:
    """Register a stream consumer of subscription "sub"; its share."""
    registered = service.register_consumer("orders", "sub", name, instance=name, channel=channel or Channel(), **more)
    return ids(await registered)


async def reshape(brokers: Brokers, layout: SegmentLayout) -> None:
    """What a split on some broker leaves in the store."""
    record = await brokers.store.get(keys.topic(TOPIC))
    assert record is not None
    indexes = {INDEX_TOPICS: index_key(TOPIC)}
    await brokers.store.put(keys.topic(TOPIC), layout.to_json(), record.stat.version, indexes=indexes)
