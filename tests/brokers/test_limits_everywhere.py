"""Limits hold at all brokers of a directory: changes reach each of them, and what is stored is counted over all."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.broker.server import Broker
from engine.errors import LimitExceededError
from tests.brokers.test_identity import BROKERS, addresses, brokers
from tests.kit.peer import Peer, until

BIG = 50_000
RANDOM = random.Random(1)
TOPIC = "public/default/orders"


@pytest.fixture(autouse=True)
async def _ended() -> AsyncIterator[None]:
    yield
    await Peer.end_all()


def quotas(broker: Broker) -> Any:
    assert broker._limiting is not None
    return broker._limiting.quotas


async def everywhere(found: list[Broker], name: str) -> None:
    await until(lambda: all(b.memory.limits is not None and b.memory.limits.says([name]) for b in found))


async def test_a_limit_that_is_set_at_one_broker_holds_at_all_for_what_is_attached(tmp_path: Path) -> None:
    async with brokers(tmp_path / "data", 2, cluster_token=BROKERS) as found:
        await found[0].admin.create_topic("orders", segments=4)
        async with engine.AsyncClient(addresses(found, "engine")) as client:
            producer = await client.producer("orders")
            for i in range(30):
                await producer.send(b"x", key=f"key-{i}")
            assert all(any(c.producers for c in b.connections) for b in found)
            await found[0].admin.set_limits("public", {"publish_bytes_per_s": 1})
            for broker in found:
                await until(
                    lambda broker=broker: any(
                        p._limited is not None and p._limited._throttle is not None
                        for c in broker.connections
                        for p in c.producers.values()
                    )
                )
            await found[1].admin.remove_limits("public")
            for i in range(30):
                await producer.send(b"y", key=f"key-{i}")


async def test_what_is_stored_is_counted_over_all_brokers(tmp_path: Path) -> None:
    async with brokers(tmp_path / "data", 2, cluster_token=BROKERS) as found:
        await found[0].admin.create_topic("orders", segments=4)
        async with engine.AsyncClient(addresses(found, "engine")) as client:
            producer = await client.producer("orders")
            for i in range(30):
                await producer.send(RANDOM.randbytes(BIG), key=f"key-{i}")
            here = [sum(h.segment.size_bytes for h in b.segments) for b in found]
            assert all(here)
            # None of the brokers has as much alone.
            await found[0].admin.set_limits(TOPIC, {"storage_bytes_max": max(here) + min(here) // 2})
            await everywhere(found, "storage_bytes_max")
            await until(lambda: all(b.memory.limits is not None and b.memory.limits.full for b in found))
            with pytest.raises(LimitExceededError, match="storage_bytes_max of public/default/orders must be at most"):
                await producer.send(b"x", key="key-1")
            await found[1].admin.remove_limits(TOPIC)
            await until(lambda: not any(b.memory.limits.full for b in found if b.memory.limits is not None))
            await producer.send(b"x", key="key-1")


async def test_an_evicted_backlog_is_not_evicted_by_each_broker_once_more(tmp_path: Path) -> None:
    async with brokers(tmp_path / "data", 2, cluster_token=BROKERS) as found:
        await found[0].admin.create_topic("orders", segments=4)
        await found[0].admin.create_subscription("orders", "slow", initial_position="earliest")
        async with engine.AsyncClient(addresses(found, "engine")) as client:
            producer = await client.producer("orders")
            for i in range(40):
                await producer.send(RANDOM.randbytes(BIG), key=f"key-{i}")

        async def backlog() -> int:
            return int((await found[0].service.get_stats("orders"))["subscriptions"]["slow"]["backlog"])

        assert await backlog() == 40
        limits = {"backlog_bytes_max": 20 * BIG, "backlog_action": "evict"}
        await found[0].admin.set_limits(TOPIC, limits)
        await everywhere(found, "backlog_bytes_max")
        rounds = [quotas(b).rounds for b in found]
        await until(lambda: all(quotas(b).rounds >= n + 6 for b, n in zip(found, rounds, strict=True)))
        assert 12 <= await backlog() <= 20
