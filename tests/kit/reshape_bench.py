"""A topic about to be split, merged or rebucketed, and what must hold whenever that has come to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from engine.control.base.ports import TopicView
from engine.control.base.topic_records import ScalableTopicResources
from engine.control.service import ScalableTopicService
from engine.model.layout import SegmentLayout
from engine.model.subscriptions import InitialPosition
from tests.kit.control_fakes import TOPIC, Brokers, Channel, Hook, subscribe

KINDS = ("split", "merge", "rebucket")
PARENTS = {"split": [0], "merge": [0, 1], "rebucket": [1]}
CHILDREN = {"split": 2, "merge": 1, "rebucket": 1}

# Where a fault can meet a change, in the order of semantics 42: around each of what it asks of hosts, and around each
# of its three writes of the topic's record.
HOST_CALLS = ("subscriptions", "create_segment", "terminate_segment", "inherit")
WRITES = ("begin", "terminate", "commit")
POINTS = [f"{when} {what}" for what in (*HOST_CALLS, *WRITES) for when in ("before", "after")]
# From here on there is no way back.
COMMITTED = {"after terminate", "before commit", "after commit"} | {
    f"{when} {what}" for what in ("terminate_segment", "inherit") for when in ("before", "after")
}


class Bench:
    """Broker "a" leads a topic of two segments with the subscription "sub", read by "one", and one by name only."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.brokers = Brokers(controller_idle=100_000.0)
        self.brokers.scripted = True
        self.host = self.brokers.host
        self.channel = Channel()
        self.resources = ScalableTopicResources(self.brokers.store)

    async def start(self) -> ScalableTopicService:
        first = self.first = await self.brokers.start("a")
        await first.create_topic("orders", segments=2)
        await subscribe(first, "one", self.channel)
        await first.create_subscription("orders", "other", initial_position="earliest")
        return first

    def change(self, service: ScalableTopicService) -> Awaitable[TopicView]:
        if self.kind == "split":
            return service.split_segment("orders", 0)
        if self.kind == "merge":
            return service.merge_segments("orders", 1, 0)
        return service.rebucket_segment("orders", 1, 7)

    async def layout(self) -> SegmentLayout:
        record = await self.resources.load_topic(TOPIC)
        assert record is not None
        return record.layout

    def at(self, point: str, act: Hook) -> None:
        """Let the fault meet the change at this point of it, every time it comes there."""
        when, what = point.split()
        if what in HOST_CALLS:
            (self.host.before if when == "before" else self.host.after)[what] = act
            return
        store = self.brokers.stores["a"]
        setattr(store, when, self._at_write(what, act))

    def _at_write(self, what: str, act: Hook) -> Hook:
        count = 0

        async def counting() -> None:
            nonlocal count
            count += 1
            if count >= 1 + WRITES.index(what):
                await act()

        return counting

    def heal(self) -> None:
        self.host.before.clear()
        self.host.after.clear()
        self.brokers.stores["a"].before = self.brokers.stores["a"].after = None

    async def check(self) -> SegmentLayout:
        """The old layout without orphans, or the new one: nothing in between. Which one."""
        layout = await self.layout()
        assert layout.change is None
        assert self.host.stores.keys() <= layout.segments.keys(), "orphans"
        assert {i for i, sealed in self.host.stores.items() if sealed} == {
            s.segment_id for s in layout.segments.values() if not s.active
        }
        if layout.epoch == 0:
            assert sorted(layout.segments) == [0, 1]
            return layout
        assert layout.epoch == 1
        self._check_children(layout)
        return layout

    def _check_children(self, layout: SegmentLayout) -> None:
        children = [s for s in layout.segments.values() if s.parent_ids]
        assert len(children) == CHILDREN[self.kind]
        for child in children:
            assert list(child.parent_ids) == PARENTS[self.kind]
            assert self.host.cursors[child.segment_id] == dict.fromkeys(("other", "sub"), InitialPosition.EARLIEST)
            assert self.host.inherited[child.segment_id] == [b"known to %d" % i for i in child.parent_ids]
            assert {layout.segment(i).sealed_at_ms for i in child.parent_ids} == {child.created_at_ms}

    async def settled(self) -> SegmentLayout:
        """Wait until nothing is pending, without asking any broker for anything."""
        for _ in range(100):
            if (await self.layout()).change is None:
                break
            await asyncio.sleep(1)
        await asyncio.sleep(1)
        return await self.check()


async def stored(brokers: Brokers) -> SegmentLayout:
    """The topic's layout as the store has it."""
    record = await ScalableTopicResources(brokers.store).load_topic(TOPIC)
    assert record is not None
    return record.layout


def once(act: Callable[[], Awaitable[None]]) -> Hook:
    """Only the first time."""
    done = False

    async def hook() -> None:
        nonlocal done
        if not done:
            done = True
            await act()

    return hook
