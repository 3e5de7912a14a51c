"""Cooldowns and windows of auto-scale while the wall clock is set."""

from __future__ import annotations

import asyncio

import pytest

from engine.model.autoscale import AutoScalePolicy
from engine.testing.clock import LoopClock
from engine.testing.loop import run_virtual
from tests.control.scaling_bench import NEVER_S, counts, report, shape
from tests.kit.control_fakes import TOPIC, Brokers, subscribe

DAY_MS = 86_400_000
STEPS_MS = [-DAY_MS, DAY_MS]


def set_clock(brokers: Brokers, step_ms: int) -> None:
    """As an administrator does."""
    assert isinstance(brokers.clock, LoopClock)
    brokers.clock.skew_ms += step_ms


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_a_cooldown_ends_neither_early_nor_late(step_ms: int) -> None:
    async def body() -> None:
        brokers = Brokers(auto_scale_interval=NEVER_S)
        service = await brokers.start("a")
        await service.create_topic(TOPIC)
        await report(brokers, 8_000)
        for name in "abcd":
            await subscribe(service, name)
        await asyncio.sleep(2)
        assert await shape(brokers) == [2, 2]
        set_clock(brokers, step_ms)
        await report(brokers, 4_000, 4_000)
        await subscribe(service, "e")  # it looks
        await asyncio.sleep(50)
        assert len(await shape(brokers)) == 2
        await asyncio.sleep(12)
        assert len(await shape(brokers)) == 3
        await service.close()

    run_virtual(body())


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_a_new_leader_keeps_a_cooldown_or_begins_it_anew(step_ms: int) -> None:
    async def body() -> None:
        brokers = Brokers(auto_scale_interval=NEVER_S)
        first, second = await brokers.start("a"), await brokers.start("b")
        await first.create_topic(TOPIC)
        await report(brokers, 8_000)
        for name in "abc":
            await subscribe(first, name)
        await asyncio.sleep(2)
        await report(brokers, 4_000, 4_000)
        await first.close()
        set_clock(brokers, step_ms)
        for name in "abc":
            await subscribe(second, name)
        await asyncio.sleep(70)
        assert len(await shape(brokers)) == 3
        await second.close()

    run_virtual(body())


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_what_is_cold_is_merged_after_its_window(step_ms: int) -> None:
    async def body() -> None:
        policy = AutoScalePolicy(merge_window=600.0, merge_cooldown=0.0)
        brokers = Brokers(auto_scale_interval=30.0, auto_scale=policy)
        service = await brokers.start("a")
        await service.create_topic(TOPIC, segments=2)
        await subscribe(service, "a")
        await report(brokers, 0.0, 0.0)
        await asyncio.sleep(60)
        set_clock(brokers, step_ms)
        await asyncio.sleep(500)
        assert (len(await shape(brokers)), counts(service)[1]) == (2, 0)
        await asyncio.sleep(100)
        assert (len(await shape(brokers)), counts(service)[1]) == (1, 1)
        await service.close()

    run_virtual(body())
