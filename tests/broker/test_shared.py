"""A segment that several stream consumers share, bucket by bucket (PIP-486, semantics 16 to 20)."""

from __future__ import annotations

import asyncio
import logging

import pytest

from engine.broker.delivery import shared
from engine.errors import (
    ConsumerBusyError,
    FencedError,
    InvalidArgumentError,
    NotOwnerError,
    SubscriptionKindError,
)
from engine.model.subscriptions import InitialPosition
from engine.wire.commands import Command
from tests.broker.sharing import ack, even, hosted, opened, round_trip, share, taken, taken_until
from tests.kit.peer import Peer, leader_term

# -- attaching ---------------------------------------------------------------------------------------------------------


async def test_semantics_16_who_shares_a_segment_has_its_boundaries_or_its_layout_is_stale(peer: Peer):
    segment, _ = await opened(peer)
    stale = r"bucketBoundaries must be \[16383, 32767, 49151, 65535\], .* got \[32767, 65535\]"
    with pytest.raises(NotOwnerError, match=stale):
        await share(peer, segment, "a", even(2))
    with pytest.raises(InvalidArgumentError, match="bucketBoundaries"):
        await peer.consumer(segment, "shared")
    await share(peer, segment, "a")


async def test_semantics_16_each_bucket_goes_to_one_sharer_and_stays_in_order(broker, peer: Peer):
    segment, publisher = await opened(peer)
    consumers = [await share(peer, segment, name) for name in "abcd"]
    await publisher.publish([i % 4 for i in range(100)], per_entry=3)
    await round_trip(peer, segment)
    shares = [taken(peer, consumer) for consumer in consumers]
    assert sorted(sorted({b for b, _ in got}) for got in shares) == [[0], [1], [2], [3]]
    for got in shares:
        (bucket,) = {b for b, _ in got}
        assert [o for _, o in got] == [o for o, b in enumerate(publisher.buckets) if b == bucket]
    sharing = hosted(broker).sharing
    assert (sharing.sharers, sharing.buckets, sharing.withheld, sharing.drain) == (4, 4, 0, False)
    assert [c.bucket_count for c in hosted(broker).consumers] == [1, 1, 1, 1]
    assert [c.pending for c in hosted(broker).consumers] == [75, 75, 75, 75]
    assert (hosted(broker).mode, sharing.reassignments) == ("shared", 4)


async def test_more_sharers_than_buckets_leaves_some_idle(broker, peer: Peer):
    segment, publisher = await opened(peer, ends=even(2))
    consumers = [await share(peer, segment, name, even(2)) for name in "abc"]
    await publisher.publish([0, 1, 0, 1])
    await round_trip(peer, segment)
    assert sorted(len(taken(peer, consumer)) for consumer in consumers) == [0, 2, 2]


async def test_semantics_18_shared_and_exclusive_never_coexist(connect):
    peer, other = await connect(), await connect()
    segment, _ = await opened(peer)
    lone = await peer.consumer(segment, "exclusive", name="a")
    with pytest.raises(ConsumerBusyError, match="exclusive consumer 'a'"):
        await share(other, segment, "b")
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=lone)
    first, second = await share(peer, segment, "a"), await share(other, segment, "b")
    with pytest.raises(ConsumerBusyError, match="shared consumer 'b'"):
        await peer.consumer(segment, "exclusive", name="a")
    with pytest.raises(SubscriptionKindError):
        await peer.consumer(segment, "queue", name="q")
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=first)
    await other.ask(Command.CLOSE_CONSUMER, consumer_id=second)
    await peer.consumer(segment, "exclusive", name="a")


async def test_semantics_18_the_other_modes_earlier_session_of_the_same_consumer_makes_room(connect):
    peer, again = await connect(), await connect()
    segment, publisher = await opened(peer)
    await publisher.publish([0, 1])
    lone = await peer.consumer(segment, "exclusive", name="a")
    sharer = await share(again, segment, "a")
    _, closed, _ = await peer.take(Command.CLOSE_CONSUMER, consumer_id=lone)
    assert closed["code"] == FencedError.code
    assert len(await taken_until(again, sharer, 2)) == 2
    back = await peer.consumer(segment, "exclusive", name="a")
    _, closed, _ = await again.take(Command.CLOSE_CONSUMER, consumer_id=sharer)
    assert closed["code"] == FencedError.code
    assert len(await taken_until(peer, back, 2)) == 2


async def test_a_sharer_that_attaches_again_keeps_its_buckets_and_gets_what_it_had_again(connect, broker):
    peer, again = await connect(), await connect()
    segment, publisher = await opened(peer)
    await publisher.publish([0, 1, 2, 3] * 3)
    first, other = await share(peer, segment, "a", credit=0), await share(peer, segment, "b")
    peer.flow(first, 1000)
    got = await taken_until(peer, first, 6)
    second = await share(again, segment, "a")
    _, closed, _ = await peer.take(Command.CLOSE_CONSUMER, consumer_id=first)
    assert closed["code"] == FencedError.code
    assert await taken_until(again, second, 6) == got
    assert len(await taken_until(peer, other, 6)) == 6
    assert hosted(broker).sharing.reassignments == 2  # when "b" came
    assert len(hosted(broker).consumers) == 2


# -- moving buckets ----------------------------------------------------------------------------------------------------


async def test_semantics_17_a_moving_bucket_is_withheld_until_what_is_in_flight_is_acknowledged(broker, peer: Peer):
    segment, publisher = await opened(peer)
    a = await share(peer, segment, "a")
    await publisher.publish([0, 1, 2, 3] * 2)
    assert len(await taken_until(peer, a, 8)) == 8
    b = await share(peer, segment, "b")
    assert hosted(broker).sharing.withheld == 2
    await publisher.publish([0, 1, 2, 3])
    await round_trip(peer, segment)
    kept = taken(peer, a)
    moved = sorted({0, 1, 2, 3} - {bucket for bucket, _ in kept})
    assert (len(kept), taken(peer, b)) == (2, [])
    await ack(peer, a, buckets=[[moved[0], 8]])
    await round_trip(peer, segment)
    assert taken(peer, b) == [(moved[0], 8 + moved[0])]
    await ack(peer, a, buckets=[[moved[1], 4 + moved[1]]])  # all but the last one
    await round_trip(peer, segment)
    assert taken(peer, b) == []
    await ack(peer, a, position=8)
    await round_trip(peer, segment)
    assert taken(peer, b) == [(moved[1], 8 + moved[1])]
    assert (hosted(broker).sharing.withheld, taken(peer, a)) == (0, [])


@pytest.mark.parametrize("lost", [True, False])
async def test_semantics_17_what_a_sharer_that_is_gone_held_goes_first_and_in_order(connect, lost):
    leaver, peer = await connect(), await connect()
    segment, publisher = await opened(peer)
    a = await share(leaver, segment, "a", credit=0)
    leaver.flow(a, 6)
    await publisher.publish([0, 1, 2, 3] * 4)
    assert len(await taken_until(leaver, a, 6)) == 6
    b = await share(peer, segment, "b", credit=1000)
    await round_trip(peer, segment)
    before = taken(peer, b)
    if lost:
        leaver.stream.abort()
    else:
        await leaver.ask(Command.CLOSE_CONSUMER, consumer_id=a)
    after = await taken_until(peer, b, 16 - len(before))
    for bucket in range(4):
        assert [o for own, o in before + after if own == bucket] == [bucket, bucket + 4, bucket + 8, bucket + 12]


async def test_semantics_13_a_sharer_that_closes_acknowledges_nothing(peer: Peer):
    segment, publisher = await opened(peer)
    a, b = await share(peer, segment, "a"), await share(peer, segment, "b")
    await publisher.publish([0, 1, 2, 3])
    await round_trip(peer, segment)
    for consumer in (a, b):
        await peer.ask(Command.CLOSE_CONSUMER, consumer_id=consumer)
    answer = await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest", subscription="s")
    assert answer["result"]["acknowledged"] == 0


async def test_a_stuck_sharer_holds_up_its_own_buckets_only(peer: Peer):
    segment, publisher = await opened(peer)
    stuck = await share(peer, segment, "stuck", credit=0)
    others = [await share(peer, segment, name) for name in ("x", "y", "z")]
    await publisher.publish([i % 4 for i in range(400)])
    await round_trip(peer, segment)
    got = [taken(peer, consumer) for consumer in others]
    assert [len(g) for g in got] == [100, 100, 100]
    (bucket,) = {0, 1, 2, 3} - {b for g in got for b, _ in g}
    peer.flow(stuck, 10)
    first = await taken_until(peer, stuck, 10)
    peer.flow(stuck, 1000)
    rest = await taken_until(peer, stuck, 90)
    assert first + rest == [(bucket, o) for o in range(400) if publisher.buckets[o] == bucket]


@pytest.mark.parametrize("room", [shared.UNSENT_BYTES_MAX, 0])
async def test_a_full_connection_is_given_some_more_while_others_go_on(connect, broker, monkeypatch, room):
    """What is sent to it then is not read for it alone later."""
    monkeypatch.setattr(shared, "UNSENT_BYTES_MAX", room)
    slow_peer, peer = await connect(), await connect()
    segment, publisher = await opened(peer)
    slow, good = await share(slow_peer, segment, "slow"), await share(peer, segment, "good")
    full = next(c.connection for c in hosted(broker).consumers if c.name == "slow")
    full.pause_writing()
    await publisher.publish([i % 4 for i in range(40)])
    await round_trip(peer, segment)
    await round_trip(slow_peer, segment)
    got = taken(slow_peer, slow)
    assert (len(got), len(taken(peer, good))) == (20 if room else 0, 20)
    full.resume_writing()
    got += await taken_until(slow_peer, slow, 20 - len(got))
    assert [o for _, o in got] == [o for o in range(40) if publisher.buckets[o] in {b for b, _ in got}]


async def test_how_far_the_others_go_on_is_bounded_and_who_stops_them_is_named(connect, monkeypatch, caplog):
    monkeypatch.setattr(shared, "DUE_RUNS_MAX", 16)
    peer = await connect()
    segment, publisher = await opened(peer)
    stuck = await share(peer, segment, "stuck", credit=0)
    good = await share(peer, segment, "good")
    with caplog.at_level(logging.WARNING, "engine.broker.delivery.shared"):
        for _ in range(20):
            await publisher.publish([0, 1, 2, 3])
        await round_trip(peer, segment)
    got = taken(peer, good)
    assert 16 <= len(got) < 40
    assert "delivery is paused until" in caplog.text
    assert "'stuck': 0" in caplog.text
    peer.flow(stuck, 1000)
    await taken_until(peer, stuck, 40)
    got += await taken_until(peer, good, 40 - len(got))
    assert len(got) == 40


async def test_runs_that_nobody_acknowledges_are_bounded(connect, monkeypatch, broker):
    monkeypatch.setattr(shared, "RUNS_MAX", 16)
    peer = await connect()
    segment, publisher = await opened(peer)
    a = await share(peer, segment, "a")
    for _ in range(20):
        await publisher.publish([0, 1, 2, 3])
    await round_trip(peer, segment)
    got = taken(peer, a)
    assert 16 <= len(got) < 80
    while len(got) < 80:
        await ack(peer, a, position=got[-1][1] + 1)
        await round_trip(peer, segment)
        got += taken(peer, a)
    assert [o for _, o in got] == list(range(80))


# -- sealed, moved, and many -------------------------------------------------------------------------------------------


async def test_a_sealed_segment_is_drained_by_several_and_they_are_told(broker, peer: Peer):
    segment, publisher = await opened(peer)
    await publisher.publish([0, 1, 2, 3] * 3)
    term = await leader_term(broker, "orders")
    spec = await broker.service.segment_spec("orders", 0)
    await broker.hosting.terminate_segment(spec, term=term)
    drained: list[bool] = []
    a, b = await share(peer, segment, "a", credit=0), await share(peer, segment, "b", credit=0)
    broker.hosting.watch_drained(spec, "s", lambda: drained.append(True))
    for consumer in (a, b):
        peer.flow(consumer, 1000)
    await round_trip(peer, segment)
    assert hosted(broker).sharing.drain
    for consumer in (a, b):
        assert not drained
        await ack(peer, consumer, buckets=[[bucket, 12] for bucket, _ in taken(peer, consumer)])
    for consumer in (a, b):
        _, header, _ = await peer.take(Command.REACHED_END, consumer_id=consumer)
        assert header["end"] == 12
    assert drained == [True]


@pytest.mark.parametrize("to", [InitialPosition.EARLIEST, InitialPosition.LATEST, 5])
async def test_who_moves_the_cursor_restarts_everybody_from_there(broker, to, peer: Peer):
    segment, publisher = await opened(peer)
    await publisher.publish([0, 1, 2, 3] * 3)
    sharers = [await share(peer, segment, name) for name in "ab"]
    await round_trip(peer, segment)
    for consumer in sharers:
        await ack(peer, consumer, buckets=[[bucket, 8] for bucket, _ in taken(peer, consumer)])
    await broker.hosting.seek_subscription(await broker.service.segment_spec("orders", 0), "s", to)
    for consumer in sharers:
        _, closed, _ = await peer.take(Command.CLOSE_CONSUMER, consumer_id=consumer)
        assert closed["code"] == NotOwnerError.code
    start = {InitialPosition.EARLIEST: 0, InitialPosition.LATEST: 12}.get(to, to)
    again = [await share(peer, segment, name) for name in "ab"]
    await round_trip(peer, segment)
    assert sorted(o for consumer in again for _, o in taken(peer, consumer)) == list(range(start, 12))


async def test_who_attaches_while_a_seek_is_being_saved_starts_at_its_end(broker, monkeypatch, peer: Peer):
    segment, publisher = await opened(peer)
    await publisher.publish([0, 1, 2, 3])
    first = await share(peer, segment, "a")
    await round_trip(peer, segment)
    await ack(peer, first, position=len(taken(peer, first)))
    spec, saved, put = await broker.service.segment_spec("orders", 0), asyncio.Event(), broker.metadata.put

    async def slow_put(*args, **kwargs):
        await saved.wait()
        return await put(*args, **kwargs)

    monkeypatch.setattr(broker.metadata, "put", slow_put)
    seeking = asyncio.ensure_future(broker.hosting.seek_subscription(spec, "s", InitialPosition.EARLIEST))
    await peer.take(Command.CLOSE_CONSUMER, consumer_id=first)
    again = await share(peer, segment, "a")
    assert len(await taken_until(peer, again, 4)) == 4
    assert not seeking.done()
    saved.set()
    await seeking


async def test_what_comes_from_the_disk_is_shared_alike(start_broker):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment, publisher = await opened(peer)
        for _ in range(10):
            await publisher.publish([i * 7 % 4 for i in range(200)], per_entry=5)
    async with start_broker() as broker:  # nothing of it is in memory
        peer = await Peer.connect(broker)
        sharers = [await share(peer, segment, name, credit=0) for name in "abc"]
        got: list[list[tuple[int, int]]] = [[], [], []]
        while sum(map(len, got)) < 10_000:
            for consumer, found in zip(sharers, got, strict=True):
                peer.flow(consumer, 700, 40_000)
                await round_trip(peer, segment)
                found += taken(peer, consumer)
        assert sorted(o for found in got for _, o in found) == list(range(10_000))
        for found in got:
            for bucket in {b for b, _ in found}:
                assert [o for b, o in found if b == bucket] == [
                    o for o, b in enumerate(publisher.buckets) if b == bucket
                ]


async def test_1024_buckets_are_shared_evenly(broker, peer: Peer):
    segment, publisher = await opened(peer, ends=even(1024))
    sharers = [await share(peer, segment, f"c{i}", even(1024)) for i in range(5)]
    await publisher.publish([i * 389 % 1024 for i in range(2048)])
    await round_trip(peer, segment)
    got = [taken(peer, consumer) for consumer in sharers]
    assert sorted(len({b for b, _ in g}) for g in got) == [204, 205, 205, 205, 205]
    assert sorted(o for g in got for _, o in g) == list(range(2048))
    for consumer, g in zip(sharers, got, strict=True):
        await ack(peer, consumer, buckets=sorted({(b, 2048) for b, _ in g}))
    assert (hosted(broker).backlog, hosted(broker).cursor.acked_count) == (0, 0)


async def test_boundaries_may_be_any_that_rise(connect):
    ends = (0, 5, 6, 4_000, 65_000, 65_535)
    peer = await connect()
    segment, publisher = await opened(peer, ends=ends)
    a, b = await share(peer, segment, "a", ends), await share(peer, segment, "b", ends)
    await publisher.publish([0, 1, 2, 3, 4, 5] * 10)
    await round_trip(peer, segment)
    mine, theirs = taken(peer, a), taken(peer, b)
    assert not {bucket for bucket, _ in mine} & {bucket for bucket, _ in theirs}
    assert sorted(o for _, o in mine + theirs) == list(range(60))
