"""Rates as whoever asks for them sees them."""

from __future__ import annotations

import engine
from engine.broker.rates import Rate


def test_what_has_just_come_counts():
    rate = Rate(100.0)
    rate.count(50, 5000)
    rate.sample(100.01)
    assert (rate.messages_per_s, rate.bytes_per_s) == (50.0, 5000.0)
    rate.sample(102.0)
    assert rate.messages_per_s == 25.0


def test_asking_often_changes_nothing():
    rate = Rate()
    for tenth in range(1, 201):
        rate.count(10, 0)
        rate.sample(tenth / 10)
        assert tenth < 10 or 90 < rate.messages_per_s < 110


def test_silence_is_zero_soon():
    rate = Rate()
    rate.count(1000, 0)
    for second in range(8):
        rate.sample(float(second))
    assert rate.messages_per_s == 0.0


async def test_stats_have_the_rates_of_a_topic_that_has_just_begun(tmp_path):
    async with engine.open_async(tmp_path / "data") as e:
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
