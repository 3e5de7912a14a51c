"""Changes of one topic by several brokers that die, are cut off and meet hosts that fail: whatever the seed."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from engine.control.base.topic_records import ScalableTopicResources
from engine.control.service import ScalableTopicService
from engine.errors import EngineError, StorageError
from engine.metadata import keys
from engine.metadata.store import ConflictError
from engine.model.layout import SegmentLayout
from engine.model.subscriptions import SubscriptionState
from tests.kit.control_fakes import TOPIC, Brokers, Channel, subscribe, virtual

CALLS = ("subscriptions", "create_segment", "terminate_segment", "inherit", "delete_segment", "create_subscription")


class Storm:
    """Three brokers, a topic, and what is seen of its record."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.brokers = Brokers(controller_idle=10.0)
        self.brokers.scripted = True
        self.brokers.rng = random.Random(seed + 1)
        self.brokers.delay_s_max, self.brokers.unknown_rate = 0.2, 0.05
        self.resources = ScalableTopicResources(self.brokers.store)
        self.services: dict[str, ScalableTopicService] = {}
        self.versions: list[SegmentLayout] = []
        self.born = 0
        for call in CALLS:
            self.brokers.host.before[call] = self.trouble
            self.brokers.host.after[call] = self.trouble

    async def trouble(self) -> None:
        await asyncio.sleep(self.rng.uniform(0, 0.5))
        if self.rng.random() < 0.05:
            raise StorageError("trouble")

    async def start(self) -> None:
        name = f"broker-{self.born}"
        self.born += 1
        self.services[name] = await self.brokers.start(name)

    async def watch(self) -> None:
        """Every version of the layout, and that no parent is open when its children are (G3)."""
        async for event in self.brokers.store.watch(keys.topic(TOPIC)):
            if event.record is None or event.key != keys.topic(TOPIC):
                continue
            layout = SegmentLayout.from_json(event.record.value)
            if not self.versions or layout.epoch != self.versions[-1].epoch:
                self.versions.append(layout)
                for segment in layout.segments.values():
                    assert segment.active or self.brokers.host.stores.get(segment.segment_id, True)

    async def act(self) -> None:
        service = self.rng.choice(list(self.services.values()))
        layout = await self.layout()
        active = [s.segment_id for s in layout.active]
        place = self.rng.randrange(len(active))
        name = f"s{self.rng.randrange(5)}"
        kind = self.rng.choice(["split", "merge", "rebucket", "prune", "subscribe", "unsubscribe", "consume"])
        with suppress(EngineError, ConflictError):
            if kind == "split" and len(active) < 12:
                await service.split_segment("orders", active[place])
            elif kind == "merge" and place + 1 < len(active):
                await service.merge_segments("orders", active[place], active[place + 1])
            elif kind == "rebucket":
                await service.rebucket_segment("orders", active[place], self.rng.randrange(1, 9))
            elif kind == "prune":
                await service.prune_segment("orders", self.rng.choice(list(layout.segments)))
            elif kind == "subscribe":
                await service.create_subscription("orders", name)
            elif kind == "unsubscribe":
                await service.delete_subscription("orders", name)
            elif kind == "consume":
                await subscribe(service, f"c{self.rng.randrange(4)}", Channel())

    async def misfortune(self) -> None:
        name = self.rng.choice(list(self.services))
        store = self.brokers.stores[name]
        what = self.rng.choice(["partition", "slow", "kill"])
        if what == "kill":
            del self.services[name]
            await self.start()
            await self.brokers.kill(name)
            return
        if what == "slow":
            store.delay_s_max = 6.0
        else:
            store.partition()
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(self.rng.uniform(0, 6))
            await self.brokers.store.delete(keys.controller(TOPIC))  # a session expires meanwhile
            with suppress(EngineError):
                await self.rng.choice(list(self.services.values())).split_segment("orders", -1)  # stands for election
        store.delay_s_max = 0.2
        store.heal()

    async def layout(self) -> SegmentLayout:
        record = await self.resources.load_topic(TOPIC)
        assert record is not None
        return record.layout

    async def calm(self) -> SegmentLayout:
        """No more trouble; what is unfinished is finished by itself."""
        self.brokers.host.before.clear()
        self.brokers.host.after.clear()
        for store in self.brokers.stores.values():
            store.unknown_rate = 0.0
        for _ in range(60):
            if (await self.layout()).change is None:
                break
            await asyncio.sleep(1)
        return await self.layout()


async def check(storm: Storm, layout: SegmentLayout) -> None:
    host = storm.brokers.host
    assert layout.change is None
    pruned = {i for version in storm.versions for i in version.segments} - layout.segments.keys()
    assert host.stores.keys() <= layout.segments.keys() | pruned, "orphans"  # owners sweep what was pruned
    for segment in layout.segments.values():
        assert host.stores.get(segment.segment_id, not segment.active) != segment.active
    for facts in await storm.resources.list_subscriptions(TOPIC):
        assert facts.state is SubscriptionState.ACTIVE
        assert all(facts.name in host.cursors[s.segment_id] for s in layout.active), facts.name
    for before, after in zip(storm.versions, storm.versions[1:], strict=False):
        assert after.epoch == before.epoch + 1


def weather(seed: int) -> None:
    """One topic's bad day."""

    @virtual
    async def run() -> None:
        storm = Storm(seed)
        for _ in range(3):
            await storm.start()
        while True:
            with suppress(EngineError):
                await next(iter(storm.services.values())).ensure_topic("orders")
                break
        watching = asyncio.ensure_future(storm.watch())
        for _ in range(20):
            acts = [asyncio.ensure_future(storm.act()) for _ in range(storm.rng.randrange(1, 5))]
            if storm.rng.random() < 0.7:
                await asyncio.sleep(storm.rng.uniform(0, 3))
                await storm.misfortune()
            await asyncio.wait(acts, timeout=60)
        await storm.calm()
        for facts in await storm.resources.list_subscriptions(TOPIC):
            for service in storm.services.values():
                with suppress(EngineError):  # the leader finishes what was half made or half deleted
                    await service.create_subscription("orders", facts.name)
        await check(storm, await storm.calm())
        watching.cancel()
        for service in storm.services.values():
            await service.close()

    run()


@pytest.mark.parametrize("seed", range(40))
def test_semantics_42_whatever_happens_the_topic_has_one_whole_layout(seed: int) -> None:
    weather(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(40, 5_000))
def test_semantics_42_for_many_seeds(seed: int) -> None:
    weather(seed)
