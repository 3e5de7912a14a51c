"""What a broker shows the others of itself: of which groups, and when it writes that again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.aio.tasks import Supervisor
from engine.broker.limits import present
from engine.broker.limits.limits import BrokerLimits
from engine.broker.limits.present import nearest
from engine.broker.upkeep.quotas import QuotaLoop, Usage
from engine.clock import SystemClock
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import Event, EventKind
from engine.model.hashrange import HashRange
from engine.model.limits import Limits
from engine.model.names import SegmentName, TopicName
from tests.broker.test_rate_shares import Member
from tests.kit.peer import until

LIMIT = 64_000
STEP = LIMIT // 128  # of a limit between two brokers


class Segments(list[Any]):
    """The segments of a broker, all of them open, by topic."""

    inventory = ()

    def set(self, topic: TopicName, size: int) -> None:
        self[:] = [one for one in self if one.name.topic != topic]
        segment = SimpleNamespace(size_bytes=size)
        self.append(SimpleNamespace(name=SegmentName(topic, HashRange(0, 0xFFFF), 0), segment=segment, producers=()))


class World:
    """A broker of two that stores something of tenants with a limit."""

    def __init__(self, told: set[str]) -> None:
        self.store = MemoryMetadataStore(SystemClock())
        self.member = Member(self.store)
        cast(Any, self.member).live = {"engine://b1:6650": None, "engine://b2:6650": None}
        self.limits = BrokerLimits(lambda _: None, told)
        self.segments = Segments()
        self.tasks = Supervisor("test")
        service, member = cast(Any, None), cast(Any, self.member)
        self.loop = QuotaLoop(
            service, cast(Any, self.segments), service, self.store, self.limits, member, SystemClock(), self.tasks
        )

    def limit(self, tenant: str, size: int = LIMIT) -> None:
        self.limits.note(keys.limits(tenant), Limits(total_storage_bytes=size).to_json())
        self.limits.settle()

    def key(self, tenant: str) -> str:
        return keys.shown(keys.USAGE, tenant, self.member.url)

    async def version(self, tenant: str, size: int) -> int | None:
        """Of the record, after a round in which so much is stored."""
        self.segments.set(TopicName(tenant, "ns", "t"), size)
        await self.loop.check()
        record = await self.store.get(self.key(tenant))
        return None if record is None else record.stat.version

    async def close(self) -> None:
        await self.tasks.close()
        await self.store.close()


async def test_what_is_stored_is_written_again_when_it_has_changed_by_a_step_or_is_near_the_limit() -> None:
    world = World({"a"})
    world.limit("a")
    first = await world.version("a", 1_000)
    assert first is not None
    for size in (1_001, 1_000 + STEP, 1_000 - STEP):
        assert await world.version("a", size) == first
    second = await world.version("a", 1_001 + STEP)
    assert second != first
    near = LIMIT * 15 // 16
    versions = [await world.version("a", size) for size in (near, near + 1, LIMIT, LIMIT + 1, near - 1)]
    assert len({second, *versions}) == 6
    assert await world.version("a", near - 2) == versions[-1]
    await world.close()


async def test_it_is_written_exactly_when_all_brokers_together_are_near_the_limit() -> None:
    world = World({"a"})
    world.limit("a")
    other = keys.shown(keys.USAGE, "a", "engine://b2:6650")
    first = await world.version("a", 1_000)
    await world.store.put(other, b'{"stored":{"a":63000},"backlog":{},"old":[]}')
    await until(lambda: any(world.loop._records._of("a")))
    await world.version("a", 1_000)
    assert await world.version("a", 1_001) != first
    assert TopicName("a", "ns", "t") in world.limits.full
    await world.close()


async def test_a_record_that_another_one_has_deleted_is_written_again() -> None:
    world = World({"a"})
    world.limit("a")
    first = await world.version("a", 1_000)
    assert first is not None
    await world.store.delete(world.key("a"))
    await until(lambda: world.loop._records._said["a"] is None)
    again = await world.version("a", 1_000)
    assert again is not None
    assert again != first
    for _ in range(10):
        await asyncio.sleep(0)
    assert await world.version("a", 1_000) == again
    await world.close()


async def test_a_record_is_deleted_also_where_an_older_deletion_is_heard_behind_its_write() -> None:
    world = World({"a"})
    world.limit("a")
    assert await world.version("a", 1_000) is not None
    world.loop._records._heard(Event(EventKind.DELETE, world.key("a"), 1))
    world.segments.clear()
    await world.loop.check()
    assert await world.store.get(world.key("a")) is None
    await world.close()


async def test_a_tenant_that_is_not_known_does_not_end_a_round() -> None:
    told = {"a", "b"}
    world = World(told)
    for tenant in ("a", "b"):
        world.limit(tenant)
        world.segments.set(TopicName(tenant, "ns", "t"), 2 * LIMIT)
    await world.loop.check()
    assert world.limits.full.keys() == {TopicName("a", "ns", "t"), TopicName("b", "ns", "t")}
    told.discard("a")
    world.limits.forget(["a"])
    assert await world.version("b", 0) is not None
    assert world.limits.full.keys() == {TopicName("a", "ns", "t")}, "it takes no more messages than before"
    await world.close()


async def test_which_tenants_are_shown_goes_by_how_near_they_are_to_their_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(present, "GROUPS_SHOWN_MAX", 3)
    tenants = [f"big-{i}" for i in range(5)]
    world = World({"*", "small", *tenants})
    for tenant in tenants:
        world.limit(tenant, 1 << 50)
        world.segments.set(TopicName(tenant, "ns", "t"), 1 << 40)
    world.limit("small", 100)
    world.limit("*", 1 << 53)
    assert await world.version("small", 90) is not None
    shown = await world.store.list_keys(keys.USAGE, keys.prefix_end(keys.USAGE))
    groups = {keys.shown_of(key)[0] for key in shown}
    assert {"*", "small"} < groups
    assert len(groups) == 3
    await world.close()


def test_one_that_is_shown_stays_unless_another_one_is_clearly_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(present, "GROUPS_SHOWN_MAX", 2)
    assert set(nearest({"*": 0.0, "a": 0.5, "b": 0.6})) == {"*", "b"}
    assert set(nearest({"*": 0.0, "a": 0.5, "b": 0.6}, {"a"})) == {"*", "a"}
    assert set(nearest({"*": 0.0, "a": 0.5, "b": 0.7}, {"a"})) == {"*", "b"}


def test_how_full_is_that_of_the_nearest_limit() -> None:
    usage = Usage({"a": 50, "a/ns": 10}, {"a/ns/t\ns": 5})
    assert usage.fullness({"a": 100, "a/ns": 100}) == 0.5
    assert usage.fullness({"a": 100, "a/ns/t\ns": 5}) == 1.0
    assert usage.fullness({}) == 0.0
    assert usage.fullness({"a": 0}) == 50.0
    assert Usage(old=["a/ns/t"]).fullness({}) == 1.0


async def test_a_role_whose_transactions_have_timed_out_is_not_here() -> None:
    limits = BrokerLimits(lambda _: None, {"role:ann", "role:bob"})
    limits.note(keys.limits("role:*"), Limits(open_transactions_max=5).to_json())
    limits.settle()
    limits.transaction_begun("ann", 1, 0.0)
    limits.transaction_begun("bob", 2, 60.0)
    assert set(limits.here()) == {"role:bob"}
    assert limits._open_transactions.keys() == {"bob"}
