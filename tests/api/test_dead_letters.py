"""What a queue gives up goes to another topic: once, with where it is from (semantics 21)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

import engine
from engine.client.consume import dead_letter
from engine.client.consume.failure import Failure
from engine.client.consume.letter import Letter, LetterProducer
from engine.testing.workload import kill
from tests.api.queues import everything, publish, received

M = 3


@asynccontextmanager
async def giving_up(client: engine.AsyncClient) -> AsyncIterator[tuple[Any, Any]]:
    """(a consumer of `t` whose messages are dead letters once they are handed back, what watches these)."""
    policy = engine.DeadLetter(0)
    async with (
        await client.queue_consumer("t", "s", initial_position="earliest", nack_backoff=0, dead_letter=policy) as one,
        await client.queue_consumer("t-DLQ", "watch", initial_position="earliest") as dead,
    ):
        yield one, dead


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
        await moved(one, 1)
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


class Dies:
    """In a consumer of its own client: the client dies once the letters have come so far."""

    def __init__(self, consumer: engine.AsyncQueueConsumer, stage: str) -> None:
        self.there = asyncio.Event()
        letters = consumer._dead_letters
        assert letters is not None
        self._acknowledge = letters._acknowledge
        self._stage = stage
        letters._acknowledge = self._die  # type: ignore[assignment]

    async def _die(self, places: Any, transaction: engine.AsyncTransaction) -> None:
        if self._stage != "published":
            await self._acknowledge(places, transaction)
        if self._stage == "committed":
            await transaction.commit()
        self.there.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("stage", ["published", "acknowledged", "committed"])
async def test_a_dead_letter_is_neither_lost_nor_doubled_when_its_consumer_dies(
    served: engine.AsyncEngine, monkeypatch: pytest.MonkeyPatch, stage: str
):
    monkeypatch.setattr(dead_letter, "TIMEOUT_S_FIRST", 0.5)
    await publish(served, 3)
    make: Any = {"initial_position": "earliest", "nack_backoff": 0, "dead_letter": engine.DeadLetter(0)}
    dying = engine.AsyncClient(served.service_url)
    first = await dying.queue_consumer("t", "s", **make)
    dies = Dies(first, stage)
    await first.negative_acknowledge((await everything(first, 3))[:2])
    await dies.there.wait()
    await kill(dying)
    async with (
        await served.queue_consumer("t", "s", **make) as second,
        await served.queue_consumer("t-DLQ", "watch", initial_position="earliest") as dead,
    ):
        letters = await everything(dead, 3)  # the third was received once before
        assert sorted(m.value for m in letters) == [b"0", b"1", b"2"]
        while await backlog(served):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        assert await dead.receive(0.05) is None
        await moved(second, 1 if stage == "committed" else 3)


async def moved(consumer: engine.AsyncQueueConsumer, count: int) -> None:
    """Wait until its statistics say so."""
    while consumer.statistics().dead_lettered < count:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)
    assert consumer.statistics().dead_lettered == count


async def backlog(served: engine.AsyncEngine) -> int:
    """Of the queue."""
    stats = await served.admin.get_stats("t")
    return stats["subscriptions"]["s"]["backlog"]


async def test_one_that_cannot_be_published_holds_up_no_others_and_goes_when_it_can(
    client: engine.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    bad = {b"3", b"7"}
    send, tried = LetterProducer._send, Counter[bytes]()

    def refuse(letters: LetterProducer, producer: Any, letter: Letter, transaction: engine.AsyncTransaction) -> None:
        value = bytes(letter.message.value)
        tried[value] += 1
        if value in bad:
            raise engine.StorageError("planted")
        send(letters, producer, letter, transaction)

    monkeypatch.setattr(LetterProducer, "_send", refuse)
    await publish(client, 30)
    async with giving_up(client) as (one, dead):
        await one.negative_acknowledge(await everything(one, 30), reason="of no use")
        letters = await everything(dead, 28)
        assert not bad & {m.value for m in letters}
        while min(tried[value] for value in bad) < 3:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        bad.clear()
        late = await everything(dead, 2)
        assert Counter(m.value for m in letters + late) == Counter(b"%d" % n for n in range(30))
        assert {m.properties["dead-letter-reason"] for m in letters + late} == {"of no use"}
        await moved(one, 30)


async def test_letters_whose_transaction_was_aborted_are_moved_with_their_reason(client: engine.AsyncClient):
    """The broker delivers them again, to this consumer."""
    await publish(client, 20)
    policy = engine.DeadLetter(2)
    async with (
        await client.queue_consumer("t", "s", initial_position="earliest", nack_backoff=0, dead_letter=policy) as one,
        await client.queue_consumer("t-DLQ", "watch", initial_position="earliest") as dead,
    ):
        assert one._dead_letters is not None
        acknowledge, failures = one._dead_letters._acknowledge, 0

        async def fail(places: Any, transaction: engine.AsyncTransaction) -> None:
            nonlocal failures
            failures += 1
            if failures == 1:  # nothing is acknowledged: the broker believes the messages to be here
                raise engine.StorageError("planted")
            await acknowledge(places, transaction)
            if failures == 2:
                await transaction.abort()

        one._dead_letters._acknowledge = fail
        for _ in range(2):
            await one.negative_acknowledge(await everything(one, 20))
        await one.negative_acknowledge(await everything(one, 20), reason="of no use")
        letters = await everything(dead, 20)
        assert Counter(m.value for m in letters) == Counter(b"%d" % n for n in range(20))
        assert {m.properties["dead-letter-reason"] for m in letters} == {"of no use"}
        assert failures >= 3
        await moved(one, 20)
        assert await dead.receive(0.05) is None
        assert await one.receive(0.05) is None


async def test_one_that_came_twice_is_moved_once(client: engine.AsyncClient):
    """As what the broker has delivered again, and this consumer has not moved meanwhile."""
    await publish(client, 2)
    async with giving_up(client) as (one, dead):
        messages = await everything(one, 2)
        assert one._dead_letters is not None
        one._dead_letters.push_failed(messages[0], Failure.of("first"))
        await one.negative_acknowledge(messages, reason="second")
        letters = await everything(dead, 2)
        assert {m.value for m in letters} == {b"0", b"1"}
        await moved(one, 2)
        assert await dead.receive(0.05) is None
        assert not one._dead_letters._bytes


async def test_what_was_lost_meanwhile_is_not_moved_by_this_consumer(client: engine.AsyncClient):
    await publish(client, 2)
    async with giving_up(client) as (one, dead):
        letters = one._dead_letters
        assert letters is not None
        publish_them, published = letters._producer.publish, 0

        async def lose(moving: Any, transaction: engine.AsyncTransaction) -> None:
            nonlocal published
            await publish_them(moving, transaction)
            published += 1
            if published == 1:
                letters.drop(0)  # as after a lost connection: the messages may go to another consumer

        letters._producer.publish = lose  # type: ignore[method-assign]
        acknowledged = []
        acknowledge = letters._acknowledge

        async def note(places: Any, transaction: engine.AsyncTransaction) -> None:
            acknowledged.append(published)
            await acknowledge(places, transaction)

        letters._acknowledge = note
        messages = await everything(one, 2)
        await one.negative_acknowledge(messages[0], reason="lost")
        while published < 1:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        await one.negative_acknowledge(messages[1], reason="kept")
        letter = await received(dead)
        assert letter.properties["dead-letter-reason"] == "kept"
        assert await dead.receive(0.05) is None
        assert acknowledged == [2]


async def test_41_receives_end_at_once_although_dead_letters_are_on_their_way(client: engine.AsyncClient):
    await publish(client, 2)
    policy = engine.DeadLetter(0)
    consumer = await client.queue_consumer("t", "s", initial_position="earliest", nack_backoff=0, dead_letter=policy)
    on_its_way, may_end = asyncio.Event(), asyncio.Event()

    async def publish_slowly(letters: object, transaction: object) -> None:
        on_its_way.set()
        await may_end.wait()

    consumer._dead_letters._producer.publish = publish_slowly  # type: ignore[union-attr,method-assign]
    messages = await everything(consumer, 2)
    await consumer.negative_acknowledge(messages[0])
    await on_its_way.wait()
    receiving = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(consumer.close())
    with pytest.raises(engine.AlreadyClosedError):
        await receiving
    assert not closing.done()
    with pytest.raises(engine.AlreadyClosedError):
        await consumer.receive()
    with pytest.raises(engine.AlreadyClosedError):
        await consumer.acknowledge(messages[1])
    may_end.set()
    await closing
    async with await client.queue_consumer("t", "s") as other:
        again = await received(other)
        assert (again.value, again.redelivery_count) == (messages[1].value, 1)


async def test_dead_letters_keep_the_form_of_their_values(client: engine.AsyncClient):
    schema = engine.Schema.avro({"type": "record", "name": "Job", "fields": [{"name": "number", "type": "long"}]})
    policy = engine.DeadLetter(0)
    make = partial(client.queue_consumer, initial_position="earliest", nack_backoff=0, schema=schema)
    async with (
        await client.producer("t", schema=schema) as producer,
        await make("t", "s", dead_letter=policy) as consumer,
        await make("t-DLQ", "s") as dead,
    ):
        await producer.send({"number": 7})
        await consumer.negative_acknowledge(await received(consumer))
        assert (await received(dead)).value == {"number": 7}


async def test_dead_letters_survive_a_changed_shape_of_their_topic(client: engine.AsyncClient):
    """Also in the middle of a transaction."""
    await publish(client, 40)
    async with giving_up(client) as (one, dead):
        letters = one._dead_letters
        assert letters is not None
        publish_them, splits = letters._producer.publish, 0

        async def publish_and_split(moving: Any, transaction: engine.AsyncTransaction) -> None:
            nonlocal splits
            await publish_them(moving, transaction)
            if splits < 2:
                (segment, *_) = (await client.admin.get_metadata("t-DLQ"))["segments"].keys() if not splits else ("1",)
                splits += 1
                await client.admin.split_segment("t-DLQ", int(segment))

        letters._producer.publish = publish_and_split  # type: ignore[method-assign]
        messages = await everything(one, 40)
        found = []
        for part in (messages[:10], messages[10:20], messages[20:]):
            await one.negative_acknowledge(part)
            found += await everything(dead, len(part))
        assert splits == 2
        assert Counter(m.value for m in found) == Counter(b"%d" % n for n in range(40))
        assert await dead.receive(0.05) is None
        assert len({m.producer_name for m in found}) == 1, "one producer moves them all"
