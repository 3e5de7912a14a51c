"""What a topic's leader asks of a segment's owner: children created, segments deleted, and who is obeyed (L1)."""

from __future__ import annotations

import asyncio

import pytest

from engine.control.base.ports import segment_spec
from engine.errors import FencedError, NotFoundError, StorageError
from engine.metadata import keys
from engine.model.names import TopicName
from engine.wire.commands import Command
from tests.kit.peer import Peer, leader_term, make_entries


async def published(peer: Peer, count: int) -> str:
    segment = await peer.segment("orders")
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries([b"%d" % i for i in range(count)]))
    await peer.receipts(producer, count)
    return segment


async def split_by_hand(broker, topic: str = "orders") -> tuple[list, int]:
    """The specs of the two children that a split of segment 0 would make, and a term."""
    view = await broker.service.ensure_topic(topic, create=True)
    term = await leader_term(broker, topic)
    whole = view.layout.segment(0).hash_range
    middle = (whole.start + whole.end) // 2
    name = TopicName.parse(topic)
    halves = [type(whole)(whole.start, middle), type(whole)(middle + 1, whole.end)]
    base = segment_spec(name, view.layout, view.layout.segment(0))
    specs = [type(base)(name.segment(h, i + 1), base.durability, base.bucket_ends) for i, h in enumerate(halves)]
    return specs, term


async def test_42_children_are_created_with_cursors_at_the_earliest_once(broker):
    specs, term = await split_by_hand(broker)
    for _ in range(2):
        for spec in specs:
            await broker.hosting.create_segment(spec, ["a", "b"], term=term)
    for spec in specs:
        assert await broker.hosting.subscriptions(spec) == ["a", "b"]
        assert await broker.hosting.backlog(spec, "a") == 0
        assert broker.segments.get(spec.name).segment.next_offset == 0
    await broker.hosting.create_segment(specs[0], ["c"], term=term)
    assert await broker.hosting.subscriptions(specs[0]) == ["a", "b", "c"], "a subscription may join at a repetition"


async def test_d2_a_child_is_never_made_of_what_an_earlier_topic_left(broker):
    specs, term = await split_by_hand(broker)
    left = await broker.segments.open(specs[0], create=True)
    await left.segment.seal()
    with pytest.raises(StorageError, match="earlier topic"):
        await broker.hosting.create_segment(specs[0], [], term=term)
    await broker.hosting.delete_segment(specs[0], term=term)
    await broker.hosting.create_segment(specs[0], [], term=term)
    assert not broker.segments.get(specs[0].name).segment.sealed


async def test_who_creates_a_segment_in_the_moment_in_which_it_was_not_found_creates_it(broker, monkeypatch):
    """Retention looks at it without creating it; its attempt has failed, and is not forgotten yet."""
    specs, _ = await split_by_hand(broker)
    load, missed = broker.segments._load, asyncio.get_running_loop().create_future()

    async def watched(spec, create):
        try:
            return await load(spec, create)
        except NotFoundError:
            missed.set_result(None)  # wakes the other before those who hear that this ended
            raise

    async def create():
        await missed
        return await broker.segments.open(specs[0], create=True)

    monkeypatch.setattr(broker.segments, "_load", watched)
    creating = asyncio.create_task(create())
    await asyncio.sleep(0)
    assert await broker.segments.open_existing(specs[0]) is None
    assert (await creating).segment.next_offset == 0


async def test_creating_a_live_segment_once_more_changes_nothing(broker, peer: Peer):
    await published(peer, 3)
    spec, term = await broker.service.segment_spec("orders", 0), await leader_term(broker, "orders")
    await broker.hosting.create_segment(spec, [], term=term)
    assert broker.segments.get(spec.name).segment.next_offset == 3


async def test_a_deleted_segment_leaves_nothing_and_everybody_is_told(broker, peer: Peer):
    segment = await published(peer, 3)
    consumer = await peer.consumer(segment, "queue")
    reader = await peer.consumer(segment, "reader", None)
    producer = await peer.producer(segment)
    spec, term = await broker.service.segment_spec("orders", 0), await leader_term(broker, "orders")
    await asyncio.gather(*(broker.hosting.delete_segment(spec, term=term) for _ in range(3)))
    for command, field, ident in (
        (Command.CLOSE_CONSUMER, "consumer_id", consumer),
        (Command.CLOSE_CONSUMER, "consumer_id", reader),
        (Command.CLOSE_PRODUCER, "producer_id", producer),
    ):
        _, closing, _ = await peer.take(command, **{field: ident})
        assert closing["code"] == NotFoundError.code
    assert await broker.hosting.subscriptions(spec) == []
    assert not await broker.store.exists(spec.name)
    statistics = await broker.hosting.statistics(spec)
    assert statistics.next_offset == 0
    assert await broker.metadata.get(keys.segment(spec.name)) is None
    await broker.hosting.delete_segment(spec, term=term)


# -- leaders -------------------------------------------------------------------------------------------------------


async def test_l1_only_the_present_leader_is_obeyed(broker, peer: Peer):
    await published(peer, 3)
    hosting, spec = broker.hosting, await broker.service.segment_spec("orders", 0)
    term = await leader_term(broker, "orders")
    for wrong in (term - 1, term + 1):
        for act in (
            hosting.create_segment(spec, ["x"], term=wrong),
            hosting.terminate_segment(spec, term=wrong),
            hosting.inherit(spec, [], term=wrong),
            hosting.delete_segment(spec, term=wrong),
            hosting.create_subscription(spec, "x", "earliest", term=wrong),
            hosting.delete_subscription(spec, "s", term=wrong),
        ):
            with pytest.raises(FencedError, match=f"term {wrong}"):
                await act
    await broker.service.controllers.release(TopicName.parse("orders"))
    with pytest.raises(FencedError, match="there is no leader"):
        await hosting.terminate_segment(spec, term=term)
    newer = await leader_term(broker, "orders")
    assert newer > term
    await hosting.create_segment(spec, [], term=newer)
    with pytest.raises(FencedError):
        await hosting.terminate_segment(spec, term=term)
    assert not broker.segments.get(spec.name).segment.sealed


async def test_l1_a_leader_that_is_overtaken_while_its_call_waits_does_no_harm(broker, monkeypatch):
    """Its term was right when it asked, and is not when the segment is open at last."""
    hosting, spec = broker.hosting, await _spec_of_new(broker)
    term = await leader_term(broker, "orders")
    gate, opened = asyncio.Event(), broker.segments.open

    async def slow_open(spec, *, create):
        hosted = await opened(spec, create=create)
        await gate.wait()
        return hosted

    monkeypatch.setattr(broker.segments, "open", slow_open)
    sealing = asyncio.ensure_future(hosting.terminate_segment(spec, term=term))
    while broker.segments.get(spec.name) is None:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0)
    await broker.service.controllers.release(TopicName.parse("orders"))
    newer = await leader_term(broker, "orders")
    await hosting.delete_subscription(spec, "nobody", term=newer)
    gate.set()
    with pytest.raises(FencedError):
        await sealing
    assert not broker.segments.get(spec.name).segment.sealed


async def _spec_of_new(broker):
    await broker.service.ensure_topic("orders", create=True)
    return await broker.service.segment_spec("orders", 0)
