"""Queue consumption as users see it: hand back, time out, give up, divide, survive (SEMANTICS 10, 13, 20-22, C2)."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import engine

M = 3


async def publish(client: engine.AsyncClient, count: int, topic: str = "t", **options: object) -> None:
    async with await client.producer(topic, batching=engine.Batching(**options)) as producer:  # type: ignore[arg-type]
        for i in range(count):
            producer.send_nowait(b"%d" % i, key=b"k", properties={"n": str(i)}, event_time=1000 + i)
        await producer.flush()


async def received(consumer: engine.AsyncQueueConsumer, timeout: float = 10) -> engine.Message:
    message = await consumer.receive(timeout)
    assert message is not None, "nothing came"
    return message


async def everything(consumer: engine.AsyncQueueConsumer, count: int) -> list[engine.Message]:
    found: list[engine.Message] = []
    while len(found) < count:
        batch = await consumer.receive_batch(timeout=10)
        assert len(batch), f"{len(found)} of {count} came"
        found += batch
    return found


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


# -- dead letters ------------------------------------------------------------------------------------------------


async def test_21_m_redeliveries_mean_m_plus_1_deliveries_then_the_dead_letter_topic(client: engine.AsyncClient):
    await publish(client, 2)
    policy = engine.DeadLetter(max_redeliveries=M)
    async with (
        await client.queue_consumer("t", "s", initial_position="earliest", nack_backoff=0, dead_letter=policy) as one,
        await client.queue_consumer("t-DLQ", "watch", initial_position="earliest") as dead,
    ):
        seen = 0
        kept = None
        while seen < M + 1:
            message = await received(one)
            if message.value == b"0":
                kept = message
                continue
            assert message.redelivery_count == seen
            seen += 1
            last = message
            await one.negative_acknowledge(message)
        letter = await received(dead)
        assert (letter.value, letter.key, letter.event_time_ms) == (b"1", b"k", 1001)
        assert letter.properties == {
            "n": "1",
            "origin-topic": "topic://public/default/t",
            "origin-message": f"{last.segment_id}:{last.offset}",
            "origin-message-id": engine.MessageId(last.segment_id, last.offset, topic=last.topic).to_bytes().hex(),
            "origin-subscription": "s",
            "origin-redelivery-count": str(M + 1),
            "origin-producer": last.producer_name,
            "origin-sequence-id": str(last.sequence_id),
            "origin-publish-time": last.publish_time.isoformat(),
        }
        while one.statistics().dead_lettered < 1:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        assert await one.receive(0.05) is None, "it is acknowledged"
        assert await dead.receive(0.05) is None, "once"
        assert kept is not None
        await one.acknowledge(kept)
        assert one.statistics().acknowledged == 1


async def test_no_redelivery_allowed_means_one_delivery(client: engine.AsyncClient):
    await publish(client, 30, max_messages=10)
    policy = engine.DeadLetter(0, topic="graves")
    async with (
        await client.queue_consumer("t", "s", initial_position="earliest", nack_backoff=0, dead_letter=policy) as one,
        await client.queue_consumer("graves", "watch", initial_position="earliest") as dead,
    ):
        messages = await everything(one, 30)
        await one.negative_acknowledge(messages[::2])
        await one.acknowledge(messages[1::2])
        letters = await everything(dead, 15)
        assert Counter(m.value for m in letters) == Counter(m.value for m in messages[::2])
        assert await one.receive(0.05) is None


async def test_a_dead_letter_is_not_doubled_when_its_acknowledgement_is_lost(client: engine.AsyncClient):
    """A crash between publishing and acknowledging: whoever gets the message next finds it published."""
    await publish(client, 3)
    policy = engine.DeadLetter(0)
    first = await client.queue_consumer("t", "s", initial_position="earliest", nack_backoff=0, dead_letter=policy)
    lost = asyncio.Event()

    async def crash(segment_id: int, offset: int) -> None:
        lost.set()
        await asyncio.Event().wait()

    first._dead_letters._acknowledge = crash  # type: ignore[union-attr]
    messages = await everything(first, 3)
    await first.negative_acknowledge(messages[1])
    await lost.wait()
    for worker in first._dead_letters._workers:  # type: ignore[union-attr]
        worker.cancel()
    await first.close()
    async with (
        await client.queue_consumer("t", "s", nack_backoff=0, dead_letter=policy) as second,
        await client.queue_consumer("t-DLQ", "watch", initial_position="earliest") as dead,
    ):
        # the other two were received once before
        while second.statistics().dead_lettered < 3:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        letters = await everything(dead, 3)
        assert sorted(m.value for m in letters) == [b"0", b"1", b"2"]
        assert await dead.receive(0.05) is None


async def test_dead_letters_survive_a_changed_shape_of_their_topic(client: engine.AsyncClient):
    await publish(client, 4)
    policy = engine.DeadLetter(0)
    async with await client.queue_consumer(
        "t", "s", initial_position="earliest", nack_backoff=0, dead_letter=policy
    ) as one:
        messages = await everything(one, 4)
        await one.negative_acknowledge(messages[0])
        while one.statistics().dead_lettered < 1:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        await client.admin.split_segment("t-DLQ", 0)
        name = f"{messages[0].segment_id}-{messages[0].offset}"
        async with await client.queue_consumer("t-DLQ", "watch", initial_position="earliest") as dead:
            letter = await received(dead)
            assert letter.producer_name.endswith(name)
        async with await client.producer("t-DLQ", name=letter.producer_name) as again:
            assert again.last_sequence_id == 0, "what was published is known to the children"
        await one.negative_acknowledge(messages[1:])
        while one.statistics().dead_lettered < 4:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


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
    await publish(client, 10, max_messages=10)
    assert len(await everything(high, 10)) == 10, "it has room again"
    for consumer in (low, high):
        await consumer.close()


async def test_queue_consumption_across_splits_and_merges(client: engine.AsyncClient):
    """SEMANTICS 10: every segment, active and sealed; what is handed back from a sealed one comes again too."""
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
