"""What a message may carry, through both clients: nothing is lost, changed or mixed up."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import engine
from engine.limits import KEY_SIZE_MAX, MESSAGE_SIZE_MAX

NOON = datetime(2026, 5, 1, 12, 0, 0, 123_000, tzinfo=UTC)
MESSAGES: dict[str, dict[str, Any]] = {
    "empty value": {"value": b""},
    "empty key": {"value": b"v", "key": b""},
    "text key": {"value": b"v", "key": "schlüssel"},
    "any buffer": {"value": memoryview(bytearray(b"abc")), "key": bytearray(b"k")},
    "largest value": {"value": b"x" * MESSAGE_SIZE_MAX},
    "largest key": {"value": b"", "key": b"k" * KEY_SIZE_MAX},
    "properties": {"value": b"v", "properties": {"a": "1", "": "", "ünï": "日本" * 100}},
    "event time": {"value": b"v", "event_time": NOON},
    "event time in milliseconds": {"value": b"v", "event_time": -1},
    "sequence id": {"value": b"v", "key": b"k", "sequence_id": 2**40},
    "everything": {
        "value": b"v",
        "key": b"k",
        "properties": {"p": "q"},
        "event_time": NOON.astimezone(tz=None),
        "sequence_id": 2**40 + 7,
        "deliver_at": NOON - timedelta(days=1),
    },
}


def check(sent: dict[str, Any], received: Any) -> None:
    """The message is what was sent."""
    key = sent.get("key")
    assert received.value == bytes(sent["value"])
    assert received.key == (key.encode() if isinstance(key, str) else None if key is None else bytes(key))
    assert received.properties == sent.get("properties", {})
    time = sent.get("event_time")
    assert received.event_time == (datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1) if time == -1 else time)
    assert "sequence_id" not in sent or received.sequence_id == sent["sequence_id"]
    assert received.producer_name == "p"
    assert received.redelivery_count == 0


@pytest.mark.parametrize("nowait", [False, True], ids=["send", "send_nowait"])
async def test_every_kind_of_message_arrives_as_it_was_sent(client: engine.AsyncClient, nowait: bool):
    consumers = [
        await client.stream_consumer("t", "stream", initial_position="earliest"),
        await client.queue_consumer("t", "queue", initial_position="earliest"),
        await client.checkpoint_consumer("t", start=engine.Checkpoint.earliest()),
    ]
    producer = await client.producer("t", name="p")
    for what, sent in MESSAGES.items():
        if nowait:
            producer.send_nowait(**sent)
            await producer.flush()
        else:
            await producer.send(**sent)
        for consumer in consumers:
            received = await consumer.receive(timeout=10)
            assert received is not None, what
            check(sent, received)


def test_every_kind_of_message_arrives_as_it_was_sent_by_a_blocking_client(blocking: engine.Client):
    with (
        blocking.stream_consumer("t", "stream", initial_position="earliest") as stream,
        blocking.queue_consumer("t", "queue", initial_position="earliest") as queue,
        blocking.checkpoint_consumer("t", start=engine.Checkpoint.earliest()) as reader,
        blocking.producer("t", name="p") as producer,
    ):
        for number, (what, sent) in enumerate(MESSAGES.items()):
            if number % 2:
                producer.send_nowait(**sent)
                producer.flush()
            else:
                producer.send(**sent)
            for consumer in (stream, queue, reader):
                received = consumer.receive(timeout=10)
                assert received is not None, what
                check(sent, received)


async def test_what_is_too_large_is_refused_and_nothing_else_suffers(client: engine.AsyncClient):
    producer = await client.producer("t")
    for sent in ({"value": bytes(MESSAGE_SIZE_MAX + 1)}, {"value": b"", "key": bytes(KEY_SIZE_MAX + 1)}):
        with pytest.raises(engine.MessageTooLargeError):
            await producer.send(**sent)
    assert (await producer.send(b"small")).offset == 0


async def test_keyless_messages_spread_over_the_segments(client: engine.AsyncClient):
    await client.admin.create_topic("t", segments=4)
    producer = await client.producer("t", batching=engine.Batching(max_messages=1))
    ids = [await producer.send(b"v") for _ in range(40)]
    assert {i.segment_id: sum(j.segment_id == i.segment_id for j in ids) for i in ids} == dict.fromkeys(range(4), 10)


async def test_keyless_messages_of_a_named_producer_spread_in_blocks(client: engine.AsyncClient):
    """Their way follows from their sequence ids, so that they are known when they are sent again (semantics 24)."""
    await client.admin.create_topic("t", segments=4)
    async with await client.producer("t", name="p") as producer:
        for _ in range(256 * 40):
            producer.send_nowait(b"v")
            if not producer.has_room:
                await producer.writable()
    stats = await client.admin.get_stats("t")
    counts = [segment["nextOffset"] for segment in stats["segments"].values()]
    assert sum(counts) == 256 * 40
    assert min(counts) >= 256 * 6


async def test_sequence_ids_rise_or_are_refused(client: engine.AsyncClient):
    async with await client.producer("t", name="p") as producer:
        assert (producer.last_sequence_id, producer.acknowledged_sequence_id) == (-1, -1)
        await producer.send(b"a", sequence_id=10)
        for wrong in (10, 3):
            with pytest.raises(engine.InvalidArgumentError, match="greater than the last one, 10"):
                await producer.send(b"b", sequence_id=wrong)
        await producer.send(b"b")
        assert producer.last_sequence_id == 11
        await producer.flush()
        assert producer.acknowledged_sequence_id == 11
    async with await client.producer("t", name="p") as producer:
        assert producer.last_sequence_id == 11
        known = producer.acknowledged_sequence_id
        assert 9 <= known <= 10, "as far as the last entry told"
        with pytest.raises(engine.InvalidArgumentError, match=f"greater than the last one, {known}"):
            await producer.send(b"c", sequence_id=known)
        assert (await producer.send(b"b", sequence_id=11)).offset in (-1, 1), "sent again, and stored once"
        await producer.send(b"c")
        assert producer.last_sequence_id == 12
    reader = await client.checkpoint_consumer("t", start=engine.Checkpoint.earliest())
    assert [(m.value, m.sequence_id) for m in [await reader.receive(timeout=5) for _ in range(3)]] == [
        (b"a", 10),
        (b"b", 11),
        (b"c", 12),
    ]


async def test_what_a_producer_says_of_itself_is_in_the_statistics(client: engine.AsyncClient):
    producer = await client.producer("t", name="p", access_mode="exclusive", properties={"host": "a1", "ünï": ""})
    await producer.send(b"v")
    (segment,) = (await client.admin.get_stats("t"))["segments"].values()
    assert segment["publishers"] == [
        {"producerName": "p", "accessMode": "exclusive", "properties": {"host": "a1", "ünï": ""}}
    ]
    await producer.close()
    (segment,) = (await client.admin.get_stats("t"))["segments"].values()
    assert segment["publishers"] == []


async def test_a_delay_is_kept(client: engine.AsyncClient):
    consumer = await client.queue_consumer("t", "s", initial_position="earliest")
    producer = await client.producer("t")
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await producer.send(b"late", deliver_after=timedelta(seconds=0.4))
    await producer.send(b"at", deliver_at=datetime.now(UTC) + timedelta(hours=1))
    await producer.send(b"now")
    assert (await consumer.receive(timeout=5)).value == b"now"
    assert (await consumer.receive(timeout=5)).value == b"late"
    assert loop.time() - begin >= 0.4
    assert await consumer.receive(timeout=0.05) is None


def test_a_delay_of_a_blocking_producer_is_kept(blocking: engine.Client):
    with (
        blocking.queue_consumer("t", "s", initial_position="earliest") as consumer,
        blocking.producer("t") as producer,
    ):
        producer.send_nowait(b"late", deliver_after=0.3)
        producer.send(b"now")
        assert [consumer.receive(timeout=5).value for _ in range(2)] == [b"now", b"late"]


async def test_cancelled_sends_leave_nothing_behind(client: engine.AsyncClient):
    """Those that wait for an answer, and those that wait for room."""
    producer = await client.producer("t", max_pending_bytes=MESSAGE_SIZE_MAX)
    value = b"v" * (MESSAGE_SIZE_MAX // 4)
    sends = [asyncio.ensure_future(producer.send(value, key=b"k")) for _ in range(40)]
    await asyncio.sleep(0)
    for send in sends[::2]:
        send.cancel()
    outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert all(isinstance(o, asyncio.CancelledError) for o in outcomes[::2])
    assert all(isinstance(o, engine.MessageId) for o in outcomes[1::2])
    await producer.flush()
    totals = producer.statistics()
    assert (totals.pending_messages, totals.pending_bytes, totals.messages_failed) == (0, 0, 0)
    assert totals.messages_acknowledged == totals.messages_sent >= 20
    assert not producer._outbox.in_flight.room
    assert not producer._outbox.in_flight.pieces


async def test_statistics_count_what_the_program_received_and_not_what_was_fetched_ahead(client: engine.AsyncClient):
    await client.admin.create_topic("t")
    await client.admin.create_subscription("t", "s", initial_position="earliest")
    async with await client.producer("t") as producer:
        await asyncio.gather(*(producer.send(b"%d" % i) for i in range(100)))
    async with await client.queue_consumer("t", "s", receive_queue_size=100) as consumer:
        await consumer.receive()
        async with asyncio.timeout(30):
            while consumer.statistics().messages_queued < 99:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert consumer.statistics().messages_received == 1
        for message in await consumer.receive_batch(9):
            await consumer.acknowledge(message)
        assert consumer.statistics().messages_received == 10
    assert consumer.statistics().messages_received == 10, "the rest was dropped when it was closed"
    async with await client.queue_consumer("t", "s") as consumer:
        taken = 0
        while taken < 91:
            taken += len(await consumer.receive_batch(1_000))
        found = consumer.statistics()
        assert (found.messages_received, found.messages_queued) == (91, 0)
        assert found.bytes_received > 0
