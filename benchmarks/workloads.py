"""The work that the bars name, on any asynchronous client: a server's or an embedded engine's.

Each publishes to a topic of its own, made before the clock starts and deleted afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from pace import Ticker
from stamps import padding, stamped, unstamped
from support import Rows, rows

PUBLISHERS = 64
ROOM_EVERY = 1000  # messages between two looks at the room there is
COLUMNS = 10_000  # messages of one send_batch
RECEIVE_S_MAX = 30.0
_numbers = itertools.count(1)


@contextlib.asynccontextmanager
async def new_topic(client: Any, **options: Any) -> AsyncIterator[str]:
    topic = f"bench-{next(_numbers)}"
    await client.admin.create_topic(topic, **options)
    yield topic
    await client.admin.delete_topic(topic)


# -- publishing: P3, P4, P9 ---------------------------------------------------------------------------------------


async def publish_each(client: Any, topic: str, sample: Rows) -> float:
    """Seconds to send_nowait every row and have all acknowledged."""
    async with await client.producer(topic) as producer:
        return await _send_each(producer, sample)


async def publish_again(client: Any, topic: str, sample: Rows) -> float:
    """The same once more by the same producer: segments are open, and it is attached to them."""
    async with await client.producer(topic) as producer:
        await _send_each(producer, sample)
        return await _send_each(producer, sample)


async def _send_each(producer: Any, sample: Rows) -> float:
    started = time.perf_counter()
    send = producer.send_nowait
    for start in range(0, len(sample), ROOM_EVERY):
        for key, value in sample[start : start + ROOM_EVERY]:
            send(value, key=key)
        await producer.writable()
    await producer.flush()
    return time.perf_counter() - started


async def publish_columns(client: Any, topic: str, sample: Rows) -> float:
    """The same by send_batch of lists."""
    pieces = [sample[start : start + COLUMNS] for start in range(0, len(sample), COLUMNS)]
    columns = [([value for _, value in piece], [key for key, _ in piece]) for piece in pieces]
    async with await client.producer(topic) as producer:
        started = time.perf_counter()
        for values, keys in columns:
            await producer.send_batch(values, keys=keys)
        await producer.flush()
        return time.perf_counter() - started


PUBLISH = {"send_nowait": publish_each, "send_batch": publish_columns}
AGAIN = "again"


async def publish_rate(client: Any, way: str, sample: Rows, **options: Any) -> float:
    """Messages per second into a new topic."""
    async with new_topic(client, **options) as topic:
        publish = publish_again if way == AGAIN else PUBLISH[way]
        return len(sample) / await publish(client, topic, sample)


async def publish_long(client: Any, sample: Rows, counts: tuple[int, ...]) -> list[float]:
    """Seconds until so many messages in a row, the sample over and over, were acknowledged; counts rise."""
    seconds, endless = [], itertools.cycle(sample)
    async with new_topic(client) as topic, await client.producer(topic) as producer:
        started, send, sent = time.perf_counter(), producer.send_nowait, 0
        for count in counts:
            while sent < count:
                for key, value in itertools.islice(endless, min(ROOM_EVERY, count - sent)):
                    send(value, key=key)
                sent = min(sent + ROOM_EVERY, count)
                await producer.writable()
            await producer.flush()
            seconds.append(time.perf_counter() - started)
    return seconds


# -- consuming: P5, P6, P9 ----------------------------------------------------------------------------------------


def take_messages(batch: Any) -> int:
    """Bytes of the values, read message by message."""
    size = 0
    for message in batch:
        size += len(message.value)
    return size


def take_columns(batch: Any) -> int:
    """Bytes of the values, as an Arrow column."""
    import pyarrow.compute as pc

    return int(pc.sum(pc.binary_length(batch.to_arrow().column("value"))).as_py())


CONSUME = {"messages": (take_messages, 10_000), "columns": (take_columns, 100_000)}


async def consume_seconds(client: Any, topic: str, way: str, count: int, size: int, *, awaited: bool = True) -> float:
    """Seconds for a new subscription to read the topic from its start and acknowledge it, batch by batch.

    `awaited`: each acknowledgement is; else all of them at the end.
    """
    take, batch_messages = CONSUME[way]
    got = bytes_got = 0
    started = time.perf_counter()
    consumer = await client.stream_consumer(topic, f"s{next(_numbers)}", initial_position="earliest")
    while got < count:
        batch = await consumer.receive_batch(max_messages=batch_messages, timeout=RECEIVE_S_MAX)
        if not len(batch):
            raise TimeoutError(f"{got} of {count} messages came")
        got += len(batch)
        bytes_got += take(batch)
        if awaited:
            await consumer.acknowledge_cumulative(batch)
        else:
            consumer.acknowledge_cumulative_nowait(batch)
    await consumer.flush()
    seconds = time.perf_counter() - started
    await consumer.close()
    if (got, bytes_got) != (count, count * size):
        raise RuntimeError(f"{got} messages of {bytes_got} bytes came, {count} of {count * size} were sent")
    return seconds


@contextlib.asynccontextmanager
async def filled_topic(client: Any, sample: Rows) -> AsyncIterator[str]:
    """A topic that holds the rows."""
    async with new_topic(client) as topic:
        await publish_columns(client, topic, sample)
        yield topic


async def consume_rate(client: Any, way: str, sample: Rows) -> float:
    """Messages per second out of a topic that was filled before."""
    async with filled_topic(client, sample) as topic:
        return len(sample) / await consume_seconds(client, topic, way, len(sample), len(sample[0][1]))


# -- waiting: P7, P8 ----------------------------------------------------------------------------------------------


@dataclass
class Delays:
    """What a consumer saw: seconds from when a message was due to when it was received."""

    count: int
    waits: list[float] = field(default_factory=list)

    async def collect(self, consumer: Any) -> None:
        """Receive until all are here."""
        while len(self.waits) < self.count:
            batch = await consumer.receive_batch(max_messages=500, timeout=RECEIVE_S_MAX)
            now = time.monotonic_ns()
            self.waits += [(now - unstamped(message.value)[0]) / 1e9 for message in batch]
            consumer.acknowledge_cumulative_nowait(batch)


async def delays(client: Any, rate: int, count: int, size: int, **options: Any) -> list[float]:
    """Seconds from due to received of `count` messages published at `rate` a second: a stall of the producer counts.

    Into a new topic of these options.
    """
    async with new_topic(client, **options) as topic:
        consumer = await client.stream_consumer(topic, "delays", initial_position="earliest")
        async with await client.producer(topic) as producer, asyncio.TaskGroup() as tasks:
            seen = Delays(count)
            tasks.create_task(seen.collect(consumer))
            ticker, sent, pad = Ticker(rate), 0, padding(size)
            while sent < count:
                for number in range(sent, min(await ticker.wait(), count)):
                    value = stamped(ticker.due_ns(number), number) + pad
                    tasks.create_task(producer.send(value, key=b"k%07d" % (number % 10_000)))
                    sent = number + 1
            ticker.close()
        await consumer.close()
        return seen.waits


async def warmed_delays(client: Any, rate: int, count: int, size: int, **options: Any) -> list[float]:
    """The same, after a quarter of it that does not count."""
    await delays(client, rate, count // 4, size, **options)
    return await delays(client, rate, count, size, **options)


async def publishers_rate(client: Any, sample: Rows, seconds: float) -> float:
    """Messages per second of 64 publishers that each wait for one acknowledgement before the next message."""
    async with new_topic(client) as topic, await client.producer(topic) as producer:
        started = time.perf_counter()
        end = started + seconds
        done = 0

        async def one(rows_left: Any) -> None:
            nonlocal done
            for key, value in rows_left:
                if time.perf_counter() > end:
                    return
                await producer.send(value, key=key)
                done += 1

        endless = itertools.cycle(sample)
        await asyncio.gather(*(one(endless) for _ in range(PUBLISHERS)))
        return done / (time.perf_counter() - started)


async def warm(client: Any) -> None:
    """Everything once, small, so that imports and first allocations are not measured."""
    few = rows(1000, 100)
    for way in PUBLISH:
        await publish_rate(client, way, few)
    for way in CONSUME:
        await consume_rate(client, way, few)
