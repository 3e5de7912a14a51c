"""Semantics 24: who numbers its messages goes on behind `acknowledged_sequence_id`, and misses nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.broker.settings.config import BrokerConfig
from engine.client import Checkpoint
from engine.client.client import AsyncClient
from engine.errors import AlreadyClosedError, TimeoutError
from engine.testing.cluster import SimCluster, simulate

TOPIC = "topic://public/default/t"
CONFIG = BrokerConfig(segments=2, scalable_topic_auto_scale_enabled=False)
COUNT = 12


def key_of(number: int) -> str:
    return f"k{number % 3}"


async def stored(client: AsyncClient) -> list[int]:
    reader = await client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest())
    found = []
    while (message := await reader.receive(timeout=2)) is not None:
        found.append(message.sequence_id)
    return sorted(found)


async def one_that_fails(cluster: SimCluster, **options: Any) -> Any:
    """A producer whose messages 2 and 3 run out of time while the broker is away."""
    broker = await cluster.start("b1")
    producer = await cluster.client("c").producer(TOPIC, send_timeout=2.0, **options)
    numbered = {"sequence_id": 0} if options.get("name") == "loader" else {}
    await producer.send(b"0", key=key_of(0), **numbered)
    await producer.send(b"1", key=key_of(1))
    await broker.kill()
    late = [asyncio.ensure_future(producer.send(b"%d" % n, key=key_of(n))) for n in (2, 3)]
    for outcome in await asyncio.gather(*late, return_exceptions=True):
        assert isinstance(outcome, TimeoutError)
    await broker.start()
    return producer


def test_what_failed_is_not_overtaken_and_is_stored_in_the_next_life() -> None:
    async def scenario(cluster: SimCluster) -> None:
        producer = await one_that_fails(cluster, name="loader")
        for number in range(4, COUNT):
            with pytest.raises(AlreadyClosedError, match="continue behind its acknowledged_sequence_id"):
                await producer.send(b"", key=key_of(number), sequence_id=number)
        with pytest.raises(AlreadyClosedError):
            await producer.flush()
        await producer.close()
        again = await cluster.client("c").producer(TOPIC, name="loader")
        for number in range(again.acknowledged_sequence_id + 1, COUNT):
            await again.send(b"%d" % number, key=key_of(number), sequence_id=number)
        assert await stored(cluster.client("c")) == list(range(COUNT))

    simulate(1, scenario, config=CONFIG, time_limit=10**5)


@pytest.mark.parametrize("name", [None, "named"])
def test_who_does_not_number_its_messages_goes_on(name: str | None) -> None:
    async def scenario(cluster: SimCluster) -> None:
        producer = await one_that_fails(cluster, name=name)
        for number in range(4, COUNT):
            await producer.send(b"", key=key_of(number))
        assert producer.acknowledged_sequence_id == 1, "not behind what failed"
        assert producer.statistics().messages_failed == 2
        await producer.close()
        assert len(await stored(cluster.client("c"))) == COUNT - 2

    simulate(1, scenario, config=CONFIG, time_limit=10**5)
