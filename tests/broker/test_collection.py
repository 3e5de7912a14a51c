"""Sealed segments that go, and stores that nobody names (semantics 28, 42)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from engine.broker.upkeep.orphans import Orphans
from engine.broker.upkeep.sealed_segments import Rule
from engine.control.base.ports import SegmentSpec
from engine.errors import NotFoundError, NotOwnerError
from engine.metadata import keys
from engine.model.hashrange import HashRange
from engine.model.names import SegmentName, TopicName
from engine.wire.commands import Command
from tests.kit.peer import Peer, leader_term, make_entries

ORDERS = TopicName.parse("orders")
HOUR_MS = 3_600_000


async def publish(peer: Peer, segment: str, count: int = 5) -> None:
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries([b"%d" % i for i in range(count)]))
    await peer.receipts(producer, count)
    await peer.ask(Command.CLOSE_PRODUCER, producer_id=producer)


async def split_topic(broker, peer: Peer, *, subscription: str | None = "s") -> str:
    """The name of segment 0, sealed, with five messages, that was split into 1 and 2."""
    segment = await peer.segment("orders")
    await publish(peer, segment)
    if subscription is not None:
        await broker.service.ensure_subscription("orders", subscription, initial_position="earliest")
    await broker.service.split_segment("orders", 0)
    return segment


async def ids(broker) -> list[int]:
    return list((await broker.service.ensure_topic("orders", create=False)).layout.segments)


async def drain(peer: Peer, segment: str, subscription: str = "s", position: int = 5) -> None:
    consumer = await peer.consumer(segment, "exclusive", subscription)
    await peer.ack(consumer, position=position)
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=consumer)


# -- sealed segments -----------------------------------------------------------------------------------------------


async def test_a_sealed_segment_goes_when_drained_and_past_its_retention(start_broker, later):
    async with start_broker(retention_time=3600.0) as broker:
        peer = await Peer.connect(broker)
        segment = await split_topic(broker, peer)
        sweep = broker.parts.retention.sweep
        await sweep()
        later(broker, 2)
        await sweep()
        assert await ids(broker) == [0, 1, 2], "it is not drained"
        await drain(peer, segment, position=4)
        await sweep()
        assert await ids(broker) == [0, 1, 2], "not quite"
        await drain(peer, segment)
        await sweep()
        view = await broker.service.ensure_topic("orders", create=False)
        assert list(view.layout.segments) == [1, 2]
        assert view.layout.epoch == 2
        assert not view.layout.segment(1).parent_ids
        assert sorted(n.segment_id for n in (await broker.segments.on_disk())[ORDERS]) == [1, 2]
        name = SegmentName.parse(segment)
        assert await broker.metadata.get(keys.segment(name)) is None
        assert await broker.metadata.get(keys.cursor(name, "s")) is None
        with pytest.raises(NotFoundError):
            await peer.consumer(segment, "reader", None)
        assert await sweep() == 0


async def test_drained_is_not_enough_before_the_retention_has_passed(start_broker, later):
    async with start_broker(retention_time=3600.0) as broker:
        peer = await Peer.connect(broker)
        await drain(peer, await split_topic(broker, peer))
        later(broker, 0.9)
        await broker.parts.retention.sweep()
        assert await ids(broker) == [0, 1, 2]
        later(broker, 0.2)
        await broker.parts.retention.sweep()
        assert await ids(broker) == [1, 2]


async def test_every_subscription_counts_and_one_without_a_cursor_does_not(start_broker):
    async with start_broker(retention_time=0.0) as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        await broker.service.ensure_subscription("orders", "slow", initial_position="earliest")
        await split_topic(broker, peer)
        await broker.service.ensure_subscription("orders", "younger", initial_position="latest")
        await drain(peer, segment)
        await broker.parts.retention.sweep()
        assert await ids(broker) == [0, 1, 2]
        await broker.service.delete_subscription("orders", "slow")
        await broker.parts.retention.sweep()
        assert await ids(broker) == [1, 2]


@pytest.mark.parametrize(("how", "goes"), [("no limit", False), ("negative", False), ("no room", True)])
async def test_the_limits_of_retention(start_broker, later, how: str, goes: bool):
    settings = {"no limit": {"retention_time": None}, "no room": {"retention_size": 0}}.get(how, {})
    async with start_broker(**settings) as broker:
        if how == "negative":
            await broker.admin.set_namespace_policies("public/default", {"retention_time_s": -1})
        peer = await Peer.connect(broker)
        await drain(peer, await split_topic(broker, peer))
        if not goes:
            later(broker, 24 * 365)
        await broker.parts.retention.sweep()
        assert await ids(broker) == ([1, 2] if goes else [0, 1, 2])


async def test_generations_go_oldest_first_and_at_once(start_broker):
    async with start_broker(retention_time=0.0) as broker:
        peer = await Peer.connect(broker)
        segment = await split_topic(broker, peer)
        await broker.service.split_segment("orders", 1)
        await broker.service.merge_segments("orders", 3, 4)
        await broker.parts.retention.sweep()
        assert await ids(broker) == [0, 1, 2, 3, 4, 5], "the empty ones are drained, and wait for their parent"
        await drain(peer, segment)
        await broker.parts.retention.sweep()
        assert await ids(broker) == [2, 5]
        assert sorted(n.segment_id for n in (await broker.segments.on_disk())[ORDERS]) == [2, 5]


async def test_a_closed_sealed_segment_is_looked_at_and_closed_again(start_broker):
    async with start_broker(retention_time=0.0) as broker:
        peer = await Peer.connect(broker)
        segment = await split_topic(broker, peer)
    async with start_broker(retention_time=0.0) as broker:
        await broker.parts.retention.sweep()
        assert not len(broker.segments)
        peer = await Peer.connect(broker)
        await drain(peer, segment)
    async with start_broker(retention_time=0.0) as broker:
        await broker.parts.retention.sweep()
        assert await ids(broker) == [1, 2]


async def test_a_sealed_segment_that_lost_its_store_leaves_the_layout(start_broker):
    async with start_broker(retention_time=0.0) as broker:
        peer = await Peer.connect(broker)
        segment = await split_topic(broker, peer)
        await broker.hosting.delete_segment(
            await broker.service.segment_spec("orders", 0), term=await leader_term(broker, "orders")
        )
        with pytest.raises(NotFoundError):
            await peer.consumer(segment, "reader", None)  # a sealed one is never made anew (semantics 28)
        await broker.parts.retention.sweep()
        assert await ids(broker) == [1, 2]


async def test_an_active_segment_never_goes(start_broker):
    async with start_broker(retention_time=0.0, retention_size=0) as broker:
        peer = await Peer.connect(broker)
        await split_topic(broker, peer, subscription=None)
        for _ in range(3):
            await broker.parts.retention.sweep()
        assert await ids(broker) == [1, 2]
        assert sorted(n.segment_id for n in (await broker.segments.on_disk())[ORDERS]) == [1, 2]


async def test_a_seek_between_the_look_and_the_pruning_saves_the_segment(start_broker, monkeypatch):
    async with start_broker(retention_time=0.0) as broker:
        peer = await Peer.connect(broker)
        await drain(peer, await split_topic(broker, peer))
        prune = broker.service.prune_segment

        async def seek_first(topic, segment_id):
            await broker.service.seek_subscription("orders", "s", "earliest")
            return await prune(topic, segment_id)

        monkeypatch.setattr(broker.service, "prune_segment", seek_first)
        sealed = broker.parts.retention._sealed
        assert (
            await sealed.collect(ORDERS, Rule(0, None, None, tuple(await broker.service.list_subscriptions("orders"))))
            == 0
        )
        assert await ids(broker) == [0, 1, 2]


async def test_what_another_broker_owns_is_left_to_it(start_broker, monkeypatch):
    async with start_broker(retention_time=0.0) as broker:
        peer = await Peer.connect(broker)
        first = await split_topic(broker, peer)
        await drain(peer, first)
        await broker.service.split_segment("orders", 1)
        for hosted in broker.segments:
            await broker.segments.unload(hosted)
        opened = broker.segments.open

        async def refuse_the_first(spec, *, create):
            if spec.name.segment_id == 0:
                raise NotOwnerError("it is elsewhere")
            return await opened(spec, create=create)

        monkeypatch.setattr(broker.segments, "open", refuse_the_first)
        await broker.parts.retention.sweep()
        assert await ids(broker) == [0, 1, 2, 3, 4], "1 waits for its parent"
        monkeypatch.undo()
        await broker.parts.retention._collect(ORDERS)
        assert await ids(broker) == [2, 3, 4]


async def test_the_leader_is_asked_wherever_it_is(start_broker, monkeypatch):
    async with start_broker(retention_time=0.0) as broker:
        peer = await Peer.connect(broker)
        await drain(peer, await split_topic(broker, peer))
        asked = []

        async def not_here(topic, segment_id):
            raise NotOwnerError("another broker leads")

        async def forward(topic, method, arguments):
            asked.append((topic, method, arguments))
            return False

        monkeypatch.setattr(broker.service, "prune_segment", not_here)
        monkeypatch.setattr(broker.admin, "_forward", forward)
        await broker.parts.retention.sweep()
        assert asked == [(ORDERS, "prune_segment", {"segment_id": 0})]


# -- orphans -------------------------------------------------------------------------------------------------------


async def make_store(broker, name: SegmentName) -> None:
    """A store that appears on the disk without anybody's word."""
    await broker.store.create(name)
    await broker.store.release(name)


def orphan(topic: str = "orders", segment_id: int = 7, start: int = 0, end: int = 0x7FFF) -> SegmentName:
    return TopicName.parse(topic).segment(HashRange(start, end), segment_id)


async def sweep(broker) -> int:
    return await Orphans(broker.service, broker.segments).sweep(await broker.segments.on_disk())


async def test_42_stores_that_nobody_names_are_swept_at_the_start(start_broker):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await split_topic(broker, peer)
        await publish(peer, await peer.segment("other"))
        for name in (orphan(), orphan("gone", 0, 0, 0xFFFF), orphan("gone", 4)):
            await make_store(broker, name)
        await broker.store.cursors.create(orphan(), "s", 0)
        kept = {s.segment_id for s in (await broker.segments.on_disk())[ORDERS]} - {7}
    async with start_broker() as broker:
        claim = keys.segment(orphan("gone", 4)), keys.segment(orphan("gone", 0)), keys.segment(orphan())
        async with asyncio.timeout(20):
            while (  # noqa: ASYNC110 - nothing tells
                sum(map(len, (await broker.segments.on_disk()).values())) > 4
                or any([await broker.metadata.get(key) for key in claim])
            ):
                await asyncio.sleep(0.01)
        disk = await broker.segments.on_disk()
        assert {n.segment_id for n in disk[ORDERS]} == kept == {0, 1, 2}
        assert len(disk[TopicName.parse("other")]) == 1
        assert await broker.metadata.get(keys.cursor(orphan(), "s")) is None
        peer = await Peer.connect(broker)
        reader = await peer.consumer(segment, "reader", None)
        assert len(await peer.messages(reader, 5)) == 5


async def test_a_topic_whose_record_cannot_be_read_keeps_what_it_has(broker, peer: Peer):
    await split_topic(broker, peer)
    await make_store(broker, orphan("gone", 4))
    record = await broker.metadata.get(keys.topic(ORDERS))
    await broker.metadata.put(keys.topic(ORDERS), b"{}", indexes={"topics": "public/default/orders"})
    assert await sweep(broker) == 1, "the others are looked at all the same"
    assert len((await broker.segments.on_disk())[ORDERS]) == 3
    await broker.metadata.put(keys.topic(ORDERS), record.value, indexes={"topics": "public/default/orders"})


async def test_42_while_a_change_is_pending_nothing_of_the_topic_is_swept(
    broker, monkeypatch, peer: Peer, segment: str
):
    await publish(peer, segment)
    terminate, seen = broker.hosting.terminate_segment, []

    async def sweep_first(spec, *, term):
        await make_store(broker, orphan())
        seen.append(await sweep(broker) + await broker.segments.remove_orphan(orphan()))
        seen.append({n.segment_id for n in (await broker.segments.on_disk())[ORDERS]})
        return await terminate(spec, term=term)

    monkeypatch.setattr(broker.hosting, "terminate_segment", sweep_first)
    await broker.service.split_segment("orders", 0)
    assert seen == [0, {0, 1, 2, 7}]
    assert await sweep(broker) == 1
    assert await ids(broker) == sorted(n.segment_id for n in (await broker.segments.on_disk())[ORDERS])


async def test_42_a_reshape_that_begins_while_an_old_list_is_swept_keeps_its_children(broker, monkeypatch, peer: Peer):
    """The store was nobody's when it was listed, and is a child's by the time it is looked at."""
    await publish(peer, await peer.segment("orders"))
    child = orphan("orders", 1)
    await make_store(broker, child)
    listed = await broker.segments.on_disk()
    await broker.service.split_segment("orders", 0)
    assert await Orphans(broker.service, broker.segments).sweep(listed) == 0
    assert not await broker.segments.remove_orphan(child)
    assert await ids(broker) == [0, 1, 2]


async def test_42_a_segment_that_is_wanted_while_it_is_swept_comes_into_being_behind_it(broker, connect, monkeypatch):
    """The topic is created in the moment in which what an earlier one of that name left is deleted."""
    name = orphan("orders", 0, 0, 0xFFFF)
    await make_store(broker, name)
    delete, opened = broker.store.delete, []

    async def delete_while_wanted(name, term):
        await broker.service.create_topic("orders")
        spec = SegmentSpec(name, "fsync", (0xFFFF,))
        opened.append(asyncio.ensure_future(broker.segments.open(spec, create=True)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not opened[0].done()
        await delete(name, term)

    monkeypatch.setattr(broker.store, "delete", delete_while_wanted)
    assert await sweep(broker) == 1
    hosted = await opened[0]
    assert hosted.segment.next_offset == 0
    monkeypatch.undo()
    assert await sweep(broker) == 0
    peer = await connect()
    await publish(peer, await peer.segment("orders"))


async def test_42_a_topic_made_anew_keeps_its_segments_and_loses_what_the_old_one_left(broker, peer: Peer):
    await split_topic(broker, peer, subscription=None)
    await broker.service.delete_topic("orders")
    left = [orphan("orders", 0, 0, 0x7FFF), orphan("orders", 3), orphan("orders", 1, 0x8000, 0xFFFF)]
    await broker.service.create_topic("orders")
    segment = await peer.segment("orders")
    await publish(peer, segment)
    term = [h.term for h in broker.segments]
    for name in left:
        await make_store(broker, name)
    assert await sweep(broker) == 3
    assert [h.term for h in broker.segments] == term, "the live segment of the same id keeps its owner"
    assert [n.segment_id for n in (await broker.segments.on_disk())[ORDERS]] == [0]
    await publish(peer, segment)


# -- the wall clock is set -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hours", "restart"), [(-24, False), (24, False), (-24, True)])
async def test_a_clock_that_is_set_ends_no_retention_and_prolongs_none(
    start_broker, monkeypatch, later, hours, restart
):
    async with contextlib.AsyncExitStack() as stack:
        broker = await stack.enter_async_context(start_broker(retention_time=3600.0))
        peer = await Peer.connect(broker)
        await broker.parts.retention.sweep()
        await drain(peer, await split_topic(broker, peer))
        if restart:
            await stack.aclose()
            broker = await stack.enter_async_context(start_broker(retention_time=3600.0))
        set_clock = broker.clock.time_ms() + hours * HOUR_MS
        monkeypatch.setattr(broker.clock, "time_ms", lambda: set_clock)
        for passed in (0, 0.9, 0.2):
            assert await ids(broker) == [0, 1, 2]
            later(broker, passed)
            broker.parts.retention._sweeps = 0  # closed segments are looked at seldom
            await broker.parts.retention.sweep()
        assert await ids(broker) == [1, 2]
