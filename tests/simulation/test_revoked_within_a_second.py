"""What is taken away ends within a second at every broker: by the clock of a simulation, where a second is a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.broker.rights.token_file import line_of
from engine.client.client import AsyncClient
from engine.errors import AuthenticationError, AuthorizationError, EngineError
from engine.testing.cluster import DEFAULT_CONFIG, SimCluster, simulate

WITHIN_S = 1.0
MOMENTS = (0.0, 0.13, 0.49, 0.51, 0.99)  # behind what has come before, as brokers look at files now and then
ANN, BOB = "token-of-ann", "token-of-bob"
TOPIC = "topic://public/default/orders"


def attached(cluster: SimCluster, role: str) -> list[tuple[int, int]]:
    """At each broker: producers and consumers of the role."""
    found = []
    for one in cluster.brokers.values():
        assert one.broker is not None
        own = [c for c in one.broker.connections if c.role == role]
        found.append((sum(len(c.producers) for c in own), sum(len(c.consumers) for c in own)))
    return found


async def passed_until(cluster: SimCluster, condition: Callable[[], bool]) -> float:
    """Seconds, to a hundredth."""
    start = cluster.loop.time()
    while not condition():
        assert cluster.loop.time() - start < 10
        await asyncio.sleep(0.01)
    return cluster.loop.time() - start


async def at_work(cluster: SimCluster, client: AsyncClient, role: str) -> tuple[asyncio.Task[None], asyncio.Task[None]]:
    """A producer and a consumer that go on at both brokers until they may not."""
    producer = await client.producer(TOPIC)
    consumer = await client.queue_consumer(TOPIC, f"of-{role}", initial_position="earliest")

    async def produce() -> None:
        for number in range(1_000_000):
            await producer.send(b"x", key=f"key-{number % 50}")
            await asyncio.sleep(0.01)

    async def consume() -> None:
        while True:
            await consumer.receive()

    tasks = asyncio.create_task(produce()), asyncio.create_task(consume())
    await passed_until(cluster, lambda: all(p and c for p, c in attached(cluster, role)))
    return tasks


async def two_brokers(cluster: SimCluster) -> None:
    for name in ("b1", "b2"):
        await cluster.start(name)
    admin = cluster.brokers["b1"].broker.admin  # type: ignore[union-attr]
    await admin.create_topic(TOPIC, segments=8)
    for role in ("ann", "bob"):
        await admin.grant("public", role, ["produce", "consume"])


def config_of(tmp_path: Path):
    roles = tmp_path / "roles"
    roles.write_text(line_of("ann", ANN) + "\n" + line_of("bob", BOB) + "\n")
    return replace(DEFAULT_CONFIG, roles_file=str(roles), cluster_token="of-brokers", segments=8)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("by", ["b1", "b2"])
def test_a_grant(tmp_path: Path, moment: float, by: str) -> None:
    """Whichever broker takes it away: the other one hears of it from the metadata store."""

    async def scenario(cluster: SimCluster) -> None:
        await two_brokers(cluster)
        ann, bob = (cluster.client(name, token=token) for name, token in (("c1", ANN), ("c2", BOB)))
        tasks, others = await at_work(cluster, ann, "ann"), await at_work(cluster, bob, "bob")
        await asyncio.sleep(moment)
        before = attached(cluster, "bob")
        start = cluster.loop.time()
        await cluster.brokers[by].broker.admin.revoke("public", "ann")  # type: ignore[union-attr]
        await passed_until(cluster, lambda: not any(p or c for p, c in attached(cluster, "ann")))
        for task in tasks:
            with pytest.raises(AuthorizationError):
                await task
        assert cluster.loop.time() - start <= WITHIN_S
        assert attached(cluster, "bob") == before
        for task in others:
            assert not task.done()
            task.cancel()

    simulate(f"{moment} {by}", scenario, config=config_of(tmp_path), served=True)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_token(tmp_path: Path, moment: float) -> None:
    config = config_of(tmp_path)

    async def scenario(cluster: SimCluster) -> None:
        await two_brokers(cluster)
        ann, bob = (cluster.client(name, token=token) for name, token in (("c1", ANN), ("c2", BOB)))
        tasks, others = await at_work(cluster, ann, "ann"), await at_work(cluster, bob, "bob")
        await asyncio.sleep(moment)
        without = tmp_path / "without"
        without.write_text(line_of("bob", BOB) + "\n")
        without.replace(tmp_path / "roles")
        assert await passed_until(cluster, lambda: not any(p or c for p, c in attached(cluster, "ann"))) <= WITHIN_S
        for task in tasks:
            with pytest.raises(EngineError) as ended:
                await task
            assert isinstance(ended.value, AuthenticationError | AuthorizationError)
        for task in others:
            assert not task.done()
            task.cancel()

    simulate(f"token {moment}", scenario, config=config, served=True)
