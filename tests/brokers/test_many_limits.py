"""However many tenants and roles have limits, a new one costs the same, and so many are asked for at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.broker.admin import dynamic
from engine.broker.limiting import Limiting
from engine.broker.limits.debts import Debts
from engine.broker.limits.limits import BrokerLimits
from engine.broker.segment.producer import Producer
from engine.broker.server import Broker
from engine.control.base.brokers import BrokerRecord
from engine.control.base.ports import SegmentSpec
from engine.metadata import keys
from engine.metadata.following import Choice
from engine.metadata.memory import MemoryMetadataStore
from engine.model.hashrange import HashRange
from engine.model.limits import Limits
from engine.model.names import TopicName
from tests.brokers.test_followed_limits import TOPIC, Gate, followed, known, limits_of, one_of_several
from tests.kit.peer import Peer, until

AT_ONCE = 32


@pytest.fixture(autouse=True)
async def _ended() -> AsyncIterator[None]:
    yield
    await Peer.end_all()


async def register_another(broker: Broker, store: MemoryMetadataStore) -> None:
    session = await store.session(600)
    url = "engine://127.0.0.1:1"
    record = BrokerRecord(url, None, session.id, draining=True)
    await store.put(keys.broker(url), record.to_json(), session=session)
    await until(lambda: not broker.parts.members.brokers.alone)


def counted(monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, calls: list[str]) -> None:
    original = getattr(kind, name)

    def count(self: Any, *args: Any) -> Any:
        calls.append(name)
        return original(self, *args)

    monkeypatch.setattr(kind, name, count)


@pytest.mark.parametrize("own", [False, True])
async def test_the_thousandth_tenant_costs_as_much_as_the_tenth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    monkeypatch.setattr(dynamic, "IDLE_MAX", 10_000)
    async with one_of_several(tmp_path) as (broker, store):
        await register_another(broker, store)
        said = Limits(producers_max=9, storage_bytes_max=1 << 40, publish_bytes_per_s=10**9)
        await store.put(keys.limits("*"), said.to_json())
        for i in range(1_000 if own else 0):
            await store.put(keys.limits(f"t{i}"), Limits(total_producers=9).to_json())
        await until(lambda: known(broker))
        async with engine.AsyncClient(broker.service_url) as client, await client.producer(str(TOPIC)) as producer:
            await producer.send(b"x")
            looked: list[str] = []
            counted(monkeypatch, BrokerLimits, "_is_limited", looked)
            counted(monkeypatch, Limiting, "_limit", looked)
            counted(monkeypatch, Choice, "shown", looked)
            counted(monkeypatch, Debts, "change", looked)
            costs = []
            for i in range(1_000):
                before = len(looked)
                await followed(broker).ready(f"t{i}")
                costs.append(len(looked) - before)
            assert "_is_limited" in looked
            assert not {"_limit", "change"} & set(looked), "what is attached, or owes, is of others"
            # A round that goes on meanwhile awaits what is new as well.
            assert abs(costs[999] - costs[9]) <= 3
            assert max(costs) <= 16
            assert len(limits_of(broker).groups(("producers_max",))) == 1_002


async def test_so_many_are_asked_for_at_a_time_and_first_what_is_waited_for(tmp_path: Path) -> None:
    async with one_of_several(tmp_path) as (broker, _):
        gate = Gate(broker.metadata)
        for i in range(200):
            followed(broker).follow(f"hinted-{i}")
        waiting = [asyncio.ensure_future(followed(broker).ready(f"wanted-{i}")) for i in range(5)]
        waiting.append(asyncio.ensure_future(followed(broker).ready("hinted-199")))
        for _ in range(100):
            await asyncio.sleep(0)
        assert gate.waiting == 2 * AT_ONCE
        gate.open.set()
        await asyncio.gather(*waiting)
        await until(lambda: all(f"hinted-{i}" in followed(broker).told for i in range(200)))
        order = [key for key in gate.begun if not key.endswith(keys.BELOW)]
        first = [*(f"hinted-{i}" for i in range(AT_ONCE)), *(f"wanted-{i}" for i in range(5)), "hinted-199"]
        rest = [f"hinted-{i}" for i in range(AT_ONCE, 199)]
        assert [keys.limited(key) for key in order] == [*first, *rest]


async def test_segments_that_wait_for_limits_count_as_being_opened(tmp_path: Path) -> None:
    async with one_of_several(tmp_path, topic_loads_max=3) as (broker, _):
        gate = Gate(broker.metadata)
        names = [TopicName(f"t{i}", "ns", "t").segment(HashRange(0, 0xFFFF), 0) for i in range(10)]
        specs = [SegmentSpec(name, "fsync", (0xFFFF,)) for name in names]
        attempts = [asyncio.ensure_future(broker.segments.open_existing(spec)) for spec in specs]
        for _ in range(100):
            await asyncio.sleep(0)
        assert gate.waiting == 2 * 3
        gate.open.set()
        assert await asyncio.gather(*attempts) == [None] * 10, "there is no such segment"


async def test_no_role_waits_for_itself_where_all_that_are_asked_for_are_roles(tmp_path: Path) -> None:
    async with one_of_several(tmp_path) as (broker, _):
        await asyncio.gather(*(followed(broker).ready(f"role:r{i}") for i in range(3 * AT_ONCE)))
        assert {f"role:r{i}" for i in range(3 * AT_ONCE)} <= followed(broker).told.keys()


async def test_what_is_asked_for_ends_with_the_broker(tmp_path: Path) -> None:
    async with one_of_several(tmp_path) as (broker, _):
        Gate(broker.metadata)
        asked = [asyncio.ensure_future(followed(broker).ready(f"t{i}")) for i in range(3 * AT_ONCE)]
        for _ in range(10):
            await asyncio.sleep(0)
    for one in asked:
        with pytest.raises(engine.AlreadyClosedError):
            await one


async def test_so_many_watches_of_what_others_show_begin_at_a_time(tmp_path: Path) -> None:
    async with one_of_several(tmp_path) as (broker, store):
        await register_another(broker, store)
        await asyncio.gather(*(followed(broker).ready(f"t{i}") for i in range(100)))
        gate = Gate(broker.metadata, keys.PRESENT)
        await store.put(keys.limits("*"), Limits(producers_max=9).to_json())
        await until(lambda: gate.waiting == AT_ONCE)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(gate.begun) == AT_ONCE
        gate.open.set()
        await until(lambda: len(gate.begun) == 101)


async def test_what_is_used_all_the_time_is_not_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic, "IDLE_MAX", 3)
    monkeypatch.setattr(dynamic, "_LOOK_EACH", 1)
    async with one_of_several(tmp_path) as (broker, _):
        await followed(broker).ready("role:steady")
        for i in range(20):
            assert followed(broker).is_ready("role:steady"), "as a handshake asks"
            await followed(broker).ready(f"role:r{i}")


async def test_what_is_of_a_group_that_is_not_known_follows_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    went_by: list[str] = []
    original = Producer.limit

    def limit(self: Producer, limits: Any) -> None:
        original(self, limits)
        went_by.append(self.hosted.name.topic.tenant)

    monkeypatch.setattr(Producer, "limit", limit)
    async with (
        one_of_several(tmp_path) as (broker, store),
        engine.AsyncClient(broker.service_url) as client,
        await client.producer(str(TOPIC)) as first,
        await client.producer("topic://b/ns/t") as second,
    ):
        for producer in (first, second):
            await producer.send(b"x")
        del followed(broker).told["a"]
        await store.put(keys.limits("*"), Limits(publish_bytes_per_s=10**9).to_json())
        await until(lambda: "b" in went_by)
        assert "a" not in went_by
        followed(broker).told["a"] = None
        limits_of(broker).known("a")
        await until(lambda: "a" in went_by)
