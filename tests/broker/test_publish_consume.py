"""Publishing and consuming over real storage, with raw frames."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import (
    ConsumerBusyError,
    CorruptionError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    ProducerBusyError,
    UnsupportedError,
)
from engine.wire.commands import Command
from tests.kit.peer import Peer, delivered, make_entries


def values(n: int, size: int = 20) -> list[bytes]:
    return [f"{i:08d}".encode().ljust(size, b".") for i in range(n)]


async def test_published_is_acknowledged_in_order_and_delivered(peer: Peer, segment: str, producer: int):
    sent = values(1000)
    entries = make_entries(sent, per_entry=10)
    for start in range(0, len(entries), 7):
        peer.publish(producer, entries[start : start + 7])
    sequences, offsets = await peer.receipts(producer, len(entries))
    assert sequences == offsets == list(range(0, 1000, 10))
    consumer = await peer.consumer(segment, "exclusive")
    got = await peer.messages(consumer, 1000)
    assert got == list(enumerate(sent))


async def test_delivery_follows_publishing_without_asking_again(peer: Peer, segment: str):
    consumer = await peer.consumer(segment, "exclusive")
    producer = await peer.producer(segment)
    for i, entry in enumerate(make_entries(values(20))):
        peer.publish(producer, [entry])
        assert [o for o, _ in await peer.messages(consumer, 1)] == [i]


async def test_large_entries_go_through(peer: Peer):
    segment = await peer.segment("big")
    producer = await peer.producer(segment)
    sent = [bytes([i]) * 5_000_000 for i in range(6)]
    for entry in make_entries(sent):
        peer.publish(producer, [entry])
    await peer.receipts(producer, 6)
    consumer = await peer.consumer(segment, "reader", None, start=0)
    assert [v for _, v in await peer.messages(consumer, 6)] == sent


async def test_duplicates_are_acknowledged_once_stored(peer: Peer, segment: str, producer: int):
    entries = make_entries(values(3))
    peer.publish(producer, entries)
    peer.publish(producer, entries)
    _, offsets = await peer.receipts(producer, 6)
    assert offsets == [0, 1, 2, 0, 1, 2]
    answer = await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest")
    assert answer["result"] == {"offset": 3, "first": 0, "end": 3, "sealed": False}


async def test_a_damaged_entry_is_refused_alone(peer: Peer, producer: int):
    good, bad, after = make_entries(values(3))
    broken = bytearray(bad)
    broken[-10] ^= 1
    peer.publish(producer, [good])
    peer.publish(producer, [bytes(broken)])
    assert await peer.receipts(producer, 1) == ([0], [0])
    _, refusal, _ = await peer.take(Command.SEND_ERROR, producer_id=producer)
    assert (refusal["sequence"], refusal["code"]) == (1, CorruptionError.code)
    peer.publish(producer, [bad, after])
    assert await peer.receipts(producer, 2) == ([1, 2], [1, 2])


async def test_garbage_as_entries_is_refused(peer: Peer):
    producer = await peer.producer(await peer.segment("orders"))
    for payload in (b"", b"garbage!", bytes(256), b"ENTR" + bytes(252)):
        peer.send(Command.SEND, {"producer_id": producer, "entries": 1}, payload)
        _, refusal, _ = await peer.take(Command.SEND_ERROR, producer_id=producer)
        assert refusal["code"] in (CorruptionError.code, InvalidArgumentError.code)


async def test_reader_starts_where_it_is_told(peer: Peer, segment: str, producer: int):
    peer.publish(producer, make_entries(values(30), per_entry=10))
    await peer.receipts(producer, 3)
    ident = peer.next_id()
    answer = await peer.ask(
        Command.SUBSCRIBE, consumer_id=ident, topic=segment, consumer_name="r", mode="reader", start=15
    )
    assert (answer["position"], answer["first"]) == (15, 0)
    peer.flow(ident, 100)
    assert [o for o, _ in await peer.messages(ident, 20)] == list(range(10, 30))
    far = await peer.ask(
        Command.SUBSCRIBE, consumer_id=peer.next_id(), topic=segment, consumer_name="r", mode="reader", start=10**9
    )
    assert far["position"] == 30


async def test_nothing_is_sent_without_credit(peer: Peer, segment: str, producer: int):
    peer.publish(producer, make_entries(values(100)))
    await peer.receipts(producer, 100)
    consumer = await peer.consumer(segment, "exclusive", credit=0)
    await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest")
    assert not [f for f in peer.frames if f[0] is Command.MESSAGE]
    size = len(make_entries(values(1))[0])
    peer.flow(consumer, 1, size)
    assert len(await peer.messages(consumer, 1)) == 1
    peer.flow(consumer, 10, 5 * size)
    got = await peer.messages(consumer, 1)
    await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest")
    assert len(got) + sum(f[1]["messages"] for f in peer.frames if f[0] is Command.MESSAGE) <= 11


async def test_latest_and_time_offsets(peer: Peer, segment: str, producer: int):
    peer.publish(producer, make_entries(values(5)))
    await peer.receipts(producer, 5)
    for at, offset in (("earliest", 0), ("latest", 5), (0, 0), (2**53, 5)):
        assert (await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at=at))["result"]["offset"] == offset
    with pytest.raises(InvalidArgumentError):
        await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="yesterday")


async def test_unknown_segments_and_topics_are_not_found(peer: Peer):
    with pytest.raises(NotFoundError):
        await peer.lookup("nothing", create=False)
    segment = await peer.segment("orders")
    for name in (segment[:-1] + "7", segment.replace("0000-", "0001-"), segment.replace("orders", "others")):
        with pytest.raises(NotFoundError):
            await peer.producer(name)
    with pytest.raises(InvalidArgumentError):
        await peer.producer("no name of a segment")


async def test_modes_that_do_not_exist_are_refused_by_name(peer: Peer, segment: str):
    with pytest.raises(InvalidArgumentError, match="exclusive, shared, queue, reader"):
        await peer.consumer(segment, "loud")
    with pytest.raises(InvalidArgumentError, match="shared, exclusive"):
        await peer.producer(segment, access="greedy")


async def test_exclusive_access(connect):
    first, second = await connect(), await connect()
    segment = await first.segment("orders")
    held = await first.producer(segment, "a", "exclusive")
    with pytest.raises(ProducerBusyError, match="'a'"):
        await second.producer(segment, "b")
    with pytest.raises(ProducerBusyError):
        await second.producer(segment, "b", "exclusive")
    waiting = asyncio.ensure_future(second.producer(segment, "c", "wait_for_exclusive"))
    await first.ask(Command.CLOSE_PRODUCER, producer_id=held)
    ident = await asyncio.wait_for(waiting, 10)
    await first.producer(segment, "d", "exclusive_with_fencing")
    _, closing, _ = await second.take(Command.CLOSE_PRODUCER, producer_id=ident)
    assert closing["code"] == FencedError.code


async def test_a_producer_name_is_held_by_one_connection(connect):
    first, second = await connect(), await connect()
    segment = await first.segment("orders")
    await first.producer(segment, "a")
    with pytest.raises(ProducerBusyError):
        await second.producer(segment, "a")
    again = await first.producer(segment, "a")
    await first.take(Command.CLOSE_PRODUCER, code=FencedError.code)
    first.publish(again, make_entries(values(1), producer="a"))
    await first.receipts(again, 1)


async def test_a_dead_rival_makes_room(connect):
    dead, living = await connect(), await connect()
    segment = await dead.segment("orders")
    await dead.producer(segment, "a")
    dead.answer_pings = False
    await asyncio.wait_for(living.producer(segment, "a"), 10)
    await asyncio.wait_for(dead.lost, 10)


async def test_one_exclusive_consumer_at_a_time(connect):
    first, second = await connect(), await connect()
    segment = await first.segment("orders")
    mine = await first.consumer(segment, "exclusive", name="one")
    with pytest.raises(ConsumerBusyError, match="'one'"):
        await second.consumer(segment, "exclusive", name="two")
    with pytest.raises(ConsumerBusyError):
        await second.consumer(segment, "queue", name="two")
    await second.consumer(segment, "exclusive", name="one")
    _, closing, _ = await first.take(Command.CLOSE_CONSUMER, consumer_id=mine)
    assert closing["code"] == FencedError.code
    producer = await first.producer(segment)
    first.publish(producer, make_entries(values(1)))
    await first.receipts(producer, 1)
    assert not [f for f in first.frames if f[0] is Command.MESSAGE]


async def test_fenced_consumers_acks_are_refused(connect):
    first, second = await connect(), await connect()
    segment = await first.segment("orders")
    producer = await first.producer(segment)
    first.publish(producer, make_entries(values(3)))
    await first.receipts(producer, 3)
    old = await first.consumer(segment, "exclusive", name="one")
    await first.messages(old, 3)
    new = await second.consumer(segment, "exclusive", name="one")
    with pytest.raises(Exception, match="not attached"):
        await first.ack(old, position=3)
    assert [o for o, _ in await second.messages(new, 3)] == [0, 1, 2]


async def test_acks_out_of_range_are_refused(peer: Peer, segment: str):
    consumer = await peer.consumer(segment, "exclusive")
    for fields in ({"position": 1}, {"position": -1}, {"ranges": [[0, 0]]}):
        with pytest.raises(InvalidArgumentError):
            await peer.ack(consumer, **fields)
    reader = await peer.consumer(segment, "reader", None)
    with pytest.raises(UnsupportedError):
        await peer.ack(reader, position=0)


async def test_closed_consumers_get_nothing_more(peer: Peer, segment: str):
    consumer = await peer.consumer(segment, "exclusive")
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=consumer)
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries(values(3)))
    await peer.receipts(producer, 3)
    again = await peer.consumer(segment, "exclusive")
    await peer.messages(again, 3)
    assert not [f for f in peer.frames if f[0] is Command.MESSAGE]


async def test_ids_in_use_are_refused(peer: Peer, segment: str):
    ident = await peer.producer(segment)
    with pytest.raises(InvalidArgumentError, match="in use"):
        await peer.ask(Command.PRODUCER, producer_id=ident, topic=segment, producer_name="q", access_mode="shared")


async def test_sends_of_unknown_producers_are_refused(peer: Peer):
    peer.publish(99, make_entries(values(1)))
    _, refusal, _ = await peer.take(Command.SEND_ERROR, producer_id=99)
    assert refusal["code"] == NotFoundError.code


async def test_a_block_is_one_run_of_bytes_for_many_entries(peer: Peer, segment: str, producer: int):
    peer.publish(producer, make_entries(values(2000), per_entry=2))
    await peer.receipts(producer, 1000)
    consumer = await peer.consumer(segment, "exclusive")
    _, header, payload = await peer.take(Command.MESSAGE, consumer_id=consumer)
    assert header["messages"] == 2000
    assert len(delivered(header, payload)) == 2000
