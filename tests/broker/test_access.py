"""Semantics 25: access modes are about a topic, whatever becomes of its segments, brokers and connections."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.broker.settings.config import BrokerConfig
from engine.client.client import AsyncClient
from engine.client.produce.producer import AsyncProducer
from engine.errors import EngineError, FencedError, ProducerBusyError
from engine.testing.cluster import SimCluster, simulate

TOPIC = "topic://public/default/t"
KEYS = [b"%d" % n for n in range(16)]
CONFIG = BrokerConfig(keep_alive=5.0, segments=3, session_timeout=5.0, scalable_topic_auto_scale_enabled=False)
Scenario = Callable[..., Coroutine[Any, Any, None]]


def virtual(scenario: Scenario) -> Callable[..., None]:
    """A test that runs a cluster on virtual time."""

    def test() -> None:
        simulate(scenario.__name__, scenario, config=CONFIG, time_limit=10**5)

    test.__name__ = scenario.__name__
    return test


def waiting(client: AsyncClient, name: str | None = None) -> asyncio.Task[AsyncProducer]:
    return asyncio.ensure_future(client.producer(TOPIC, access_mode="wait_for_exclusive", name=name))


async def send_all(producer: AsyncProducer) -> None:
    """To every segment."""
    await asyncio.gather(*(producer.send(b"v", key=key) for key in KEYS))


async def try_all(client: AsyncClient, mode: str) -> None:
    """A shared producer attaches when it has something to send."""
    producer = await client.producer(TOPIC, access_mode=mode)
    try:
        await send_all(producer)
    finally:
        await producer.close()


async def refused(client: AsyncClient) -> None:
    """Nobody else gets in."""
    for mode in ("exclusive", "shared"):
        with pytest.raises(ProducerBusyError):
            await try_all(client, mode)


def admin(cluster: SimCluster) -> Any:
    broker = cluster.brokers["b1"].broker
    assert broker is not None
    return broker.admin


async def reshape(cluster: SimCluster, rng: random.Random | None = None, kind: str = "split") -> None:
    layout = (await admin(cluster).get_metadata(TOPIC))["segments"]
    segments = layout.values() if isinstance(layout, dict) else layout
    active = sorted((s for s in segments if s["state"] == "ACTIVE"), key=lambda s: s["hashRange"]["start"])
    at = 0 if rng is None else rng.randrange(len(active))
    if kind == "split":
        await admin(cluster).split_segment(TOPIC, active[at]["segmentId"])
    elif kind == "rebucket":
        await admin(cluster).rebucket_segment(TOPIC, active[at]["segmentId"], len(active[at]["bucketBoundaries"]) + 1)
    elif len(active) > 1:
        at = min(at, len(active) - 2)
        await admin(cluster).merge_segments(TOPIC, active[at]["segmentId"], active[at + 1]["segmentId"])


@virtual
async def test_25_who_waits_comes_in_in_order(cluster: SimCluster) -> None:
    await cluster.start("b1")
    holder = await cluster.client("holder").producer(TOPIC, access_mode="exclusive")
    tasks = []
    for i in range(4):
        tasks.append(waiting(cluster.client(f"w{i}")))
        await asyncio.sleep(0.3)
    await refused(cluster.client("other"))
    for i, task in enumerate(tasks):
        assert not any(t.done() for t in tasks[i:])
        await send_all(holder)
        await holder.close()
        holder = await task
    await send_all(holder)


@virtual
async def test_25_the_holder_keeps_its_topic_through_changes_of_shape(cluster: SimCluster) -> None:
    await cluster.start("b1")
    holder = await cluster.client("holder").producer(TOPIC, access_mode="exclusive")
    first = waiting(cluster.client("w1"))
    await asyncio.sleep(0.5)
    second = waiting(cluster.client("w2"))
    other = cluster.client("other")
    for kind in ("split", "rebucket", "merge", "merge", "split"):
        change = asyncio.ensure_future(reshape(cluster, kind=kind))
        while not change.done():
            await refused(other)
        await change
        await refused(other)
        await send_all(holder)
        await asyncio.sleep(2)
        assert not first.done()
        assert not second.done()
    await holder.close()
    heir = await first
    await send_all(heir)
    assert not second.done(), "who came first is served first, also after all that"
    await reshape(cluster)
    await send_all(heir)
    await heir.close()
    await send_all(await second)


@pytest.mark.parametrize("seed", range(6))
def test_25_a_restart_leaves_the_holder_in_and_those_who_wait_in_order(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        broker = await cluster.start("b1")
        holder = await cluster.client("holder").producer(TOPIC, access_mode="wait_for_exclusive")
        await send_all(holder)
        tasks = [waiting(cluster.client("w0"))]
        await asyncio.sleep(1)
        tasks.append(waiting(cluster.client("w1")))
        await asyncio.sleep(1)
        for _ in range(2):
            await broker.kill()
            await asyncio.sleep(cluster.rng("down").uniform(0, 5))
            await broker.start()
            await send_all(holder)
            await asyncio.sleep(5)
            assert not any(task.done() for task in tasks)
        await holder.close()
        heir = await tasks[0]
        await send_all(heir)
        assert not tasks[1].done()
        await heir.close()
        await send_all(await tasks[1])

    simulate(seed, scenario, config=CONFIG, time_limit=10**5)


@pytest.mark.parametrize("shared", [False, True])
def test_25_nobody_waits_for_those_who_had_left_before(shared: bool) -> None:
    """Only who was there when a broker went away may come back to it."""

    async def scenario(cluster: SimCluster) -> None:
        for name in ["b1", "b2"] if shared else ["b1"]:
            await cluster.start(name)
        loop, client = asyncio.get_running_loop(), cluster.client("c")
        former = await client.producer(TOPIC, access_mode="exclusive")
        await send_all(former)
        await former.close()
        for _ in range(2):
            await asyncio.sleep(10)
            for broker in cluster.brokers.values():
                assert broker.broker is not None
                for hosted in broker.broker.segments:
                    assert await broker.broker.segments.unload(hosted)
            began = loop.time()
            for _ in range(2):
                producer = await client.producer(TOPIC, access_mode="wait_for_exclusive")
                await send_all(producer)
                await producer.close()
            assert loop.time() - began < 1

    simulate(1, scenario, config=CONFIG, time_limit=10**5, shared=shared)


@virtual
async def test_25_fencing_drives_everybody_out_of_every_segment(cluster: SimCluster) -> None:
    await cluster.start("b1")
    shared = await cluster.client("shared").producer(TOPIC)
    await send_all(shared)
    with pytest.raises(ProducerBusyError):
        await cluster.client("polite").producer(TOPIC, access_mode="exclusive")
    fencer = await cluster.client("f1").producer(TOPIC, access_mode="exclusive_with_fencing")
    with pytest.raises(FencedError):
        await shared.send(b"v", key=b"1")
    await send_all(fencer)
    await reshape(cluster)
    await send_all(fencer)
    later = await cluster.client("f2").producer(TOPIC, access_mode="exclusive_with_fencing")
    for key in KEYS:
        with pytest.raises(FencedError):
            await fencer.send(b"v", key=key)
    await send_all(later)


@virtual
async def test_25_who_was_cut_off_and_fenced_does_not_come_back(cluster: SimCluster) -> None:
    broker = await cluster.start("b1")
    cut = cluster.client("cut")
    old = await cut.producer(TOPIC, access_mode="exclusive_with_fencing")
    await send_all(old)
    cluster.network.partition("cut", "b1")
    new = await cluster.client("new").producer(TOPIC, access_mode="exclusive_with_fencing")
    await send_all(new)
    sends = [asyncio.ensure_future(old.send(b"lost", key=key)) for key in KEYS]
    await asyncio.sleep(2)
    cluster.network.heal()
    for outcome in await asyncio.gather(*sends, return_exceptions=True):
        assert isinstance(outcome, (FencedError, ProducerBusyError))
    await send_all(new)
    assert broker.broker is not None
    for hosted in broker.broker.segments:
        if not hosted.segment.sealed:
            assert list(hosted.producers) == [new.name]


@virtual
async def test_25_who_waits_and_is_cut_off_or_gives_up_is_in_nobodys_way(cluster: SimCluster) -> None:
    await cluster.start("b1")
    holder = await cluster.client("holder").producer(TOPIC, access_mode="exclusive")
    gives_up = waiting(cluster.client("w0"))
    await asyncio.sleep(0.3)
    cut_off = waiting(cluster.client("w1"))
    await asyncio.sleep(0.3)
    patient = waiting(cluster.client("w2"))
    await asyncio.sleep(0.3)
    gives_up.cancel()
    cluster.network.partition("w1", "b1")
    await holder.close()
    heir = await asyncio.wait_for(patient, 60)
    await send_all(heir)
    cluster.network.heal()
    await asyncio.sleep(30)
    assert not cut_off.done()
    await heir.close()
    await send_all(await asyncio.wait_for(cut_off, 60))


@pytest.mark.parametrize("seed", range(8))
def test_25_of_all_that_want_a_topic_one_has_it(seed: int) -> None:
    """Whoever has got in is alone from then on, until it closes or is driven out; and everybody who waits gets in."""

    async def scenario(cluster: SimCluster) -> None:
        rng, loop = cluster.rng("storm"), asyncio.get_running_loop()
        for name in ("b1", "b2"):
            await cluster.start(name)
        newest, entered, running = 0, 0, True

        async def live(number: int) -> None:
            nonlocal newest, entered
            client = cluster.client(f"c{number}")
            while running:
                mode = rng.choice(["exclusive", "wait_for_exclusive", "wait_for_exclusive", "exclusive_with_fencing"])
                try:
                    producer = await client.producer(TOPIC, access_mode=mode)
                except (ProducerBusyError, FencedError):
                    await asyncio.sleep(rng.uniform(0, 2))
                    continue
                entered += 1
                newest = entered
                await work(producer, entered)

        async def work(producer: AsyncProducer, mine: int) -> None:
            end = loop.time() + rng.uniform(0, 3)
            try:
                while loop.time() < end:
                    alone = newest == mine
                    await producer.send(b"v", key=rng.choice(KEYS))
                    assert alone, "sent after somebody else was let in"
                await producer.close()
            except (FencedError, ProducerBusyError):
                await asyncio.gather(producer.close(), return_exceptions=True)

        lives = [asyncio.ensure_future(live(i)) for i in range(5)]
        for _ in range(8):
            await asyncio.sleep(rng.uniform(0, 4))
            await storm(cluster, rng)
        running = False
        await asyncio.wait_for(asyncio.gather(*lives), 300)
        assert entered > 5

    simulate(seed, scenario, config=CONFIG, time_limit=10**5, shared=True)


async def storm(cluster: SimCluster, rng: random.Random) -> None:
    """Something happens."""
    what = rng.random()
    if what < 0.6:
        try:
            await reshape(cluster, rng, rng.choice(["split", "merge", "rebucket"]))
        except EngineError:
            return  # it is being changed, or led elsewhere
    elif what < 0.8:
        await cluster.brokers["b2"].kill()
        await asyncio.sleep(rng.uniform(0, 10))
        await cluster.brokers["b2"].start()
    else:
        host = f"c{rng.randrange(5)}"
        cluster.network.partition(host, "b1")
        await asyncio.sleep(rng.uniform(0, 10))
        cluster.network.heal()
