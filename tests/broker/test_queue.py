"""Queue consumption: dealing in turn, individual acknowledgements, redelivery (semantics 20 to 22, C2)."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from engine._native.format.offsets import range_set, runs
from engine.broker.delivery.redelivery import RedeliveryCounts
from engine.errors import InvalidArgumentError
from engine.wire.commands import Command
from tests.kit.peer import Peer, delivered, make_entries


def values(n: int) -> list[bytes]:
    return [b"%08d" % i for i in range(n)]


async def published(peer: Peer, count: int, per_entry: int = 1) -> str:
    segment = await peer.segment("work")
    producer = await peer.producer(segment)
    entries = make_entries(values(count), per_entry=per_entry)
    peer.publish(producer, entries)
    await peer.receipts(producer, len(entries))
    return segment


async def drain(peer: Peer, segment: str) -> None:
    """A round trip: everything the broker had sent before is there."""
    await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest")
    await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest")


def taken(peer: Peer, consumer: int) -> list[int]:
    found = []
    for command, header, payload in [f for f in peer.frames if f[0] is Command.MESSAGE]:
        if header["consumer_id"] == consumer:
            found += [o for o, _ in delivered(header, payload)]
            peer.frames.remove((command, header, payload))
    return found


async def test_entries_are_dealt_in_turn(peer: Peer):
    segment = await peer.segment("work")
    consumers = [await peer.consumer(segment, "queue", name=f"c{i}") for i in range(3)]
    await published(peer, 90)
    shares: list[list[int]] = [[], [], []]
    while sum(map(len, shares)) < 90:
        await drain(peer, segment)
        for share, consumer in zip(shares, consumers, strict=True):
            share += taken(peer, consumer)
    assert sorted(o for share in shares for o in share) == list(range(90))
    assert all(10 <= len(share) <= 60 for share in shares)


async def test_closing_a_consumer_returns_its_messages_to_the_others_at_once(connect):
    peer, other = await connect(), await connect()
    segment = await published(peer, 20)
    first = await peer.consumer(segment, "queue", name="first")
    assert len(await peer.messages(first, 20)) == 20
    await peer.ack(first, ranges=[[0, 4], [7, 7]])
    second = await other.consumer(segment, "queue", name="second")
    peer.stream.abort()
    got: dict[int, int] = {}
    while len(got) < 14:
        _, header, payload = await other.take(Command.MESSAGE, consumer_id=second)
        counts = {o: c for a, b, c in header.get("redelivered") or () for o in range(a, b + 1)}
        got.update({o: counts.get(o, 0) for o, _ in delivered(header, payload)})
    assert got == dict.fromkeys([5, 6, *range(8, 20)], 1)


async def test_redeliver_raises_the_count_each_time(peer: Peer):
    segment = await published(peer, 3, per_entry=3)
    consumer = await peer.consumer(segment, "queue")
    await peer.messages(consumer, 3)
    for count in range(1, 6):
        peer.send(Command.REDELIVER, {"consumer_id": consumer, "ranges": [[1, 1]]})
        _, header, payload = await peer.take(Command.MESSAGE, consumer_id=consumer)
        assert [o for o, _ in delivered(header, payload)] == [1]
        assert header["redelivered"] == [[1, 1, count]]
        assert header.get("skip") is None  # the one message is sent, not the entry
    await peer.ack(consumer, ranges=[[1, 1]])
    peer.send(Command.REDELIVER, {"consumer_id": consumer, "ranges": [[0, 2]]})
    got = [o for o, _ in await peer.messages(consumer, 2)]
    assert got == [0, 2]


async def test_acknowledged_messages_are_never_redelivered_across_a_restart(start_broker):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await published(peer, 100, per_entry=10)
        consumer = await peer.consumer(segment, "queue")
        await peer.messages(consumer, 100)
        await peer.ack(consumer, ranges=[[0, 24], [30, 39], [55, 55], [99, 99]])
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        consumer = await peer.consumer(segment, "queue")
        acked = {*range(25), *range(30, 40), 55, 99}
        got = [o for o, _ in await peer.messages(consumer, 100 - len(acked))]
        assert got == [o for o in range(100) if o not in acked]
        await drain(peer, segment)
        assert taken(peer, consumer) == []


async def test_an_id_from_a_first_delivery_stays_valid(connect):
    first, second = await connect(), await connect()
    segment = await published(first, 4)
    a = await first.consumer(segment, "queue", name="a")
    await first.messages(a, 4)
    await first.ask(Command.CLOSE_CONSUMER, consumer_id=a)
    b = await second.consumer(segment, "queue", name="b")
    await second.messages(b, 4)
    again = await first.consumer(segment, "queue", name="a")
    await first.ack(again, ranges=[[2, 2]])
    await second.ask(Command.CLOSE_CONSUMER, consumer_id=b)
    assert sorted(o for o, _ in await first.messages(again, 3)) == [0, 1, 3]


async def test_priority_decides_who_is_served_first(peer: Peer):
    segment = await published(peer, 30)
    low = await peer.consumer(segment, "queue", name="low", credit=0, priority=1)
    high = await peer.consumer(segment, "queue", name="high", credit=0, priority=0)
    peer.flow(high, 10, 1 << 20)
    first = [o for o, _ in await peer.messages(high, 10)]
    peer.flow(low, 100)
    rest = [o for o, _ in await peer.messages(low, 30 - len(first))]
    assert sorted(first + rest) == list(range(30))
    assert first == list(range(len(first)))


async def test_a_stuck_queue_consumer_does_not_hold_up_the_others(connect):
    peer, stuck = await connect(), await connect()
    segment = await peer.segment("work")
    held = await stuck.consumer(segment, "queue", name="stuck", credit=5)
    good = await peer.consumer(segment, "queue", name="good")
    await published(peer, 200)
    got: set[int] = set()
    while len(got) < 150:
        got |= {o for o, _ in await peer.messages(good, 1)}
    await drain(stuck, segment)
    assert sum(f[1]["messages"] for f in stuck.frames if f[0] is Command.MESSAGE) <= 100
    assert held


async def test_redelivery_waits_for_nobody_new(peer: Peer):
    """Handed-back messages are dealt although the queue waits at the end of the segment."""
    segment = await published(peer, 5)
    consumer = await peer.consumer(segment, "queue")
    await peer.messages(consumer, 5)
    await drain(peer, segment)
    peer.send(Command.REDELIVER, {"consumer_id": consumer, "ranges": [[0, 4]]})
    assert sorted(o for o, _ in await peer.messages(consumer, 5)) == [0, 1, 2, 3, 4]


def test_redelivery_counts_add_up():
    counts = RedeliveryCounts()
    model: dict[int, int] = {}
    for step in range(1, 40):
        offsets = range_set(step % 7, step % 7 + step % 11)
        counts.increment(offsets)
        for o in offsets:
            model[o] = model.get(o, 0) + 1
    assert {o: counts.count(o) for o in range(30) if counts.count(o)} == model
    flat = {o: c for first, last, c in counts.ranges(0, 29) for o in range(first, last + 1)}
    assert flat == model
    counts.clear(range_set(3, 5))
    assert [counts.count(o) for o in (3, 4, 5)] == [0, 0, 0]
    assert counts.count(6) == model[6]


def test_runs():
    assert runs(range_set(5, 9)) == [[5, 9]]
    assert runs(range_set(5, 9) | range_set(11, 11)) == [[5, 9], [11, 11]]
    assert runs(range_set(5, 9) & range_set(20, 30)) == []


def test_counts_of_redeliveries_are_given_to_another_broker():
    counts = RedeliveryCounts()
    for offsets in ([1, 2, 3, 70_000], [2, 3], [3, 70_000], [3], [3]):
        counts.increment(BitMap64(offsets))
    packed = counts.pack()
    assert packed == [(1, 1, 1), (2, 2, 2), (3, 3, 5), (70_000, 70_000, 2)]
    again = RedeliveryCounts.unpack([list(one) for one in packed])
    assert again.pack() == packed
    again.clear(BitMap64([1, 2, 3, 70_000]))
    assert not again
    assert RedeliveryCounts().pack() == []
    assert not RedeliveryCounts.unpack([])


@pytest.mark.parametrize(
    "ranges",
    [7, ["x"], [[1, 2]], [[2, 1, 1]], [[-1, 1, 1]], [[0, 1, 0]], [[0, 1, 1 << 32]], [[0, 1 << 62, 1]], [[0, 1, "1"]]],
)
def test_malformed_counts_are_refused(ranges):
    with pytest.raises(InvalidArgumentError, match="redelivery counts must be"):
        RedeliveryCounts.unpack(ranges)
