"""Transactions of users across changes of a topic's shape, while their messages are on their way."""

from __future__ import annotations

import asyncio

import pytest

import engine
from engine.client.client import AsyncClient

IN_TIME = 20.0  # for what comes at once, on a busy machine too
KEYS = 16


async def reshape(client: AsyncClient, how: str) -> None:
    """One change of the topic `t`, which has two segments."""
    if how == "split":
        await client.admin.split_segment("t", 0)
    elif how == "merge":
        await client.admin.merge_segments("t", 0, 1)
    else:
        await client.admin.rebucket_segment("t", 0, 7)


@pytest.mark.parametrize("how", ["split", "merge", "rebucket"])
async def test_messages_under_way_while_the_topic_changes(client: AsyncClient, how: str):
    """One transaction commits, another aborts, a third of the messages is in none; per key, order stays."""
    await client.admin.create_topic("t", segments=2)
    async with await client.producer("t") as producer:
        one, other = await client.transaction(), await client.transaction()
        changing = asyncio.ensure_future(asyncio.sleep(0))
        for i in range(900):
            which = (None, one, other)[i // 50 % 3]
            producer.send_nowait(b"%d" % i, key=b"k%d" % (i % KEYS), transaction=which)
            if i == 300:
                changing = asyncio.ensure_future(reshape(client, how))
            if i % 20 == 0:
                await producer.writable()
        await changing
        await other.abort()
        await one.commit()
        assert one.state == "COMMITTED"
        await producer.flush()
    expected = [i for i in range(900) if i // 50 % 3 != 2]
    consumer = await client.stream_consumer("t", "s", initial_position="earliest")
    async with consumer:
        found: list[engine.Message] = []
        while len(found) < len(expected):
            batch = await consumer.receive_batch(timeout=IN_TIME)
            assert len(batch)
            found += batch
            await consumer.acknowledge_cumulative(batch)  # the children come when their parents are read
        assert sorted(int(m.value) for m in found) == expected
        for key in {m.key for m in found}:
            of_key = [int(m.value) for m in found if m.key == key]
            assert of_key == sorted(of_key)
        assert await consumer.receive(timeout=0.05) is None
