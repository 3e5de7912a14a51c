"""When a sealed segment is drained for a subscription, and who is told (semantics 7)."""

from __future__ import annotations

import asyncio

import pytest

from engine.broker.delivery import subscription as subscriptions
from engine.broker.hosting import segment_host
from engine.errors import NotFoundError, NotOwnerError, StorageError
from engine.model.subscriptions import InitialPosition
from engine.wire.commands import Command
from tests.kit.peer import Peer, leader_term, make_entries


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """What is tried again after a while is tried again soon."""
    monkeypatch.setattr(segment_host, "_WATCH_AGAIN_S", 0.01)
    monkeypatch.setattr(subscriptions, "SAVE_AGAIN_S", 0.01)


class Watch:
    """A watch_drained() that can be awaited."""

    def __init__(self, broker, spec, subscription: str = "s") -> None:
        self.fired = 0
        self.event = asyncio.Event()
        self.cancel = broker.hosting.watch_drained(spec, subscription, self._drained)

    def _drained(self) -> None:
        self.fired += 1
        self.event.set()

    async def wait(self) -> None:
        async with asyncio.timeout(20):
            await self.event.wait()
        assert self.fired == 1


async def sealed_topic(broker, peer: Peer, count: int = 5):
    """(segment name, spec) of a topic with `count` messages, the subscription "s", and a sealed segment."""
    segment = await peer.segment("orders")
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries([b"%d" % i for i in range(count)]))
    if count:
        await peer.receipts(producer, count)
    await broker.service.ensure_subscription("orders", "s", initial_position="earliest")
    spec = await broker.service.segment_spec("orders", 0)
    await broker.hosting.terminate_segment(spec, term=await leader_term(broker, "orders"))
    return segment, spec


async def quiet(peer: Peer, segment: str) -> None:
    for _ in range(3):
        await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest")


async def test_07_acknowledged_and_not_merely_delivered(broker, peer: Peer):
    segment, spec = await sealed_topic(broker, peer)
    watches = [Watch(broker, spec) for _ in range(3)]
    consumer = await peer.consumer(segment, "exclusive")
    await peer.messages(consumer, 5)
    await peer.ack(consumer, position=4)
    await quiet(peer, segment)
    assert [w.fired for w in watches] == [0, 0, 0]
    watches[1].cancel()
    await peer.ack(consumer, position=5)
    await watches[0].wait()
    await watches[2].wait()
    assert watches[1].fired == 0, "cancelled"
    watches[0].cancel()
    await Watch(broker, spec).wait()


@pytest.mark.parametrize("how", ["unloaded", "restarted"])
async def test_07_a_watch_that_begins_later_sees_the_same(start_broker, how: str):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment, spec = await sealed_topic(broker, peer)
        consumer = await peer.consumer(segment, "exclusive")
        await peer.messages(consumer, 5)
        await peer.ack(consumer, position=3)
        await peer.ask(Command.CLOSE_CONSUMER, consumer_id=consumer)
        if how == "unloaded":
            (hosted,) = broker.segments
            assert await broker.segments.unload(hosted)
            await _finish(broker, segment, spec)
    if how == "restarted":
        async with start_broker() as broker:
            await _finish(broker, segment, spec)


async def _finish(broker, segment: str, spec) -> None:
    watch = Watch(broker, spec)
    peer = await Peer.connect(broker)
    consumer = await peer.consumer(segment, "exclusive")
    assert [o for o, _ in await peer.messages(consumer, 2)] == [3, 4]
    assert watch.fired == 0
    (hosted,) = broker.segments
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=consumer)
    assert not await broker.segments.unload(hosted), "somebody waits for it"
    consumer = await peer.consumer(segment, "exclusive")
    await peer.ack(consumer, position=5)
    await watch.wait()


async def test_07_an_empty_segment_is_drained_at_once(broker, connect):
    _, spec = await sealed_topic(broker, await connect(), 0)
    await Watch(broker, spec).wait()


async def test_07_where_the_subscription_has_no_cursor_it_is_drained_and_gets_none(broker, connect):
    _, spec = await sealed_topic(broker, await connect())
    await Watch(broker, spec, "younger").wait()
    assert await broker.hosting.backlog(spec, "younger") == 0
    assert await broker.hosting.subscriptions(spec) == ["s"]


async def test_07_a_segment_without_a_store_is_drained(broker, connect):
    _, spec = await sealed_topic(broker, await connect())
    await broker.hosting.delete_segment(spec, term=await leader_term(broker, "orders"))
    await Watch(broker, spec).wait()
    assert not await broker.store.exists(spec.name), "looking makes none (semantics 28)"


async def test_07_a_seek_and_a_cleared_backlog_count(broker, connect):
    _, spec = await sealed_topic(broker, await connect())
    watch = Watch(broker, spec)
    await asyncio.sleep(0.02)
    assert watch.fired == 0
    await broker.hosting.seek_subscription(spec, "s", InitialPosition.LATEST)
    await watch.wait()
    await broker.hosting.seek_subscription(spec, "s", 2)
    again = Watch(broker, spec)
    await asyncio.sleep(0.02)
    assert again.fired == 0, "there is a backlog again"
    assert await broker.hosting.backlog(spec, "s") == 3


async def test_07_trouble_with_the_segment_delays_the_watch_and_does_not_end_it(broker, connect, monkeypatch):
    _, spec = await sealed_topic(broker, await connect(), 0)
    (hosted,) = broker.segments
    await broker.segments.unload(hosted)
    opened, failures = broker.segments.open, [StorageError("not now"), NotOwnerError("just closed")]

    async def fail_first(spec, *, create):
        if failures:
            raise failures.pop()
        return await opened(spec, create=create)

    monkeypatch.setattr(broker.segments, "open", fail_first)
    await Watch(broker, spec).wait()
    assert not failures


async def test_12_an_acknowledgement_that_could_not_be_saved_does_not_drain(broker, monkeypatch, peer: Peer):
    """Nobody acknowledges again: it is saved as soon as that is possible, and only then the segment is drained."""
    segment, spec = await sealed_topic(broker, peer)
    exclusive = await peer.consumer(segment, "exclusive")
    await broker.service.ensure_subscription("orders", "q", initial_position="earliest")
    queue = await peer.consumer(segment, "queue", "q")
    await peer.messages(exclusive, 5)
    await peer.messages(queue, 5)
    watch = Watch(broker, spec)
    metadata = broker.metadata
    put, broken = metadata.put, True

    async def refuse(*args, **kwargs):
        if broken:
            raise StorageError("the disk is full")
        return await put(*args, **kwargs)

    monkeypatch.setattr(metadata, "put", refuse)
    for act in (peer.ack(exclusive, position=5), peer.ack(queue, ranges=[[0, 4]])):
        with pytest.raises(StorageError):
            await act
    await asyncio.sleep(0.05)
    assert watch.fired == 0
    (hosted,) = broker.segments
    assert not await broker.subscriptions.drained(hosted, ["s"]), "nor may retention think so"
    with pytest.raises(StorageError):  # nor whoever assigns segments to consumers
        await broker.hosting.backlog(spec, "s")
    assert not [f for f in peer.frames if f[0] is Command.REACHED_END and f[1]["consumer_id"] == queue]
    broken = False
    await watch.wait()
    assert await broker.hosting.backlog(spec, "s") == 0
    await peer.take(Command.REACHED_END, consumer_id=queue, end=5)


async def test_07_an_acknowledgement_on_its_way_while_the_segment_is_sealed_drains_it(
    broker, monkeypatch, peer: Peer, segment: str, producer: int
):
    peer.publish(producer, make_entries([b"%d" % i for i in range(5)]))
    await peer.receipts(producer, 5)
    queue = await peer.consumer(segment, "queue", "q")
    await peer.messages(queue, 5)
    metadata = broker.metadata
    put, gate = metadata.put, asyncio.Event()

    async def slow_put(key, *args, **kwargs):
        if "/cursors/" in key:
            await gate.wait()
        return await put(key, *args, **kwargs)

    monkeypatch.setattr(metadata, "put", slow_put)
    acking = asyncio.ensure_future(peer.ack(queue, ranges=[[0, 4]]))
    await quiet(peer, segment)
    spec = await broker.service.segment_spec("orders", 0)
    await broker.hosting.terminate_segment(spec, term=await leader_term(broker, "orders"))
    watch = Watch(broker, spec, "q")
    await quiet(peer, segment)
    assert watch.fired == 0
    assert not [f for f in peer.frames if f[0] is Command.REACHED_END]
    gate.set()
    await acking
    await watch.wait()
    await peer.take(Command.REACHED_END, consumer_id=queue, end=5)


async def test_the_backlog_counts_only_what_is_there_and_not_acknowledged(broker, monkeypatch, peer: Peer):
    """Retention took the front, where the subscription had a hole and acknowledgements above it."""
    segment, spec = await sealed_topic(broker, peer, 20)
    consumer = await peer.consumer(segment, "queue")
    await peer.messages(consumer, 20)
    await peer.ack(consumer, ranges=[[5, 9], [15, 15]])
    assert await broker.hosting.backlog(spec, "s") == 14
    (hosted,) = broker.segments
    monkeypatch.setattr(type(hosted.segment), "first_offset", property(lambda self: 10))
    assert await broker.hosting.backlog(spec, "s") == 9
    watch = Watch(broker, spec)
    await peer.ack(consumer, ranges=[[10, 14], [16, 19]])
    await watch.wait()
    await peer.take(Command.REACHED_END, consumer_id=consumer, end=20)


async def test_how_far_a_subscription_is_that_does_not_exist_is_not_found(broker, peer: Peer):
    """Else whoever asks takes all of it for acknowledged."""
    segment, _ = await sealed_topic(broker, peer)
    asked = {"topic": segment, "at": "latest"}
    assert (await peer.ask(Command.SEGMENT_OFFSET, subscription="s", **asked))["result"]["acknowledged"] == 0
    await broker.service.ensure_subscription("orders", "later")
    answer = await peer.ask(Command.SEGMENT_OFFSET, subscription="later", **asked)
    assert answer["result"]["acknowledged"] == 5, "it began when the segment had ended"
    for name in ("s", "later"):
        await broker.service.delete_subscription("orders", name)
    for name in ("s", "later", "never"):
        with pytest.raises(NotFoundError, match=f"no subscription '{name}'"):
            await peer.ask(Command.SEGMENT_OFFSET, subscription=name, **asked)
