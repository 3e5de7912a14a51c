"""Readers of ranges, and views of topics: planned work, from offset to offset, through every shape a topic takes."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

import engine

POLL_S = 0.005  # of what nobody announces


async def fill(client: engine.AsyncClient, topic: str, values: range, keys: int = 20) -> None:
    """Values n with the key n % keys."""
    async with await client.producer(topic) as producer:
        await producer.send_batch([b"%d" % n for n in values], keys=[b"k%d" % (n % keys) for n in values])
        await producer.flush()


async def reshaped(client: engine.AsyncClient) -> engine.TopicSegments:
    """300 messages over two segments, a split and a merge."""
    await client.admin.create_topic("t", segments=2, entry_buckets=8)
    await fill(client, "t", range(100))
    await client.admin.split_segment("t", 0)
    await fill(client, "t", range(100, 200))
    await client.admin.merge_segments("t", 2, 3)
    await fill(client, "t", range(200, 300))
    async with await client.topic_view("t") as view:
        return await view.segments(exact=True)


def everything(segments: engine.TopicSegments) -> dict[int, tuple[int, int]]:
    return {i: (s.first, s.end) for i, s in segments.segments.items()}


async def test_a_view_tells_what_there_is(client: engine.AsyncClient):
    found = await reshaped(client)
    assert {i: s.active for i, s in found.segments.items()} == {0: False, 1: True, 2: False, 3: False, 4: True}
    assert set(found.segments[4].parents) == {2, 3}
    assert found.segments[0].children == (2, 3)
    assert sum(s.end - s.first for s in found.segments.values()) == 300
    assert all(s.settled is not s.active for s in found.segments.values())
    assert (found.topic, found.key_hash, found.epoch) == ("topic://public/default/t", "xxh64", 2)
    assert found.earliest.positions == dict.fromkeys(range(5), 0)
    assert found.latest.positions == {i: s.end for i, s in found.segments.items()}


async def test_a_view_follows(client: engine.AsyncClient):
    await client.admin.create_topic("t", segments=1)
    async with await client.topic_view("t") as view:
        assert (await view.segments()).latest.positions == {0: 0}
        await fill(client, "t", range(10))
        assert (await view.segments()).latest.positions == {0: 10}
        await client.admin.split_segment("t", 0)
        assert sorted((await view.segments(exact=True)).segments) == [0, 1, 2]
        await client.admin.delete_topic("t")
        with pytest.raises(engine.NotFoundError):
            await view.segments(exact=True)


async def test_the_end_is_found_once(client: engine.AsyncClient):
    """A look that a receive in another thread has asked for may come behind it."""
    await client.admin.create_topic("t", segments=1)
    await fill(client, "t", range(10))
    async with await client.range_reader("t", {0: (0, 10)}) as reader:
        assert len(await reader.next_batch() or []) == 10
        for _ in range(2):
            reader._return_credit()
            assert await reader.next_batch() is None


async def test_what_was_acknowledged_before_is_seen_after(client: engine.AsyncClient):
    """Also in segments of which the view has not been told yet."""
    await client.admin.create_topic("t", segments=1)
    async with await client.topic_view("t") as view, await client.producer("t") as producer:
        for rank in range(6):
            await producer.send_batch([b"x"] * 10, keys=[b"k%d" % n for n in range(10)])
            await producer.flush()
            found = await view.segments()
            assert sum(s.end for s in found.segments.values()) == 10 * (rank + 1)
            assert await view.segments() is found
            await client.admin.split_segment("t", max(i for i, s in found.segments.items() if s.active))


async def test_open_transactions_hold_ends_back(client: engine.AsyncClient):
    """A sealed segment is settled when nothing in it is open; what is known of it before is asked again."""
    await client.admin.create_topic("t", segments=1)
    async with await client.producer("t") as producer, await client.topic_view("t") as view:
        await producer.send(b"before")
        async with client.transaction() as committed, client.transaction() as aborted:
            await producer.send(b"hidden", transaction=aborted)
            await producer.send(b"inside", transaction=committed)
            await producer.send(b"after")
            assert (await view.segments()).latest.positions == {0: 1}
            await client.admin.split_segment("t", 0)
            before = (await view.segments(exact=True)).segments[0]
            assert (before.end, before.active, before.settled) == (1, False, False)
            with pytest.raises(engine.InvalidArgumentError):
                await client.range_reader("t", {0: (0, 2)})
            await aborted.abort()
            assert (await view.segments()).segments[0].end == 2
        after = (await view.segments()).segments[0]
        assert (after.end, after.settled) == (4, True)
    async with await client.range_reader("t", {0: (0, 4)}) as reader:
        assert [message.value async for message in reader] == [b"before", b"inside", b"after"]
    for ranges in ({0: (1, 2)}, {0: (0, 2)}, {0: (1, 4)}):
        async with await client.range_reader("t", ranges, receive_queue_size=1) as reader:
            assert [m.id.offset async for m in reader] == [i for i in (0, 2, 3) if i in range(*ranges[0])]


async def test_places_are_resolved(client: engine.AsyncClient):
    found = await reshaped(client)
    async with await client.topic_view("t") as view:
        assert await view.resolve(engine.Checkpoint.latest()) == found.latest
        assert await view.resolve(engine.Checkpoint.earliest()) == found.earliest
        assert await view.resolve(found.latest) == found.latest
        long_ago = engine.Checkpoint.at_timestamp(datetime(2020, 1, 1, tzinfo=UTC))
        assert (await view.resolve(long_ago)).positions == found.earliest.positions
        another = engine.Checkpoint({0: 1}, epoch=0, topic="topic://public/default/u")
        with pytest.raises(engine.InvalidArgumentError):
            await view.resolve(another)


async def test_no_view_of_a_topic_that_is_not_there(client: engine.AsyncClient):
    with pytest.raises(engine.NotFoundError):
        await client.topic_view("nowhere")
    assert not await client.topic_exists("nowhere")


async def test_everything_in_order(client: engine.AsyncClient):
    """Parents come before children, so a key's messages come in the order of their sends."""
    found = await reshaped(client)
    async with await client.range_reader("t", everything(found)) as reader:
        messages = [message async for message in reader]
    assert sorted(int(m.value) for m in messages) == list(range(300))
    for key in {m.key for m in messages}:
        mine = [int(m.value) for m in messages if m.key == key]
        assert mine == sorted(mine)


async def test_ranges_begin_and_end_anywhere(client: engine.AsyncClient):
    """Inside entries as well, with any room for what is fetched ahead, in batches of any size."""
    found, rng = await reshaped(client), random.Random(5)
    for _ in range(60):
        ranges = {}
        for i, s in found.segments.items():
            low, high = sorted((rng.randint(s.first, s.end), rng.randint(s.first, s.end)))
            ranges[i] = (low, high)
        async with await client.range_reader("t", ranges, receive_queue_size=rng.choice([1, 10, 1000])) as reader:
            batches = [batch async for batch in reader.batches(rng.choice([1, 7, 1000]))]
        got = [(m.id.segment_id, m.id.offset) for batch in batches for m in batch]
        assert got == [(i, offset) for i, (low, high) in sorted(ranges.items()) for offset in range(low, high)]


async def test_buckets_share_entries_out_and_keys_leave_some_out(client: engine.AsyncClient):
    found = await reshaped(client)
    ranges, seen = everything(found), {}
    for part in range(2):
        buckets = (part * 0x8000, part * 0x8000 + 0x7FFF)
        async with await client.range_reader("t", ranges, buckets=buckets) as reader:
            for message in [message async for message in reader]:
                assert seen.setdefault(message.key, part) == part
                seen[message.value] = part
    assert sum(1 for value in seen if not value.startswith(b"k")) == 300
    async with await client.range_reader("t", ranges, keys=["k7"]) as reader:
        some = [message async for message in reader]
    assert sorted(int(m.value) for m in some if m.key == b"k7") == list(range(7, 300, 20))
    assert len(some) < 300
    assert {m.id.segment_id for m in some} <= set(found.holding("k7"))


async def test_nothing_to_read_is_no_wait(client: engine.AsyncClient):
    await reshaped(client)
    for ranges in ({}, {0: (3, 3)}):
        async with await client.range_reader("t", ranges) as reader:
            assert await reader.next_batch() is None
            assert await reader.next_batch() is None


@pytest.mark.parametrize("ranges", [{0: (5, 3)}, {0: (-1, 3)}, {0: (0, 10**9)}, [(0, 1)], None])
async def test_other_ranges_are_refused(client: engine.AsyncClient, ranges: object):
    await reshaped(client)
    with pytest.raises(engine.InvalidArgumentError):
        await client.range_reader("t", ranges)  # type: ignore[arg-type]


async def test_closing_is_not_the_end(client: engine.AsyncClient):
    """Who reads on is told, rather than that this was all."""
    found = await reshaped(client)
    reader = await client.range_reader("t", everything(found))
    await reader.close()
    with pytest.raises(engine.AlreadyClosedError):
        await reader.next_batch()


async def test_what_retention_deleted_is_told_or_counted(tmp_path):
    async with engine.open_async(tmp_path / "data", shared=False) as client:
        found = await reshaped(client)
        assert await client.broker.service.prune_segment("t", 0)
        lost = found.segments[0].end
        async with await client.range_reader("t", everything(found)) as reader:
            with pytest.raises(engine.NotFoundError, match="segment 0"):
                [batch async for batch in reader.batches()]
        async with await client.range_reader("t", everything(found), skip_deleted=True) as reader:
            assert sum([len(batch) async for batch in reader.batches()]) == 300 - lost
            assert reader.deleted == {0: lost}
        async with await client.topic_view("t") as view:
            assert 0 not in (await view.segments()).segments


def test_blocking_alike(blocking: engine.Client):
    blocking.admin.create_topic("t", segments=2)
    with blocking.producer("t") as producer:
        producer.send_batch([b"%d" % n for n in range(100)], keys=[b"k%d" % n for n in range(100)])
        producer.flush()
    with blocking.topic_view("t") as view:
        assert view.topic == "topic://public/default/t"
        found = view.segments()
        assert view.resolve(engine.Checkpoint.latest()) == found.latest
    with blocking.range_reader("t", everything(found)) as reader:
        assert reader.topic == view.topic
        tables = [batch.to_arrow() for batch in reader.batches(30)]
        assert sum(table.num_rows for table in tables) == 100
        assert reader.deleted == {}
        assert reader.next_batch() is None
    with blocking.range_reader("t", {0: (0, 1)}) as reader:
        assert [message.id.offset for message in reader] == [0]


async def unchanged(view: engine.AsyncTopicView) -> engine.TopicSegments:
    """What the view knows, once all owners would tell of more."""
    found = await view.segments()
    while not view.unchanged:
        view.listen()
        await asyncio.sleep(POLL_S)
    assert await view.segments() is found
    return found


async def changed(view: engine.AsyncTopicView) -> None:
    """Wait until it has heard of something."""
    while view.unchanged:  # noqa: ASYNC110 - no event announces it
        await asyncio.sleep(POLL_S)


async def test_a_view_hears_of_everything(client: engine.AsyncClient):
    """Without being asked, and of what is acknowledged before that is known; of hidden messages when they are not."""
    await client.admin.create_topic("t", segments=2)
    async with await client.topic_view("t") as view, await client.producer("t") as producer:
        assert not view.unchanged
        await unchanged(view)
        for n in range(4):
            await producer.send(b"x", key=b"k%d" % n)
            assert not view.unchanged
            assert sum((await unchanged(view)).latest.positions.values()) == n + 1
        async with client.transaction() as transaction:
            await producer.send(b"y", transaction=transaction)
            await transaction.flush()
            assert view.unchanged
        await changed(view)
        assert sum((await unchanged(view)).latest.positions.values()) == 5
        await client.admin.split_segment("t", 0)
        await changed(view)
        assert sorted((await unchanged(view)).segments) == [0, 1, 2, 3]
        await client.admin.delete_topic("t")
        await changed(view)
        with pytest.raises(engine.NotFoundError):
            await view.segments(exact=True)


async def test_a_view_that_is_closed_hears_nothing(client: engine.AsyncClient):
    await client.admin.create_topic("t")
    async with await client.topic_view("t") as view:
        view.listen()  # nothing was asked before
        assert not view.unchanged
        await unchanged(view)
    assert not view.unchanged
    with pytest.raises(engine.AlreadyClosedError):
        view.listen()


def test_a_blocking_view_hears(tmp_path: Path):
    with engine.open(tmp_path) as opened, opened.producer("t") as producer, opened.topic_view("t") as view:
        view.segments()
        while not view.unchanged:
            view.listen()
            time.sleep(POLL_S)
        producer.send(b"x")
        while view.unchanged:
            time.sleep(POLL_S)
        assert view.segments().latest.positions == {0: 1}
