"""Random load, consumers, changes by hand, deaths of leaders and faults of the store: auto-scale does no harm in it."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.control.service import ScalableTopicService
from engine.errors import EngineError, StorageError
from engine.model.autoscale import AutoScalePolicy
from engine.model.layout import SegmentLayout
from tests.control.scaling_bench import layout_of, report
from tests.kit.control_fakes import TOPIC, Brokers, Channel, virtual

SEEDS = range(12)
FUZZ_SEEDS = range(100, 600)
MOST, LEAST = 9, 2
POLICY = AutoScalePolicy(max_segments=MOST, min_segments=LEAST, split_cooldown=20, merge_cooldown=60, merge_window=60)


class Storm:
    """Two brokers, of which one may be dead, and a topic that has no peace."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.brokers = Brokers(auto_scale=POLICY, auto_scale_interval=15.0, grace_period=20.0)
        self.brokers.rng, self.brokers.delay_s_max = random.Random(seed), 0.05
        self.brokers.unknown_rate = 0.02
        self.services: dict[str, ScalableTopicService] = {}
        self.lives = 0
        self.members = 0

    async def start(self) -> None:
        while len(self.services) < 2:
            self.lives += 1
            self.services[f"b{self.lives}"] = await self.brokers.start(f"b{self.lives}")

    @property
    def service(self) -> ScalableTopicService:
        return self.rng.choice(list(self.services.values()))

    async def step(self) -> None:
        act = self.rng.choice(
            [self.load, self.load, self.join, self.join, self.leave, self.change, self.fail, self.die]
        )
        try:
            await act()
        except EngineError:
            return  # another broker leads, the store is slow, a host refuses: an operator would try again

    async def load(self) -> None:
        layout = await layout_of(self.brokers)
        rates = [self.rng.choice([0.0, 0.0, 500.0, 3_000.0, 20_000.0]) for _ in layout.active]
        await report(self.brokers, *rates)
        for service in self.services.values():
            service.scaling.loaded(TOPIC)

    async def join(self) -> None:
        self.members += 1
        name = f"c{self.members}"
        await self.service.register_consumer(TOPIC, "sub", name, instance=name, channel=Channel())

    async def leave(self) -> None:
        name = f"c{self.rng.randint(1, self.members + 1)}"
        await self.service.unregister_consumer(TOPIC, "sub", name, instance=name)

    async def change(self) -> None:
        layout = await layout_of(self.brokers)
        if len(layout.active) < MOST - 1:
            await self.service.split_segment(TOPIC, self.rng.choice(layout.active).segment_id)

    async def fail(self) -> None:
        method = self.rng.choice(["create_segment", "terminate_segment", "inherit"])
        self.brokers.host.failures[method] = StorageError("not now")
        asyncio.get_running_loop().call_later(self.rng.uniform(1, 40), self.brokers.host.failures.pop, method, None)

    async def die(self) -> None:
        if len(self.services) == 2 and self.rng.random() < 0.5:
            name = self.rng.choice(list(self.services))
            del self.services[name]
            await self.brokers.kill(name)
            await self.start()


def at_rest(layout: SegmentLayout) -> None:
    assert layout.change is None
    assert LEAST <= len(layout.active) <= MOST


@pytest.mark.parametrize("seed", SEEDS)
@virtual
async def test_a_storm(seed: int) -> None:
    await weather(seed)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", FUZZ_SEEDS)
@virtual
async def test_fuzz_storm(seed: int) -> None:
    await weather(seed)


async def weather(seed: int) -> None:
    """A storm, and the calm behind it."""
    storm = Storm(seed)
    await storm.start()
    await storm.service.create_topic(TOPIC, segments=3)
    for _ in range(60):
        await storm.step()
        assert len((await layout_of(storm.brokers)).active) <= MOST
        await asyncio.sleep(storm.rng.expovariate(1 / 8))
    storm.brokers.host.failures.clear()
    await asyncio.sleep(100)
    layout = await layout_of(storm.brokers)
    at_rest(layout)
    assert layout.epoch > 3  # something has happened
    await calm(storm)
    for service in storm.services.values():
        await service.close()


async def calm(storm: Storm) -> None:
    """Nothing comes any more: what is left is merged down to the least."""
    for _ in range(3 * MOST):
        await report(storm.brokers, *[0.0] * len((await layout_of(storm.brokers)).active))
        for service in storm.services.values():
            service.scaling.loaded(TOPIC)
        await asyncio.sleep(150)
    layout = await layout_of(storm.brokers)
    deep = max(layout.merge_depth(s.segment_id) for s in layout.active) >= POLICY.max_dag_depth
    assert len(layout.active) == LEAST or deep
