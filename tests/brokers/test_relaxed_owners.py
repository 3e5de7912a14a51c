"""Owners of segments in a relaxed mode come and go: what is sent after each change reaches every reader (D4, L1)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.model.positions import Checkpoint
from engine.testing.cluster import SimCluster, simulate

NAMES = ("b1", "b2", "b3")
TOPIC = "orders"
COUNT = 24
ENDS = ("kill", "power_cut", "suspend")


async def gather(kind: str, consumers: list[Any], wanted: set[bytes]) -> None:
    """All of these come, acknowledged where that can be done, and nothing else."""
    missing, turn = set(wanted), 0
    while missing:
        assert turn < 600, f"{kind}: {len(missing)} of {len(wanted)} did not come"
        consumer = consumers[turn % len(consumers)]
        turn += 1
        batch = await consumer.receive_batch(timeout=1.0)
        assert set(batch.values) <= wanted, kind
        missing -= set(batch.values)
        if len(batch) and kind == "queue":
            await consumer.acknowledge(batch)
        elif len(batch) and kind != "checkpoint":
            await consumer.acknowledge_cumulative(batch)


async def revive(stopped: list[Any]) -> None:
    while stopped:
        other = stopped.pop()
        other.resume() if other.running else await other.start()


async def strike(cluster: SimCluster, rng: random.Random, stopped: list[Any]) -> None:
    """End the owner of most of it, some way, when those that were stopped before are back."""
    await revive(stopped)
    victim = max(cluster.brokers.values(), key=lambda b: len(b.broker.segments))
    how = rng.choice(ENDS)
    getattr(victim, how)() if how == "suspend" else await getattr(victim, how)()
    stopped.append(victim)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ["interval", "os"])
def test_d4_what_is_sent_after_an_owner_has_gone_reaches_every_reader(mode: str, seed: int) -> None:
    run(mode, seed, 4)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(100, 200))
@pytest.mark.parametrize("mode", ["interval", "os"])
def test_fuzz_what_is_sent_after_owners_have_gone_reaches_every_reader(mode: str, seed: int) -> None:
    run(mode, seed, 12)


def run(mode: str, seed: int, strikes: int) -> None:
    """Three brokers, two segments, all kinds of readers."""

    async def scenario(cluster: SimCluster) -> None:
        rng = cluster.rng("strikes")
        for name in NAMES:
            await cluster.start(name)
        await cluster.brokers["b1"].broker.admin.create_topic(TOPIC, segments=2, durability=mode)
        client, earliest = cluster.client("c"), {"initial_position": "earliest"}
        readers: dict[str, list[Any]] = {
            "exclusive": [await client.stream_consumer(TOPIC, "exclusive", **earliest)],
            "shared": [await client.stream_consumer(TOPIC, "shared", **earliest) for _ in range(3)],
            "queue": [await client.queue_consumer(TOPIC, "queue", **earliest) for _ in range(2)],
            "checkpoint": [await client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest())],
        }
        producer = await client.producer(TOPIC, send_timeout=300.0)
        stopped: list[Any] = []
        for life in range(strikes + 1):
            values = [f"{life}-{n}".encode() for n in range(rng.choice([0, COUNT, COUNT]))]
            for n, value in enumerate(values):
                await producer.send(value, key=f"key-{n % 7}")
            for kind, consumers in readers.items():
                await gather(kind, consumers, set(values))
            await strike(cluster, rng, stopped)
        await revive(stopped)
        assert not cluster.loop.problems

    simulate(seed, scenario, shared=True)
