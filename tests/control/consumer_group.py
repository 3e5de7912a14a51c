"""One subscription's coordinator on a store and a host in memory."""

from __future__ import annotations

import asyncio
from typing import Any

from engine.control.base.topic_records import ScalableTopicResources
from engine.control.subscription.coordinator import SubscriptionCoordinator
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import Stat
from engine.model.layout import SegmentLayout
from engine.model.subscriptions import ConsumerAssignment, SubscriptionKind
from engine.testing.clock import FakeClock
from tests.kit.control_fakes import TOPIC, Channel, FakeHost, ids

GRACE_S = 60.0


class Group:
    """One subscription's coordinator, its store and its host."""

    def __init__(self, segments: int = 4, kind: SubscriptionKind = SubscriptionKind.STREAM) -> None:
        self.store = MemoryMetadataStore(FakeClock())
        self.host = FakeHost()
        self.layout = SegmentLayout.create(segments, now_ms=0)
        self.kind = kind
        self.leads = True
        self.channels: dict[str, Channel] = {}
        self.coordinator = self.make(term=1)

    def make(self, term: int) -> SubscriptionCoordinator:
        async def confirm() -> bool:
            return self.leads

        return SubscriptionCoordinator(
            TOPIC,
            "sub",
            self.kind,
            self.layout,
            term=term,
            confirm=confirm,
            resources=ScalableTopicResources(self.store),
            host=self.host,
            grace_s=GRACE_S,
        )

    async def join(self, name: str, instance: str = "1") -> list[int]:
        return ids(await self.join_whole(name, instance))

    async def join_whole(self, name: str, instance: str = "1") -> ConsumerAssignment:
        channel = self.channels[name] = Channel()
        return await self.coordinator.register(name, instance, channel)

    def drop(self, name: str) -> None:
        self.coordinator.disconnect(name, self.channels[name])

    def shares(self) -> dict[str, tuple[int, ...]]:
        return {name: share for name, (_, share) in self.coordinator.consumers.items()}

    async def registered(self) -> dict[str, tuple[int, ...]]:
        """What the store says."""
        await self.coordinator.written()
        found = await ScalableTopicResources(self.store).list_consumers(TOPIC)
        return {facts.consumer_name: facts.segment_ids for _, facts, _ in found}

    def slow_writes(self) -> None:
        """Writes take a second from now on."""
        put = self.store.put

        async def slow(*args: Any, **kwargs: Any) -> Stat:
            await asyncio.sleep(1)
            return await put(*args, **kwargs)

        self.store.put = slow  # type: ignore[method-assign]

    def reshape(self, layout: SegmentLayout) -> None:
        self.layout = layout
        self.coordinator.layout_changed(layout)

    def last(self, name: str) -> list[int]:
        return ids(self.channels[name].pushed[-1])
