"""Reading ranges on the broker's machine: a topic of many kinds, and who reads it how."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import engine
from engine.aio.files import ReadFile

Place = tuple[int, int, bytes]


@asynccontextmanager
async def client_of(
    served: engine.AsyncEngine, open_file: Callable[[str], ReadFile] = ReadFile
) -> AsyncIterator[engine.AsyncClient]:
    async with engine.AsyncClient(served.service_url) as client:
        client.pool.options = dataclasses.replace(client.pool.options, open_file=open_file)
        yield client


def nothing_opens(path: str) -> ReadFile:
    raise PermissionError(13, "not for you", path)


async def write(client: engine.AsyncClient, count: int = 2000, topic: str = "t", admin: Any = None) -> None:
    """Over two segments and a split; every third group of messages is in a transaction, every other one aborted."""
    admin = admin or client.admin
    await admin.create_topic(topic, segments=2, entry_buckets=4)
    async with await client.producer(topic, compression="lz4") as producer:
        for start in range(0, count, 50):
            if start == count // 2:
                await admin.split_segment(topic, 0)
            values = [b"%d" % n * (1 + n % 40) for n in range(start, start + 50)]
            keys = [b"k%d" % (n % 30) for n in range(50)]
            if start % 150:
                await producer.send_batch(values, keys=keys)
                await producer.flush()
                continue
            transaction = await client.transaction()
            await producer.send_batch(values, keys=keys, transaction=transaction)
            await (transaction.abort() if start % 300 else transaction.commit())


async def ranges_of(client: engine.AsyncClient, topic: str = "t") -> dict[int, tuple[int, int]]:
    async with await client.topic_view(topic) as view:
        found = await view.segments(exact=True)
    return {i: (s.first, s.end) for i, s in found.segments.items()}


async def read(client: engine.AsyncClient, ranges: Any, topic: str = "t", **options: Any) -> list[Place]:
    async with await client.range_reader(topic, ranges, **options) as reader:
        batches = [batch async for batch in reader.batches(options.get("receive_queue_size", 1000))]
    return [(m.id.segment_id, m.id.offset, m.value) for batch in batches for m in batch]


def counted(served: engine.AsyncEngine) -> tuple[int, int]:
    """(messages that were sent, messages that were to be read from files)."""
    hosted = list(served.broker.segments)
    return sum(h.sent_messages for h in hosted), sum(h.near_messages for h in hosted)
