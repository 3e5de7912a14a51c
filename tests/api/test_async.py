"""The public API, awaited, end to end."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import engine


async def drain(consumer, count: int, timeout: float = 10.0) -> list[engine.Message]:
    """`count` messages; fewer when none come any more."""
    found: list[engine.Message] = []
    while len(found) < count:
        batch = await consumer.receive_batch(max_messages=count - len(found), timeout=timeout)
        if not len(batch):
            break
        found += batch
    return found


async def test_a_message_comes_back_as_it_was_sent(client: engine.AsyncClient):
    when = datetime(2024, 2, 29, 12, tzinfo=UTC)
    async with await client.stream_consumer("orders", "billing") as consumer:
        async with await client.producer("orders", name="till-1") as producer:
            sent = await producer.send(b"value", key="kä", properties={"a": "1"}, event_time=when)
            await producer.send(memoryview(b"keyless"))
            await producer.send(b"empty key", key=b"")
        message, keyless, empty = await drain(consumer, 3)
        assert (message.value, message.key) == (b"value", "kä".encode())
        assert message.properties == {"a": "1"}
        assert message.event_time == when
        assert message.id == sent
        assert message.topic == "topic://public/default/orders"
        assert message.producer_name == "till-1"
        assert (message.sequence_id, keyless.sequence_id) == (0, 1)
        assert abs(message.publish_time - datetime.now(UTC)) < timedelta(minutes=1)
        assert message.redelivery_count == 0
        assert message.size == len(b"value") + len("kä".encode())
        assert (keyless.key, keyless.properties, keyless.event_time) == (None, {}, None)
        assert empty.key == b""


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
async def test_compression(client: engine.AsyncClient, compression: str):
    values = [b"%08d" % n * 20 for n in range(2_000)]
    async with await client.producer("t", compression=compression) as producer:
        await producer.send_batch(values, keys=[b"k"] * len(values))
    async with await client.stream_consumer("t", "s", initial_position="earliest") as consumer:
        assert [m.value for m in await drain(consumer, len(values))] == values


async def test_order_per_key_over_segments_and_buckets(client: engine.AsyncClient):
    """O1, O2."""
    await client.admin.create_topic("t", segments=4)
    async with await client.producer("t") as producer:
        for n in range(5_000):
            producer.send_nowait(b"%d" % n, key=b"k%d" % (n % 97))
            if n % 500 == 499:
                await producer.writable()
        await producer.flush()
    by_key: dict[bytes, list[int]] = defaultdict(list)
    offsets: dict[int, list[int]] = defaultdict(list)
    async with await client.stream_consumer("t", "s", initial_position="earliest") as consumer:
        for message in await drain(consumer, 5_000):
            by_key[message.key or b""].append(int(message.value))
            offsets[message.segment_id].append(message.offset)
    assert sorted(n for numbers in by_key.values() for n in numbers) == list(range(5_000))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert len(offsets) == 4
    assert all(found == list(range(len(found))) for found in offsets.values())


async def test_columns_in_columns_out(client: engine.AsyncClient):
    values = pa.array([b"v%d" % n for n in range(3_000)], pa.binary())
    keys = pa.array([f"k{n % 7}" for n in range(3_000)])
    times = np.arange(3_000, dtype=np.int64)
    async with await client.producer("t") as producer:
        await producer.send_batch(values, keys=keys, event_times=times)
    async with await client.stream_consumer("t", "s", initial_position="earliest") as consumer:
        tables = []
        while sum(map(len, tables)) < 3_000:
            tables.append((await consumer.receive_batch(max_messages=100_000, timeout=10)).to_arrow())
    table = pa.concat_tables(tables)
    assert table.column_names == ["key", "value", "segment", "offset", "publish_time", "event_time", "properties"]
    assert sorted(table.column("value").to_pylist()) == sorted(values.to_pylist())
    assert sorted(table.column("event_time").cast(pa.int64()).to_pylist()) == times.tolist()


async def test_acknowledged_stays_acknowledged_across_consumers(client: engine.AsyncClient):
    """C1."""
    async with await client.producer("t") as producer:
        await asyncio.gather(*(producer.send(b"%d" % n) for n in range(10)))
    async with await client.stream_consumer("t", "s", initial_position="earliest") as consumer:
        first = await drain(consumer, 10)
        await consumer.acknowledge_cumulative(first[3])
    async with await client.stream_consumer("t", "s") as consumer:
        assert [m.id for m in await drain(consumer, 6)] == [m.id for m in first[4:]]
        assert await consumer.receive(timeout=0.05) is None


async def test_a_subscription_starts_at_latest_unless_told_otherwise(client: engine.AsyncClient):
    producer = await client.producer("t")
    await producer.send(b"before")
    late = await client.stream_consumer("t", "late")
    early = await client.stream_consumer("t", "early", initial_position="earliest")
    await producer.send(b"after")
    assert [m.value for m in await drain(late, 1)] == [b"after"]
    assert [m.value for m in await drain(early, 2)] == [b"before", b"after"]


async def test_two_consumers_share_the_segments(client: engine.AsyncClient):
    await client.admin.create_topic("t", segments=4)
    one = await client.stream_consumer("t", "s", name="one", initial_position="earliest")
    two = await client.stream_consumer("t", "s", name="two", initial_position="earliest")
    async with await client.producer("t") as producer:
        await asyncio.gather(*(producer.send(b"x", key=b"k%d" % n) for n in range(400)))
    seen: dict[str, set[int]] = {"one": set(), "two": set()}
    total = 0
    while total < 400:
        for consumer in (one, two):
            batch = await consumer.receive_batch(timeout=0.2)
            seen[consumer.name] |= set(batch.segments)
            total += len(batch)
            await consumer.acknowledge_cumulative(batch)
    assert total == 400
    assert {len(segments) for segments in seen.values()} == {2}
    assert seen["one"].isdisjoint(seen["two"])
    await one.close()  # its segments move to the other
    async with await client.producer("t") as producer:
        await asyncio.gather(*(producer.send(b"y", key=b"k%d" % n) for n in range(400)))
    assert {m.value for m in await drain(two, 400)} == {b"y"}
    await two.close()


async def test_queue_consumers_divide_the_messages_and_take_over(client: engine.AsyncClient):
    """C2: acknowledged never again, unacknowledged at once when the consumer closes, the count grows."""
    one = await client.queue_consumer("t", "s", initial_position="earliest")
    async with await client.producer("t") as producer:
        await asyncio.gather(*(producer.send(b"%d" % n) for n in range(20)))
    taken = await drain(one, 20)
    for message in taken[:12]:
        await one.acknowledge(message)
    two = await client.queue_consumer("t", "s")
    await one.close()
    again = await drain(two, 8)
    assert sorted(m.value for m in again) == sorted(m.value for m in taken[12:])
    assert {m.redelivery_count for m in again} == {1}
    await two.negative_acknowledge(again[0], delay=0)
    back = await two.receive(timeout=10)
    assert back is not None
    assert (back.id, back.redelivery_count) == (again[0].id, 2)
    for message in again:
        await two.acknowledge(message.id)
    assert await two.receive(timeout=0.05) is None
    await two.close()


async def test_checkpoints(client: engine.AsyncClient):
    await client.admin.create_topic("t", segments=2)
    async with await client.producer("t") as producer:
        await asyncio.gather(*(producer.send(b"%d" % n, key=b"k%d" % n) for n in range(100)))
        async with await client.checkpoint_consumer("t", start=engine.Checkpoint.earliest()) as reader:
            first = await drain(reader, 40)
            kept = (await reader.checkpoint()).to_bytes()
        async with await client.checkpoint_consumer("t", start=engine.Checkpoint.from_bytes(kept)) as reader:
            rest = await drain(reader, 60)
            assert await reader.receive(timeout=0.05) is None
            assert sorted(int(m.value) for m in first + rest) == list(range(100))
            await reader.seek(engine.Checkpoint.earliest())
            assert len(await drain(reader, 100)) == 100
        async with await client.checkpoint_consumer("t") as latest:
            await producer.send(b"new")
            assert [m.value for m in await drain(latest, 1)] == [b"new"]
        past = engine.Checkpoint.at_timestamp(datetime.now(UTC) - timedelta(hours=1))
        async with await client.checkpoint_consumer("t", start=past) as reader:
            assert len(await drain(reader, 101)) == 101
        future = engine.Checkpoint.at_timestamp(datetime.now(UTC) + timedelta(hours=1))
        async with await client.checkpoint_consumer("t", start=future) as reader:
            assert await reader.receive(timeout=0.05) is None


async def test_iteration_ends_with_the_consumer(client: engine.AsyncClient):
    async with await client.producer("t") as producer:
        await asyncio.gather(*(producer.send(b"%d" % n) for n in range(5)))
    consumer = await client.stream_consumer("t", "s", initial_position="earliest")
    seen = []
    async for message in consumer:
        seen.append(int(message.value))
        if len(seen) == 5:
            await consumer.close()
    assert seen == list(range(5))


async def test_a_named_producer_sent_again_is_not_stored_again(client: engine.AsyncClient):
    """D3: after a restart, under its name, with the sequence ids it had."""
    async with await client.producer("t", name="till") as producer:
        first = await producer.send(b"a", sequence_id=5)
        assert producer.last_sequence_id == 5
    async with await client.producer("t", name="till", initial_sequence_id=4) as producer:
        await producer.send(b"a", sequence_id=5)
    async with await client.producer("t", name="till") as producer:
        assert producer.last_sequence_id == 5
        following = await producer.send(b"b")
    assert (first.offset, following.offset) == (0, 1)


async def test_producers_that_want_to_be_alone(client: engine.AsyncClient):
    async with await client.producer("t", access_mode="exclusive"):
        with pytest.raises(engine.ProducerBusyError):
            await client.producer("t", access_mode="exclusive")
    async with await client.producer("t", access_mode="exclusive") as producer:
        await producer.send(b"x")


async def test_what_is_too_large_or_of_the_wrong_kind_is_refused_before_it_is_sent(client: engine.AsyncClient):
    async with await client.producer("t") as producer:
        with pytest.raises(engine.MessageTooLargeError):
            await producer.send(bytes(6 << 20))
        with pytest.raises(engine.MessageTooLargeError):
            producer.send_nowait(b"", key=bytes(65 << 10))
        for arguments in ({"key": 3}, {"properties": {"a": 1}}, {"event_time": "now"}, {"sequence_id": -1}):
            with pytest.raises(engine.InvalidArgumentError):
                await producer.send(b"x", **arguments)  # type: ignore[arg-type]
        with pytest.raises(engine.InvalidArgumentError):
            await producer.send("text")
        with pytest.raises(engine.InvalidArgumentError):
            await producer.send_batch([b"a", b"b"], keys=[b"k"])
        assert (await producer.send(bytes(5 << 20))).offset == 0


async def test_admin(client: engine.AsyncClient):
    admin = client.admin
    await admin.create_topic("one", segments=3, properties={"team": "a"}, key_hash="murmur3", durability="os")
    await admin.create_topic("public/default/two")
    with pytest.raises(engine.AlreadyExistsError):
        await admin.create_topic("one")
    assert await admin.list_topics("public/default") == ["topic://public/default/one", "topic://public/default/two"]
    assert await admin.list_topics("public/default", {"team": "a"}) == ["topic://public/default/one"]
    metadata = await admin.get_metadata("one")
    assert len(metadata["segments"]) == 3
    assert metadata["keyHash"] == "murmur3"
    await admin.create_subscription("one", "s", initial_position="earliest")
    with pytest.raises(engine.AlreadyExistsError):
        await admin.create_subscription("one", "s")
    async with await client.producer("one") as producer:
        await asyncio.gather(*(producer.send(b"x", key=b"%d" % n) for n in range(30)))
    stats = await admin.get_stats("one")
    assert stats["subscriptions"]["s"]["backlog"] == 30
    await admin.clear_backlog("one", "s")
    assert (await admin.get_stats("one"))["subscriptions"]["s"]["backlog"] == 0
    await admin.seek_subscription("one", "s", "earliest")
    async with await client.stream_consumer("one", "s") as consumer:
        assert len(await drain(consumer, 30)) == 30
    await admin.seek_subscription("one", "s", datetime.now(UTC) + timedelta(hours=1))
    await admin.delete_subscription("one", "s")
    with pytest.raises(engine.NotFoundError):
        await admin.delete_subscription("one", "s")
    await admin.delete_topic("one")
    for gone in (admin.get_metadata("one"), admin.get_stats("one"), admin.delete_topic("one")):
        with pytest.raises(engine.NotFoundError):
            await gone
    for malformed in ("", "a/b", "http://a/b/c", "topic://a/b/c/d", "a/b/c\n"):
        with pytest.raises(engine.InvalidArgumentError):
            await admin.create_topic(malformed)
    with pytest.raises(engine.InvalidArgumentError):
        await admin.create_topic("three", segments=0)
    await admin.set_auto_scale_policy("two", {"max_segments": 8})
    assert await admin.get_auto_scale_policy("two") == {"max_segments": 8}


async def test_admin_of_segments(client: engine.AsyncClient):
    admin = client.admin
    await admin.create_topic("t")
    await admin.create_subscription("t", "s", initial_position="earliest")
    assert (await admin.split_segment("t", 0))["epoch"] == 1
    assert (await admin.merge_segments("t", 2, 1))["epoch"] == 2
    metadata = await admin.rebucket_segment("t", 3, 7)
    assert len(metadata["segments"]["4"]["bucketBoundaries"]) == 7
    assert await admin.get_metadata("t") == metadata
    whole = "segment://public/default/t/0000-ffff-"
    await admin.create_segment(f"{whole}4", ["s"])
    await admin.terminate_segment(f"{whole}0")
    await admin.delete_segment(f"{whole}0")
    await admin.delete_segment(f"{whole}0", force=True)
    assert "0" not in (await admin.get_metadata("t"))["segments"]
    for refused in (
        admin.split_segment("t", "4"),  # type: ignore[arg-type]
        admin.split_segment("t", True),
        admin.split_segment("t", -1),
        admin.split_segment("t", 3),
        admin.merge_segments("t", 4, 4),
        admin.rebucket_segment("t", 4, 0),
        admin.rebucket_segment("t", 4, 7),
        admin.create_segment(f"{whole}4", "s"),
        admin.create_segment(f"{whole}3"),
        admin.create_segment("t"),
        admin.terminate_segment(f"{whole}4"),
        admin.delete_segment(f"{whole}4", force=True),
    ):
        with pytest.raises(engine.InvalidArgumentError):
            await refused
    for missing in (
        admin.split_segment("nothing", 0),
        admin.create_segment(f"{whole}4", ["nobody"]),
        admin.terminate_segment(f"{whole}9"),
    ):
        with pytest.raises(engine.NotFoundError):
            await missing
    assert (await admin.get_metadata("t"))["epoch"] == 4  # of the last one that was not refused


async def test_whether_a_topic_exists(client: engine.AsyncClient):
    assert not await client.topic_exists("t")
    assert await client.admin.list_topics() == []
    await client.admin.create_topic("t")
    assert await client.topic_exists("topic://public/default/t")
    with pytest.raises(engine.InvalidArgumentError):
        await client.topic_exists("a/b")


async def test_names_with_unusual_characters(client: engine.AsyncClient):
    topic = "größe&co?#%20+x"
    await client.admin.create_topic(topic)
    await client.admin.create_subscription(topic, "a+b%2F", initial_position="earliest")
    async with await client.producer(topic) as producer:
        await producer.send(b"x")
    async with await client.stream_consumer(topic, "a+b%2F") as consumer:
        assert [m.topic for m in await drain(consumer, 1)] == [f"topic://public/default/{topic}"]
    assert f"topic://public/default/{topic}" in await client.admin.list_topics()


async def test_deleting_a_topic_ends_its_producers_and_consumers(client: engine.AsyncClient):
    producer = await client.producer("t")
    await producer.send(b"x")
    consumer = await client.stream_consumer("t", "s")
    waiting = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    await client.admin.delete_topic("t")
    with pytest.raises(engine.NotFoundError):
        await waiting
    with pytest.raises(engine.NotFoundError):
        await producer.send(b"x")
    await consumer.close()
    await producer.close()


async def test_a_client_that_was_closed_says_so(client: engine.AsyncClient):
    producer = await client.producer("t")
    consumer = await client.stream_consumer("t", "s")
    await client.close()
    await client.close()
    for call in (producer.send(b"x"), consumer.receive(), client.producer("t"), client.stream_consumer("t", "s")):
        with pytest.raises(engine.AlreadyClosedError):
            await call


@pytest.mark.parametrize("first", ["stream", "queue"])
async def test_a_consumer_of_another_kind_is_refused_at_once(client: engine.AsyncClient, first: str):
    makers = {"stream": client.stream_consumer, "queue": client.queue_consumer}
    other = "queue" if first == "stream" else "stream"
    async with await makers[first]("t", "s"):
        for _ in range(2):
            with pytest.raises(engine.ConsumerBusyError, match=rf"'s' of .*read by .*{first}.* {first}_consumer\("):
                await makers[other]("t", "s")
        async with await makers[first]("t", "s"):
            pass
    async with await makers[other]("t", "s"):  # whoever came first has left
        pass


def test_a_client_stays_with_the_event_loop_that_used_it_first(tmp_path: Path):
    async def send(client: engine.AsyncClient) -> None:
        async with await client.producer("t") as producer:
            await producer.send(b"x")

    with engine.open(tmp_path, listen="127.0.0.1:0") as e:
        client = engine.AsyncClient(e.service_url)
        with asyncio.Runner() as first, asyncio.Runner() as second:
            first.run(send(client))
            with pytest.raises(engine.AlreadyClosedError, match="another event loop"):
                second.run(send(client))
            first.run(send(client))
            first.run(client.close())
