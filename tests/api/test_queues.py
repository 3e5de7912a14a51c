"""Queue consumption as users see it: hand back, time out, give up, divide, survive (semantics 10, 13, 20 to 22, C2)."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import engine
from tests.api.queues import everything, publish, received

M = 3


# -- negative acknowledgement ------------------------------------------------------------------------------------


async def test_22_the_redelivery_count_starts_at_0_and_grows(client: engine.AsyncClient):
    await publish(client, 3)
    async with await client.queue_consumer("t", "s", initial_position="earliest", nack_backoff=0) as consumer:
        for count in range(5):
            messages = await everything(consumer, 3)
            assert {m.redelivery_count for m in messages} == {count}
            await consumer.negative_acknowledge(messages)
        assert consumer.statistics().negatively_acknowledged == 15
        assert consumer.statistics().unacknowledged == 0


async def test_a_negative_acknowledgement_keeps_back_what_it_names_and_nothing_else(client: engine.AsyncClient):
    await publish(client, 4)
    backoff = engine.Backoff(min=30, max=60)
    async with await client.queue_consumer("t", "s", initial_position="earliest", nack_backoff=backoff) as consumer:
        messages = await everything(consumer, 4)
        await consumer.negative_acknowledge(messages[1].id)
        await consumer.negative_acknowledge([messages[0], messages[3].id], delay=0)
        again = await everything(consumer, 2)
        assert [(m.value, m.redelivery_count) for m in again] == [(b"0", 1), (b"3", 1)]
        assert await consumer.receive(0.05) is None, "30 s are not over"


async def test_what_is_not_held_cannot_be_handed_back(client: engine.AsyncClient):
    await publish(client, 3)
    async with await client.queue_consumer("t", "s", initial_position="earliest", nack_backoff=0) as consumer:
        messages = await everything(consumer, 3)
        await consumer.acknowledge(messages[0])
        await consumer.negative_acknowledge(messages)
        await consumer.negative_acknowledge(messages)  # they are on their way back: not counted once more
        again = await everything(consumer, 2)
        assert [(m.value, m.redelivery_count) for m in again] == [(b"1", 1), (b"2", 1)]
        assert await consumer.receive(0.05) is None


async def test_a_late_acknowledgement_ends_a_redelivery(client: engine.AsyncClient):
    await publish(client, 2)
    async with await client.queue_consumer("t", "s", initial_position="earliest") as consumer:
        messages = await everything(consumer, 2)
        await consumer.negative_acknowledge(messages, delay=0.2)
        await consumer.acknowledge(messages[0])
        again = await received(consumer)
        assert again.value == b"1"
        assert await consumer.receive(0.05) is None


# -- time-out ----------------------------------------------------------------------------------------------------


async def test_what_is_not_acknowledged_in_time_comes_back(client: engine.AsyncClient):
    await publish(client, 5)
    async with await client.queue_consumer("t", "s", initial_position="earliest", ack_timeout=0.2) as consumer:
        messages = await everything(consumer, 5)
        await consumer.acknowledge(messages[:2])
        again = await everything(consumer, 3)
        assert [(m.value, m.redelivery_count) for m in again] == [(b"2", 1), (b"3", 1), (b"4", 1)]
        assert consumer.statistics().timed_out == 3
        await consumer.acknowledge(again)
        assert await consumer.receive(0.5) is None
        assert consumer.statistics().unacknowledged == 0


async def test_what_waits_to_be_received_does_not_time_out(client: engine.AsyncClient):
    await publish(client, 10)
    async with await client.queue_consumer("t", "s", initial_position="earliest", ack_timeout=0.05) as consumer:
        await received(consumer)
        while consumer.statistics().timed_out < 1:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        assert consumer.statistics().timed_out == 1, "nine were not given to anybody"
        rest = await everything(consumer, 10)
        assert Counter(m.redelivery_count for m in rest)[0] == 9


# -- closing, losing, restarting ---------------------------------------------------------------------------------


async def test_what_nobody_has_seen_is_not_counted_when_a_consumer_closes(client: engine.AsyncClient):
    await publish(client, 10)
    first = await client.queue_consumer("t", "s", initial_position="earliest")
    seen = [await received(first) for _ in range(4)]
    await first.acknowledge(seen[0])
    await first.close()
    async with await client.queue_consumer("t", "s") as second:
        messages = await everything(second, 9)
        counts = {m.value: m.redelivery_count for m in messages}
        assert counts == {b"%d" % i: int(i < 4) for i in range(1, 10)}
        assert [m.value for m in messages] == [b"%d" % i for i in range(1, 10)], "in order"


@pytest.mark.parametrize("batches", [1, 50])
async def test_acknowledgements_and_counts_survive_a_restart(tmp_path: Path, batches: int):
    async with engine.open_async(tmp_path / "data") as one:
        await publish(one, 50, max_messages=50 // min(batches, 50) or 1)
        async with await one.queue_consumer("t", "s", initial_position="earliest", nack_backoff=0) as consumer:
            messages = await everything(consumer, 50)
            await consumer.acknowledge([m for i, m in enumerate(messages) if i % 3])
            await consumer.negative_acknowledge(messages)
            await everything(consumer, 17)
    async with engine.open_async(tmp_path / "data") as two, await two.queue_consumer("t", "s") as consumer:
        messages = await everything(consumer, 17)
        assert [m.value for m in messages] == [b"%d" % i for i in range(0, 50, 3)]
        assert await consumer.receive(0.05) is None


# -- dividing ----------------------------------------------------------------------------------------------------


async def test_consumers_with_little_room_share_one_large_batch(client: engine.AsyncClient):
    """One entry of many messages does not go to one of them."""
    consumers = [
        await client.queue_consumer("t", "s", initial_position="earliest", receive_queue_size=5) for _ in range(4)
    ]
    await publish(client, 100, max_messages=100)
    found: list[list[bytes]] = [[] for _ in consumers]
    while sum(map(len, found)) < 100:
        for mine, consumer in zip(found, consumers, strict=True):
            message = await consumer.receive(0.01)
            if message is not None:
                mine.append(message.value)
                await consumer.acknowledge(message)
    assert sorted(v for mine in found for v in mine) == sorted(b"%d" % i for i in range(100))
    assert all(len(mine) >= 10 for mine in found)
    for consumer in consumers:
        await consumer.close()


async def test_the_best_priority_is_served_first_and_others_get_the_rest(client: engine.AsyncClient):
    low = await client.queue_consumer("t", "s", initial_position="earliest", priority=2)
    high = await client.queue_consumer("t", "s", initial_position="earliest", receive_queue_size=10)
    await publish(client, 40, max_messages=10)
    first = await everything(low, 30)
    assert high.statistics().messages_queued == 10
    mine = await everything(high, 10)
    assert sorted(int(m.value) for m in [*first, *mine]) == list(range(40))
    await high.acknowledge(mine)
    await publish(client, 10, max_messages=10)
    assert len(await everything(high, 10)) == 10, "it has room again"
    for consumer in (low, high):
        await consumer.close()


async def test_queue_consumption_across_splits_and_merges(client: engine.AsyncClient):
    """Semantics 10: every segment, active and sealed; what is handed back from a sealed one comes again too."""
    await publish(client, 60)
    policy = engine.DeadLetter(1)
    async with await client.queue_consumer(
        "t", "s", initial_position="earliest", nack_backoff=0, ack_timeout=30, dead_letter=policy
    ) as consumer:
        before = await everything(consumer, 60)
        await client.admin.split_segment("t", 0)
        await publish(client, 60)
        after = await everything(consumer, 60)
        await client.admin.merge_segments("t", 1, 2)
        await consumer.negative_acknowledge([*before[:20], *after[:20]])
        again = await everything(consumer, 40)
        assert {m.redelivery_count for m in again} == {1}
        ids = {(m.segment_id, m.offset) for m in again}
        assert ids == {(m.segment_id, m.offset) for m in [*before[:20], *after[:20]]}
        await consumer.negative_acknowledge(again[:10])
        while consumer.statistics().dead_lettered < 10:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        await consumer.acknowledge([*before[20:], *after[20:], *again[10:]])
        assert await consumer.receive(0.05) is None
        assert consumer.statistics().segments == 1, "what is sealed and done with is let go"
        async with await client.queue_consumer("t-DLQ", "watch", initial_position="earliest") as dead:
            letters = await everything(dead, 10)
            assert Counter(m.value for m in letters) == Counter(m.value for m in again[:10])


# -- what may be given -------------------------------------------------------------------------------------------


async def test_what_cannot_be_acknowledged(client: engine.AsyncClient):
    await publish(client, 2)
    async with await client.queue_consumer("t", "s", initial_position="earliest") as consumer:
        await everything(consumer, 2)
        for wrong in (None, 3, "text", b"bytes", [1], [None], [engine.MessageId.earliest], engine.MessageId(0, -1)):
            for method in (consumer.acknowledge, consumer.negative_acknowledge):
                with pytest.raises(engine.InvalidArgumentError):
                    await method(wrong)  # type: ignore[arg-type]
        await consumer.acknowledge([])
        assert consumer.statistics().unacknowledged == 2


@pytest.mark.parametrize(
    "options",
    [
        {"ack_timeout": 0},
        {"ack_timeout": "1"},
        {"nack_backoff": -1},
        {"nack_backoff": "soon"},
        {"nack_backoff": True},
        {"dead_letter": 3},
        {"priority": -1},
        {"priority": 1.5},
    ],
)
async def test_options_are_checked(client: engine.AsyncClient, options: dict[str, object]):
    with pytest.raises(engine.InvalidArgumentError, match=next(iter(options))):
        await client.queue_consumer("t", "s", **options)  # type: ignore[arg-type]


def test_options_of_their_own_are_checked():
    for wrong in ({"min": -1}, {"min": 2, "max": 1}, {"multiplier": 0.5}, {"max": float("inf")}, {"min": "1"}):
        with pytest.raises(engine.InvalidArgumentError):
            engine.Backoff(**wrong)  # type: ignore[arg-type]
    for wrong_count in (-1, 1.5, True, None):
        with pytest.raises(engine.InvalidArgumentError):
            engine.DeadLetter(wrong_count)  # type: ignore[arg-type]
    assert [engine.Backoff(1, 10, 3).delay(n) for n in (0, 1, 2, 3, 10**9)] == [1, 3, 9, 10, 10]
    assert [engine.Backoff(2, 2, 1).delay(n) for n in (0, 10**9)] == [2, 2]


async def test_dead_letters_need_another_topic(client: engine.AsyncClient):
    with pytest.raises(engine.InvalidArgumentError, match="same topic"):
        await client.queue_consumer("t", "s", dead_letter=engine.DeadLetter(1, topic="public/default/t"))


def test_the_blocking_form(blocking: engine.Client):
    with blocking.producer("t") as producer:
        producer.send(b"a")
        producer.send(b"b")
    with blocking.queue_consumer(
        "t",
        "s",
        initial_position="earliest",
        ack_timeout=10,
        nack_backoff=engine.Backoff(min=0, max=0),
        dead_letter=engine.DeadLetter(1),
        priority=1,
    ) as consumer:
        a, b = consumer.receive(10), consumer.receive(10)
        assert a is not None
        assert b is not None
        consumer.acknowledge([a.id])
        for count in (1, 2):
            consumer.negative_acknowledge(b)
            if count == 1:
                b = consumer.receive(10)
                assert b is not None
                assert b.redelivery_count == 1
        with blocking.queue_consumer("t-DLQ", "s", initial_position="earliest") as dead:
            letter = dead.receive(10)
            assert letter is not None
            assert letter.value == b"b"
        statistics = consumer.statistics()
        assert (statistics.acknowledged, statistics.negatively_acknowledged) == (1, 2)
        assert isinstance(statistics, engine.QueueConsumerStatistics)
