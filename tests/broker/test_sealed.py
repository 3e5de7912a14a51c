"""How a segment ends: what gets in before, who is told what, and what a sealed segment still does."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from engine.control.base.ports import SegmentEnd
from engine.errors import EngineError, SegmentSealedError, StorageError
from engine.model.names import SegmentName
from engine.wire.commands import Command
from tests.kit.peer import Frame, Peer, delivered, leader_term, make_entries

SEALED = SegmentSealedError.code


def values(n: int) -> list[bytes]:
    return [b"%08d" % i for i in range(n)]


async def published(peer: Peer, count: int, topic: str = "orders", per_entry: int = 1) -> str:
    segment = await peer.segment(topic)
    producer = await peer.producer(segment)
    entries = make_entries(values(count), per_entry=per_entry)
    peer.publish(producer, entries)
    await peer.receipts(producer, len(entries))
    await peer.ask(Command.CLOSE_PRODUCER, producer_id=producer)
    return segment


async def seal(broker, topic: str = "orders") -> SegmentEnd:
    """Only the first step of a change: the layout says ACTIVE still."""
    term = await leader_term(broker, topic)
    return await broker.hosting.terminate_segment(await broker.service.segment_spec(topic, 0), term=term)


def ends(peer: Peer, consumer: int) -> list[int]:
    """The REACHED_ENDs that came and were not taken."""
    return [h["end"] for c, h, _ in peer.frames if c is Command.REACHED_END and h["consumer_id"] == consumer]


async def round_trip(peer: Peer, segment: str) -> None:
    for _ in range(2):
        await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest")


# -- producers -----------------------------------------------------------------------------------------------------


async def until_closed(peer: Peer, producer: int) -> tuple[list[int], Frame]:
    """(sequences acknowledged, the CLOSE_PRODUCER that ends it)."""
    acknowledged: list[int] = []
    while True:
        frame = await peer.take(Command.SEND_RECEIPT, Command.SEND_ERROR, Command.CLOSE_PRODUCER, producer_id=producer)
        if frame[0] is Command.CLOSE_PRODUCER:
            return acknowledged, frame
        if frame[0] is Command.SEND_RECEIPT:
            acknowledged += frame[1]["sequences"]
        else:
            assert frame[1]["code"] == SEALED


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20, 60])
async def test_g3_what_is_in_flight_is_receipted_before_the_end_or_refused_as_sealed(broker, connect, turns: int):
    peer, other = await connect(), await connect()
    segment = await peer.segment("orders")
    first, second = await peer.producer(segment, "a"), await other.producer(segment, "b")
    for i in range(40):
        peer.publish(first, make_entries([b"a%d" % i], producer="a", first=i))
        other.publish(second, make_entries([b"b%d" % i], producer="b", first=i))
    for _ in range(turns):
        await asyncio.sleep(0)
    ending = asyncio.ensure_future(seal(broker))
    for i in range(40, 60):
        peer.publish(first, make_entries([b"a%d" % i], producer="a", first=i))
        await asyncio.sleep(0)
    end = await ending
    acknowledged = []
    for p, producer, name in ((peer, first, b"a"), (other, second, b"b")):
        got, (_, closing, _) = await until_closed(p, producer)
        assert closing["code"] == SEALED
        assert got == list(range(len(got))), "what got in is a prefix of what was sent"
        acknowledged += [name + b"%d" % i for i in got]
        assert not [f for f in p.frames if f[0] in (Command.SEND_RECEIPT, Command.SEND_ERROR)], "the end comes last"
    assert end.offset == len(acknowledged), "whatever is in the segment was acknowledged"
    reader = await peer.consumer(segment, "reader", None)
    found = [v for _, v in await peer.messages(reader, end.offset)] if end.offset else []
    assert sorted(found) == sorted(acknowledged)


async def test_23_a_sealed_segment_of_the_present_layout_sends_producers_to_wait_for_the_next(start_broker):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await published(peer, 3)
        await seal(broker)
        with pytest.raises(SegmentSealedError, match="sealed at 3"):
            await peer.producer(segment)
    async with start_broker() as broker:  # what a crash between the seal and the commit leaves
        peer = await Peer.connect(broker)
        for access in ("shared", "exclusive", "exclusive_with_fencing", "wait_for_exclusive"):
            with pytest.raises(SegmentSealedError, match="sealed at 3"):
                await peer.producer(segment, access=access)
        (hosted,) = broker.segments
        assert hosted.segment._seal_confirmed, "before anybody is told of it (D4)"
        assert (await seal(broker)).offset == 3, "whoever finishes the change gets the same end"


async def test_25_a_producer_that_waits_for_exclusive_access_hears_that_the_segment_ended(broker, connect):
    peer, other = await connect(), await connect()
    segment = await peer.segment("orders")
    await peer.producer(segment, "holder", access="exclusive")
    waiting = asyncio.ensure_future(other.producer(segment, "next", access="wait_for_exclusive"))
    await round_trip(other, segment)
    await seal(broker)
    with pytest.raises(SegmentSealedError):
        await waiting
    (hosted,) = broker.segments
    assert not hosted.producers


async def test_a_failed_seal_lets_appends_in_again_and_is_repeated(broker, monkeypatch, peer: Peer):
    segment = await published(peer, 2)
    (hosted,) = broker.segments
    finish = hosted.segment._commit.finish

    async def refuse(state):
        raise StorageError("no")

    monkeypatch.setattr(type(hosted.segment._commit), "finish", lambda self, state: refuse(state))
    with pytest.raises(StorageError):
        await seal(broker)
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries(values(3)))
    await peer.receipts(producer, 3)
    monkeypatch.setattr(type(hosted.segment._commit), "finish", lambda self, state: finish(state))
    assert (await seal(broker)).offset == 3
    await peer.take(Command.CLOSE_PRODUCER, producer_id=producer, code=SEALED)


# -- consumers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 5])
@pytest.mark.parametrize("mode", ["exclusive", "reader"])
async def test_10_caught_up_then_sealed_is_told_without_another_message(broker, mode: str, count: int, peer: Peer):
    segment = await published(peer, count) if count else await peer.segment("orders")
    consumer = await peer.consumer(segment, mode, None if mode == "reader" else "s")
    if count:
        await peer.messages(consumer, count)
    await round_trip(peer, segment)
    assert ends(peer, consumer) == []
    await seal(broker)
    _, reached, _ = await peer.take(Command.REACHED_END, consumer_id=consumer)
    assert reached["end"] == count
    later = await peer.consumer(segment, "reader", None)
    if count:
        await peer.messages(later, count)
    await peer.take(Command.REACHED_END, consumer_id=later, end=count)
    await round_trip(peer, segment)
    assert ends(peer, consumer) == ends(peer, later) == [], "once"


async def test_10_a_consumer_without_credit_hears_of_the_end_once_it_has_everything(broker, peer: Peer):
    segment = await published(peer, 4)
    consumer = await peer.consumer(segment, "exclusive", credit=0)
    peer.flow(consumer, 1, 1)  # room for one entry
    assert len(await peer.messages(consumer, 1)) == 1
    await seal(broker)
    await round_trip(peer, segment)
    assert ends(peer, consumer) == []
    peer.flow(consumer, 10**6)
    assert len(await peer.messages(consumer, 3)) == 3
    await peer.take(Command.REACHED_END, consumer_id=consumer, end=4)


async def test_10_a_queue_that_acknowledged_everything_hears_of_the_end_at_once(broker, peer: Peer):
    segment = await published(peer, 5)
    consumers = [await peer.consumer(segment, "queue", name=name) for name in "ab"]
    while sum(f[1]["messages"] for f in peer.frames if f[0] is Command.MESSAGE) < 5:
        await round_trip(peer, segment)
    await peer.ack(consumers[0], ranges=[[0, 4]])
    assert ends(peer, consumers[0]) == []
    await seal(broker)
    for consumer in consumers:
        await peer.take(Command.REACHED_END, consumer_id=consumer, end=5)
    late = await peer.consumer(segment, "queue", name="late", credit=0)
    await peer.take(Command.REACHED_END, consumer_id=late, end=5)


async def test_22_a_sealed_segment_delivers_again_what_was_handed_back(start_broker):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await published(peer, 6, per_entry=2)
        consumer = await peer.consumer(segment, "queue")
        await peer.messages(consumer, 6)
        await peer.ack(consumer, ranges=[[0, 2]])
        await seal(broker)
        peer.send(Command.REDELIVER, {"consumer_id": consumer, "ranges": [[3, 5]]})
        again: dict[int, int] = {}
        while len(again) < 3:
            _, header, payload = await peer.take(Command.MESSAGE, consumer_id=consumer)
            counts = {o: c for a, b, c in header["redelivered"] for o in range(a, b + 1)}
            again |= {o: counts[o] for o, _ in delivered(header, payload)}
        assert again == {3: 1, 4: 1, 5: 1}
        await peer.ack(consumer, ranges=[[3, 3]])
        await round_trip(peer, segment)
        assert ends(peer, consumer) == [], "delivered is not acknowledged"
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        consumer = await peer.consumer(segment, "queue")
        assert [o for o, _ in await peer.messages(consumer, 2)] == [4, 5]
        other = await peer.consumer(segment, "queue", name="other")
        await peer.ask(Command.CLOSE_CONSUMER, consumer_id=consumer)
        assert [o for o, _ in await peer.messages(other, 2)] == [4, 5]
        assert ends(peer, other) == []
        await peer.ack(other, ranges=[[4, 5]])
        await peer.take(Command.REACHED_END, consumer_id=other, end=6)


async def test_10_queue_consumers_attach_to_sealed_segments_where_their_subscription_began(broker, peer: Peer):
    segment = await published(peer, 4)
    await seal(broker)
    await broker.service.create_subscription("orders", "new", initial_position="latest")
    await broker.hosting.delete_subscription(
        await broker.service.segment_spec("orders", 0), "new", term=await leader_term(broker, "orders")
    )  # as if it had been sealed before: a subscription has cursors in active segments only
    consumer = await peer.consumer(segment, "queue", "new")
    await peer.take(Command.REACHED_END, consumer_id=consumer, end=4)
    assert not [f for f in peer.frames if f[0] is Command.MESSAGE]
    consumer = await peer.consumer(segment, "queue", "all")
    assert [o for o, _ in await peer.messages(consumer, 4)] == [0, 1, 2, 3]


async def test_16_exclusive_consumers_attach_to_sealed_segments_before_and_after_a_restart(start_broker):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await published(peer, 5)
        await seal(broker)
        consumer = await peer.consumer(segment, "exclusive")
        await peer.messages(consumer, 5)
        await peer.take(Command.REACHED_END, consumer_id=consumer, end=5)
        await peer.ack(consumer, position=3)
        await peer.ask(Command.CLOSE_CONSUMER, consumer_id=consumer)
        (hosted,) = broker.segments
        assert await broker.segments.unload(hosted)
        consumer = await peer.consumer(segment, "exclusive")
        assert [o for o, _ in await peer.messages(consumer, 2)] == [3, 4]
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        consumer = await peer.consumer(segment, "exclusive")
        assert [o for o, _ in await peer.messages(consumer, 2)] == [3, 4]
        await peer.take(Command.REACHED_END, consumer_id=consumer, end=5)
        await peer.ack(consumer, position=5)


async def test_everybody_hears_of_the_end_also_when_whoever_asked_for_it_has_gone(broker, peer: Peer):
    segment = await published(peer, 3)
    producer = await peer.producer(segment)
    queue, alone = await peer.consumer(segment, "queue", "q"), await peer.consumer(segment, "exclusive", "s")
    await peer.messages(queue, 3)
    await peer.messages(alone, 3)
    await peer.ack(queue, ranges=[[0, 2]])
    (hosted,) = broker.segments
    drained = asyncio.Event()
    broker.hosting.watch_drained(hosted.spec, "q", drained.set)
    await round_trip(peer, segment)
    asking = asyncio.ensure_future(seal(broker))
    while not hosted.segment.sealing:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0)
    asking.cancel()
    await peer.take(Command.CLOSE_PRODUCER, producer_id=producer, code=SEALED)
    await peer.take(Command.REACHED_END, consumer_id=queue, end=3)
    await peer.take(Command.REACHED_END, consumer_id=alone, end=3)
    async with asyncio.timeout(20):
        await drained.wait()


# -- at the same time ----------------------------------------------------------------------------------------------


async def test_g3_neither_unloading_nor_closing_the_broker_undoes_a_seal(start_broker):
    for how in ("unload", "close", "cancel"):
        async with start_broker() as broker:
            peer = await Peer.connect(broker)
            segment = await published(peer, 3, how)
            spec = await broker.service.segment_spec(how, 0)
            term = await leader_term(broker, how)
            sealing = asyncio.ensure_future(broker.hosting.terminate_segment(spec, term=term))
            while not broker.segments.get(spec.name).segment.sealing:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0)
            if how == "unload":
                assert not await broker.segments.unload(broker.segments.get(spec.name)), "it is in use"
                assert (await sealing).offset == 3
            elif how == "cancel":
                sealing.cancel()
            else:
                await broker.close()
                with contextlib.suppress(EngineError):
                    await sealing
        async with start_broker() as broker:
            peer = await Peer.connect(broker)
            with pytest.raises(SegmentSealedError):
                await peer.producer(segment)


async def test_statistics_of_active_and_sealed_segments_name_their_consumers(broker, peer: Peer):
    segment = await published(peer, 6)
    spec = await broker.service.segment_spec("orders", 0)
    queue = await peer.consumer(segment, "queue", "q", name="worker")
    alone = await peer.consumer(segment, "exclusive", "s", name="reader")
    await peer.messages(queue, 6)
    await peer.messages(alone, 6)
    await peer.ack(queue, ranges=[[0, 1], [5, 5]])
    await peer.ack(alone, position=4)
    for sealed in (False, True):
        if sealed:
            await seal(broker)
        now = await broker.hosting.statistics(spec)
        assert (now.sealed, now.first_offset, now.next_offset) == (sealed, 0, 6)
        assert now.size_bytes > 0
        assert {n: (s.backlog, s.consumers) for n, s in now.subscriptions.items()} == {"q": (3, 1), "s": (2, 1)}
        (worker,), (reader,) = now.subscriptions["q"].members, now.subscriptions["s"].members
        assert (worker.name, worker.mode, worker.unacknowledged) == ("worker", "queue", 3)
        assert (reader.name, reader.mode, reader.unacknowledged) == ("reader", "exclusive", 2)
    never = type(spec)(SegmentName.parse(segment[:-1] + "9"), "fsync", (65535,))
    assert (await broker.hosting.statistics(never)).next_offset == 0
