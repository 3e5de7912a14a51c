"""Rates as whoever asks for them sees them."""

from __future__ import annotations

import asyncio

import pytest

import engine
from engine.broker.pools.rates import Rate, Window
from engine.testing.cluster import SimCluster, simulate


class Time:
    """Seconds as the test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def steady(rate: Rate, time: Time, seconds: float) -> None:
    """100 messages per second from now on."""
    for _ in range(int(seconds * 20)):
        rate.count(5, 0)
        time.now += 0.05


def per_s(rate: Rate) -> float:
    rate.sample()
    return rate.messages_per_s


def test_what_has_just_come_counts():
    rate = Rate(time := Time())
    rate.count(50, 5000)
    time.now += 0.01
    rate.sample()
    assert (rate.messages_per_s, rate.bytes_per_s) == (50.0, 5000.0)
    time.now = 102.0
    assert per_s(rate) == 25.0


def test_asking_often_changes_nothing():
    rate = Rate(time := Time())
    for tenth in range(1, 201):
        rate.count(10, 0)
        time.now = 100 + tenth / 10
        assert tenth < 10 or 90 < per_s(rate) < 115


def test_silence_is_zero_soon():
    rate = Rate(time := Time())
    rate.count(1000, 0)
    time.now += 5.0
    assert per_s(rate) == 0.0


def test_an_heir_and_what_it_goes_on_with_add_up():
    time = Time()
    parent = Rate(time)
    steady(parent, time, 20)
    child = Rate(time, heir=True)
    for _ in range(40):
        steady(child, time, 0.25)
        assert 95 < per_s(parent) + per_s(child) < 105
    assert per_s(parent) == 0.0


async def test_stats_have_the_rates_of_a_topic_that_has_just_begun(tmp_path):
    async with engine.open_async(tmp_path / "data", shared=False) as e:
        async with await e.stream_consumer("t", "s", initial_position="earliest") as c, await e.producer("t") as p:
            assert type((await e.admin.get_stats("t"))["msgRateOut"]) is float
            await p.send(b"x")
            await c.receive(timeout=10)
            stats = await e.admin.get_stats("t")
        for part in (stats, stats["segments"]["0"]):
            rates = [part[name] for name in ("msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut")]
            assert all(type(rate) is float and rate > 0 for rate in rates), rates
        assert stats["subscriptions"]["s"]["msgRateOut"] > 0
        await e.admin.create_topic("empty")
        rates = [rate for name, rate in (await e.admin.get_stats("empty")).items() if "Rate" in name]
        assert rates == [0.0] * 4
        assert all(type(rate) is float for rate in rates)


def test_a_split_under_a_steady_load_changes_no_sum():
    """Parents still count in their window while their children begin: nothing counts twice, nothing is forgotten."""
    seen: list[tuple[float, float, float, float]] = []

    async def send(producer: engine.AsyncProducer) -> None:
        for number in range(3000):
            await producer.send(b"x", key=str(number))
            await asyncio.sleep(0.01)

    async def read(consumer: engine.AsyncStreamConsumer) -> None:
        while True:
            message = await consumer.receive()
            await consumer.acknowledge_cumulative(message)

    async def body(cluster: SimCluster) -> None:
        admin = (await cluster.start()).broker.admin
        await admin.create_topic("t", segments=2)
        client = cluster.client("c")
        consumer = await client.stream_consumer("t", "s", name="c")
        tasks = [asyncio.create_task(read(consumer)), asyncio.create_task(send(await client.producer("t")))]
        begun = cluster.loop.time()
        await asyncio.sleep(8)
        for segment_id in (0, 1):
            await admin.split_segment("t", segment_id)
            for _ in range(20):
                await asyncio.sleep(0.4)
                stats = await admin.get_stats("t")
                own = stats["subscriptions"]["s"]["consumers"]["c"]["msgRateOut"]
                seen.append((cluster.loop.time() - begun, stats["msgRateIn"], stats["msgRateOut"], own))
            assert stats["segments"][str(segment_id)]["msgRateIn"] == 0.0
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    simulate(1, body)
    real = seen[0][1]
    assert all(0.85 * real < rate < 1.15 * real for _, *rates in seen for rate in rates), seen


def test_a_window_is_of_sixty_seconds():
    window = Window(0.0, (0, 0))
    seen = [window.sample(float(now), (now * 100, now * 5000)) for now in range(10, 200, 10)]
    assert seen == [(100.0, 5000.0)] * len(seen)  # steady, also before there were sixty seconds
    falling = [window.sample(float(now), (19_000, 950_000))[0] for now in range(200, 270, 10)]
    assert falling[0] == pytest.approx(100 * 5 / 6)
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == 0.0


def test_after_a_rest_a_burst_is_averaged_over_the_whole_window():
    window = Window(0.0, (7,))
    window.rest(5000.0)
    assert window.sample(5010.0, (607,)) == (pytest.approx(600 / 70),)


def test_a_window_that_is_longer_than_the_looks_are_apart_and_one_that_is_shorter():
    window = Window(0.0, (0,), span_s=5.0)
    assert window.sample(20.0, (200,)) == (10.0,)
    assert window.sample(40.0, (200,)) == (0.0,)
    assert Window(0.0, (0,)).sample(0.0, (10,)) == (20.0,)  # in an instant: no division by zero
