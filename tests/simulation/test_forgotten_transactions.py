"""T7, to the second: what nobody ends holds others up until its timeout, whoever has died meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engine.model.positions import Checkpoint
from engine.testing.cluster import DEFAULT_CONFIG, simulate
from engine.testing.workload import kill

TIMEOUT_S = 10.0
DAY_S = 86_400.0
TOPIC = "orders"
CONFIG = replace(DEFAULT_CONFIG, segments=1)
SLACK_S = 2.0  # a sweep, its commit, and what a watch and a delivery take
TAKE_OVER_S = CONFIG.session_timeout + 3.0  # until the partitions and segments of a broker that died have another owner


async def consumer_of(client, kind):
    """A consumer that is given everything."""
    if kind == "reader":
        return await client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest())
    make = client.stream_consumer if kind == "stream" else client.queue_consumer
    return await make(TOPIC, "s", initial_position="earliest")


async def held_up(cluster, kind, death):
    """How long a message came behind its acknowledgement, with an open transaction before it."""
    for name in ("b1", "b2", "b3"):
        await cluster.start(name)
    forgetful, client = cluster.client("c-forgetful"), cluster.client("c")
    producer, other = await forgetful.producer(TOPIC), await client.producer(TOPIC)
    consumer = await consumer_of(client, kind)
    transaction = await forgetful.transaction(timeout=TIMEOUT_S)
    await producer.send(b"never", key=b"k", transaction=transaction)
    await other.send(b"behind it", key=b"k")
    began = cluster.loop.time()
    await kill(forgetful)
    if death is not None:
        await asyncio.sleep(TIMEOUT_S / 2)
        await cluster.brokers[death].kill()
    message = None
    while message is None:
        message = await consumer.receive(timeout=5.0)
    assert message.value == b"behind it"
    return cluster.loop.time() - began


@pytest.mark.parametrize("death", [None, "b1", "b2", "b3"])
@pytest.mark.parametrize("kind", ["reader", "stream", "queue"])
def test_t7_a_forgotten_transaction_holds_up_others_until_its_timeout(kind, death):
    late_s = 0.0 if death is None else TAKE_OVER_S
    for seed in range(2):
        waited = simulate(seed, lambda cluster: held_up(cluster, kind, death), config=CONFIG, shared=True)
        assert TIMEOUT_S - 1.0 < waited < TIMEOUT_S + SLACK_S + late_s


async def held_up_while_the_clock_is_set(cluster, step_s, death):
    """How long a message came behind its acknowledgement; what an operator sees is open meanwhile."""
    held = asyncio.create_task(held_up(cluster, "stream", death))
    await asyncio.sleep(TIMEOUT_S / 4)
    cluster.clock.skew_ms += round(step_s * 1000)
    (listed,) = await cluster.brokers["b3"].broker.admin.list_transactions()
    assert 0 <= listed["openForMs"] <= TIMEOUT_S * 1000
    return await held


@pytest.mark.parametrize(("step_s", "death"), [(-DAY_S, None), (DAY_S, None), (-DAY_S, "b1"), (DAY_S, "b1")])
def test_t7_whichever_way_the_clock_is_set_meanwhile(step_s, death):
    """Brokers that go on running keep the timeout; one that takes over counts it anew at most."""
    late_s = 0.0 if death is None else TIMEOUT_S + TAKE_OVER_S
    for seed in range(2):
        run = lambda cluster: held_up_while_the_clock_is_set(cluster, step_s, death)  # noqa: E731
        waited = simulate(seed, run, config=CONFIG, shared=True)
        assert TIMEOUT_S - 1.0 < waited < TIMEOUT_S + SLACK_S + late_s
