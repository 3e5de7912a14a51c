"""A stream consumer with some of the buckets of a segment (semantics 11, 12, 16, 18, 19)."""

from __future__ import annotations

import asyncio

import pytest

from engine.client import Message, MessageId
from engine.client.consume.stream_consumer import AsyncStreamConsumer
from engine.errors import FencedError
from engine.model.positions import bucket_position
from engine.wire.commands import Command
from tests.client.shared_broker import BUCKETS, ENDS, SharedBroker

MODES = ["exclusive", "shared"]


@pytest.fixture
def shared() -> SharedBroker:
    return SharedBroker()


async def take(consumer: AsyncStreamConsumer, count: int) -> list[Message]:
    found: list[Message] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += await consumer.receive_batch(count - len(found))
    return found


async def flip(broker: SharedBroker, *, shared: bool) -> None:
    """The controller gives the segment out in the other way."""
    broker.shared = shared
    broker.last.assign()  # type: ignore[no-untyped-call]
    await broker.settle()


def places(**buckets: int) -> dict[int, int]:
    """b0=3: the position 3 in bucket 0."""
    return {bucket_position(0, int(name[1:])): position for name, position in buckets.items()}


async def test_semantics_16_who_shares_names_all_boundaries(shared: SharedBroker) -> None:
    async with shared.client() as client, await client.stream_consumer("t", "s"):
        [subscribe] = shared.of(Command.SUBSCRIBE)
        assert (subscribe["mode"], subscribe["bucketBoundaries"]) == ("shared", ENDS)


async def test_semantics_11_an_acknowledgement_says_how_far_each_bucket_was_delivered(shared: SharedBroker) -> None:
    async with shared.client() as client, await client.stream_consumer("t", "s") as consumer:
        shared.put(2, b"a", b"b")
        shared.put(0, b"c")
        shared.put(2, b"d")
        got = await take(consumer, 4)
        assert [dict(m.id.positions) for m in got] == [
            places(b2=1), places(b2=2), places(b2=2, b0=3), places(b2=4, b0=3)
        ]  # fmt: skip
        await consumer.acknowledge_cumulative(MessageId.from_bytes(got[1].id.to_bytes()))
        await consumer.acknowledge_cumulative(got[3])
        await consumer.acknowledge_cumulative(got[0])  # no news
        assert shared.bucket_acks() == [{2: 2}, {2: 4, 0: 3}]
        assert consumer._queue.positions == {}


async def test_semantics_12_what_was_lost_with_the_connection_is_sent_again_before_messages_are_asked_for(
    shared: SharedBroker,
) -> None:
    async with shared.client() as client, await client.stream_consumer("t", "s") as consumer:
        shared.put(1, b"a", b"b")
        got = await take(consumer, 2)
        shared.confirming = False
        ack = asyncio.create_task(consumer.acknowledge_cumulative(got[0]))
        await shared.until(lambda: len(shared.bucket_acks()) == 1)
        shared.confirming = True
        shared.seen.clear()
        shared.cut()
        await ack
        order = [c for c, _ in shared.seen if c in (Command.SUBSCRIBE, Command.ACK, Command.FLOW)]
        assert order[:3] == [Command.SUBSCRIBE, Command.ACK, Command.FLOW]
        assert shared.bucket_acks() == [{1: 1}]
        assert [m.value for m in await take(consumer, 1)] == [b"b"], "the rest of the entry, and only that"


async def test_what_waits_is_not_delivered_once_it_is_acknowledged_by_a_kept_id(shared: SharedBroker) -> None:
    async with shared.client() as client, await client.stream_consumer("t", "s") as consumer:
        shared.put(1, b"a", b"b")
        shared.put(3, b"c")
        kept = (await take(consumer, 3))[1].id
        shared.cut()
        await shared.until(lambda: consumer.statistics().messages_queued == 3)
        await consumer.acknowledge_cumulative(kept)
        assert [m.value for m in await take(consumer, 1)] == [b"c"]


async def test_a_bucket_that_went_elsewhere_is_told_once_and_holds_nothing_up(shared: SharedBroker) -> None:
    async with shared.client() as client, await client.stream_consumer("t", "s") as consumer:
        shared.put(1, b"a")
        shared.put(2, b"b")
        lost = (await take(consumer, 2))[1]
        shared.own = {2}
        shared.cut()
        [again] = await take(consumer, 1)
        assert again.value == b"b"
        assert dict(again.id.positions) == places(b1=1, b2=2)
        shared.refuse_acks = FencedError("bucket 1 is another consumer's")
        with pytest.raises(FencedError, match=r"segments \[0\] .* buckets"):
            await consumer.acknowledge_cumulative(lost)
        shared.refuse_acks = None
        shared.put(2, b"c")
        [after] = await take(consumer, 1)
        assert dict(after.id.positions) == places(b2=3)
        await flip(shared, shared=False)
        assert consumer.attachments[0].draining
        await consumer.acknowledge_cumulative(after)
        await shared.until(lambda: [h["mode"] for h in shared.of(Command.SUBSCRIBE)][-1] == "exclusive")


@pytest.mark.parametrize("first", MODES)
async def test_semantics_18_both_flips_wait_for_what_was_delivered(shared: SharedBroker, first: str) -> None:
    shared.shared = first == "shared"
    async with shared.client() as client, await client.stream_consumer("t", "s") as consumer:
        shared.put(0, b"a", b"b")
        shared.put(3, b"c")
        got = await take(consumer, 2)
        await flip(shared, shared=not shared.shared)
        shared.put(1, b"d")
        assert await consumer.receive(timeout=0.01) is None
        assert [h["mode"] for h in shared.of(Command.SUBSCRIBE)] == [first]
        await consumer.acknowledge_cumulative(got[1])  # goes to the attachment that is on its way out
        await shared.until(lambda: len(shared.of(Command.SUBSCRIBE)) == 2)
        assert [h["mode"] for h in shared.of(Command.SUBSCRIBE)][-1] != first
        assert not consumer._queue.positions
        if first == "exclusive":
            shared.acked[0] = 2
        assert [m.value for m in await take(consumer, 2)] == [b"c", b"d"]


async def test_a_flip_that_is_taken_back_goes_on_where_it_was(shared: SharedBroker) -> None:
    async with shared.client() as client, await client.stream_consumer("t", "s") as consumer:
        shared.put(0, b"a", b"b")
        await take(consumer, 1)
        await flip(shared, shared=False)
        shared.put(2, b"c")
        await flip(shared, shared=True)
        got = await take(consumer, 2)
        assert [m.value for m in got] == [b"b", b"c"]
        assert dict(got[-1].id.positions) == places(b0=2, b2=3)
        assert len(shared.of(Command.SUBSCRIBE)) == 1


async def test_kept_ids_of_buckets_work_on_an_exclusive_attachment(shared: SharedBroker) -> None:
    async with shared.client() as client, await client.stream_consumer("t", "s") as consumer:
        shared.put(0, b"a", b"b")
        shared.put(2, b"c")
        kept = MessageId.from_bytes((await take(consumer, 3))[2].id.to_bytes())
        shared.shared = False
        shared.cut()  # nothing to wait for: it comes again
        await shared.until(lambda: consumer.statistics().messages_queued == 3)
        assert [a.mode for a in consumer.attachments.values()] == ["exclusive"]
        await consumer.acknowledge_cumulative(kept)
        assert shared.bucket_acks() == [{0: 2, 2: 3}]
        shared.put(1, b"d")
        [got] = await take(consumer, 1)
        assert got.value == b"d", "what the id covers is not delivered once more"
        assert dict(got.id.positions) == {0: 4}


async def test_kept_ids_of_buckets_ask_the_cursor_where_the_segment_is_not_held(shared: SharedBroker) -> None:
    async with shared.client() as client, await client.stream_consumer("t", "s") as consumer:
        shared.put(0, b"a")
        shared.put(2, b"b")
        kept = (await take(consumer, 2))[1]
        shared.assigned = []
        shared.cut()
        await shared.until(lambda: not consumer.attachments)
        for open_buckets in ([2], None):
            shared.open_buckets = open_buckets
            with pytest.raises(FencedError):
                await consumer.acknowledge_cumulative(kept)
        shared.open_buckets = []
        await consumer.acknowledge_cumulative(kept)
        assert shared.of(Command.SEGMENT_OFFSET)[-1]["buckets"] == [[2, 2]], "bucket 0 was known by then"
        asked = len(shared.of(Command.SEGMENT_OFFSET))
        await consumer.acknowledge_cumulative(kept)
        assert len(shared.of(Command.SEGMENT_OFFSET)) == asked
        assert consumer._queue.positions == {}


async def test_an_id_of_exclusive_times_covers_every_bucket(shared: SharedBroker) -> None:
    async with shared.client() as client, await client.stream_consumer("t", "s") as consumer:
        shared.put(0, b"a")
        shared.put(2, b"b")
        await take(consumer, 2)
        await consumer.acknowledge_cumulative(MessageId(0, 1, topic="topic://public/default/t"))
        assert [h["position"] for h in shared.of(Command.ACK)] == [2]
        assert shared.acked == dict.fromkeys(range(BUCKETS), 2)
