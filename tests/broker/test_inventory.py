"""The inventory: what a scrape shows of segments that are not open, in lists of bounded length and exact sums."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from engine.broker.hosting.inventory import Inventory, StoredSegment
from engine.broker.metrics.catalogue import metrics_text
from engine.broker.server import Broker
from engine.broker.upkeep.idle import IdleLoop
from engine.errors import CorruptionError
from engine.model.hashrange import HashRange
from engine.model.names import SegmentName, TopicName
from tests.kit.peer import Peer, make_entries, until
from tests.kit.prometheus import samples_of

WHOLE = HashRange(0, 0xFFFF)
BACKLOG = "engine_subscription_back_log"


def segment(namespace: str, topic: str, segment_id: int = 0) -> SegmentName:
    return TopicName("public", namespace, topic).segment(WHOLE, segment_id)


def record(name: SegmentName, backlog: int, size: int = 0) -> StoredSegment:
    return StoredSegment(name, size, 1, False, 4, backlog, (("s", backlog),))


def test_order_and_sums_are_those_of_the_records_after_any_changes() -> None:
    inventory, model, rng = Inventory(), dict[SegmentName, StoredSegment](), random.Random(7)
    for _ in range(3_000):
        name = segment(f"n{rng.randrange(3)}", f"t{rng.randrange(20)}", rng.randrange(3))
        what = rng.randrange(6)
        if what == 0:
            inventory.drop(name)
            model.pop(name, None)
        elif what == 1:
            inventory.keep(name.topic, [name])
            model = {k: v for k, v in model.items() if k.topic != name.topic or k == name}
        elif what == 2 and name in model:
            inventory.forget_subscription(name, "s")
            model[name] = inventory.get(name) or model[name]
            assert model[name].backlogs == ()
        else:
            model[name] = record(name, rng.randrange(50), rng.randrange(9))
            inventory.put(model[name])
    ranked = list(inventory)
    assert len(inventory) == len(ranked) == len(model)
    assert {one.name: one for one in ranked} == model
    order = [(-one.backlog, -one.size_bytes) for one in ranked]
    assert order == sorted(order)
    assert set(inventory.topics) == {name.topic for name in model}
    listed = ranked[:10]
    for namespace in ("n0", "n1", "n2"):
        others = [one for one in ranked[10:] if one.name.topic.namespace == namespace]
        rest = inventory.rest(listed)[f"public/{namespace}"]
        assert (rest.segments, rest.backlog) == (len(others), sum(one.backlog for one in others))
        assert rest.size_bytes == sum(one.size_bytes for one in others)


async def fill(broker: Broker, topics: int, messages: int) -> None:
    peer = await Peer.connect(broker)
    for number in range(topics):
        await broker.admin.create_topic(f"t{number}")
        await broker.admin.create_subscription(f"t{number}", "s", initial_position="earliest")
        producer = await peer.producer(await peer.segment(f"t{number}"))
        peer.publish(producer, make_entries([b"x"] * (messages + number)))
        await peer.receipts(producer, messages + number)
    await peer.close()


async def close_all(broker: Broker) -> None:
    loop = IdleLoop(broker.segments, 0.0)
    await until(lambda: not any(hosted.in_use for hosted in broker.segments))
    await loop.sweep()
    await loop.sweep()
    assert len(broker.segments) == 0


async def measured(broker: Broker) -> None:
    await until(lambda: broker.stocktaking.waiting == 0)


async def backlogs(broker: Broker) -> dict[tuple[str, str], float]:
    """By topic and subscription, of segments that are the only ones of their topics."""
    await measured(broker)
    found = samples_of(metrics_text(broker), BACKLOG)
    return {(topic.rpartition("/")[2], subscription): count for (topic, _, subscription), count in found.items()}


async def test_more_closed_segments_than_are_listed_are_summed_up_by_namespace(start_broker) -> None:
    async with start_broker(metrics_segments_max=2) as broker:
        await fill(broker, 5, 10)
        await close_all(broker)
        await measured(broker)
        check_listed(broker)  # what was taken when they were closed
    async with start_broker(metrics_segments_max=2) as broker:
        await measured(broker)
        check_listed(broker)  # what a start measures


def check_listed(broker: Broker) -> None:
    """Two of five topics have series of their own; the sums are exact."""
    text = metrics_text(broker)
    assert samples_of(text, "engine_segments") == {(): 5}
    assert samples_of(text, "engine_segments_unlisted") == {(): 3}
    backlog = samples_of(text, BACKLOG)
    named = {f"topic://public/default/t{n}": 10 + n for n in (3, 4)}
    assert {key[0]: value for key, value in backlog.items() if key[0]} == named
    assert backlog["", "", ""] == 10 + 11 + 12
    sizes = samples_of(text, "engine_storage_size")
    assert len(sizes) == 3
    assert sum(sizes.values()) == sum(one.size_bytes for one in broker.segments.inventory)


async def test_an_open_segment_shows_subscriptions_that_are_not_open_in_it(start_broker) -> None:
    async with start_broker() as broker:
        await fill(broker, 1, 10)
    async with start_broker() as broker:
        await measured(broker)
        peer = await Peer.connect(broker)
        name = await peer.segment("t0")
        producer = await peer.producer(name)
        assert await backlogs(broker) == {("t0", "s"): 10}
        peer.publish(producer, make_entries([b"y"] * 15))  # ten of them are duplicates
        await peer.receipts(producer, 15)
        assert await backlogs(broker) == {("t0", "s"): 15}
        consumer = await peer.consumer(name, "exclusive")
        await peer.messages(consumer, 15)
        await peer.ack(consumer, position=12)
        assert await backlogs(broker) == {("t0", "s"): 3}
        await peer.close()
        await close_all(broker)
        assert await backlogs(broker) == {("t0", "s"): 3}


async def test_subscriptions_and_topics_that_come_and_go_while_closed(start_broker) -> None:
    async with start_broker() as broker:
        await fill(broker, 2, 10)
        await close_all(broker)
        await broker.admin.create_subscription("t0", "late", initial_position="earliest")
        assert await backlogs(broker) == {("t0", "s"): 10, ("t0", "late"): 10, ("t1", "s"): 11}
        await broker.admin.delete_subscription("t0", "s")
        await broker.admin.delete_topic("t1")
        await broker.admin.create_topic("unused", segments=3)
        await until(lambda: len(broker.segments.inventory) == 4)
        assert await backlogs(broker) == {("t0", "late"): 10}
        sizes = samples_of(metrics_text(broker), "engine_storage_size")
        counted = Counter(topic.rpartition("/")[2] for topic, _ in sizes)
        assert counted == {"t0": 1, "unused": 3}
        assert len(broker.segments) == 0


async def test_damage_is_counted_before_anything_is_opened(start_broker) -> None:
    async with start_broker() as broker:
        await fill(broker, 2, 10)
        directory = Path(broker.store.directory(next(iter(broker.segments)).name))
    (path,) = directory.glob("*.log")  # noqa: ASYNC240
    path.write_bytes(b"\0" * 400)
    async with start_broker() as broker:
        await measured(broker)
        text = metrics_text(broker)
        assert samples_of(text, "engine_storage_damaged_segments") == {(): 1}
        assert samples_of(text, "engine_segments") == {(): 1}
        assert len(broker.segments) == 0


async def test_a_segment_whose_first_file_came_after_it_was_looked_for_is_not_damaged(start_broker) -> None:
    async with start_broker() as broker:
        await fill(broker, 1, 1)
        name = next(iter(broker.segments)).name
    async with start_broker() as broker:
        await broker.segments.check_there(name)  # it was recorded meanwhile, and its file is there
        shutil.rmtree(broker.store.directory(name))
        with pytest.raises(CorruptionError, match="has none of its files"):
            await broker.segments.check_there(name)
