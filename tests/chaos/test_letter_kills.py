"""Black box: a real server is killed while a queue gives everything up; each message is one letter (semantics 21)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

import pytest

import engine
from tests.chaos.server import Server

MESSAGES = 3_000
KILLS = 2
LETTERS_S_MAX = 120.0  # until those are visible that stand behind the transaction of a consumer that was cancelled


async def give_up(client: engine.AsyncClient, moved: asyncio.Event, most: int) -> None:
    """Hand back so many on their last delivery, and wait to be cancelled."""
    async with await client.queue_consumer(
        "t", "s", initial_position="earliest", nack_backoff=0, dead_letter=engine.DeadLetter(0)
    ) as consumer:
        given = 0
        while True:
            batch = await consumer.receive_batch(max_messages=50, timeout=0.05)
            if given < most:
                given += len(batch)
                await consumer.negative_acknowledge(batch, reason="of no use")
            if consumer.statistics().dead_lettered:
                moved.set()


async def backlog(client: engine.AsyncClient) -> int:
    """Of the queue."""
    stats = await client.admin.get_stats("t")
    return stats["subscriptions"]["s"]["backlog"]


@pytest.mark.timeout(600)
async def test_letters_under_kills(tmp_path):
    rng, server = random.Random(1), Server(tmp_path / "data")
    await server.start()
    async with engine.AsyncClient(server.url) as client:
        async with await client.producer("t") as producer:
            for n in range(MESSAGES):
                producer.send_nowait(b"%d" % n, key=b"%d" % n)
            await producer.flush()
        for kill in range(KILLS + 1):
            moved = asyncio.Event()
            most = MESSAGES if kill == KILLS else MESSAGES // 10  # by each of two: no kill comes too late
            workers = [asyncio.ensure_future(give_up(client, moved, most)) for _ in range(2)]
            if kill < KILLS:
                await moved.wait()
                await asyncio.sleep(rng.uniform(0.0, 0.05))
                await server.kill()
                await server.start()
            else:
                while await backlog(client):  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.1)
            for worker in workers:
                worker.cancel()
                with contextlib.suppress(asyncio.CancelledError, engine.EngineError):
                    await worker
            assert await backlog(client) if kill < KILLS else True, "each kill is in the middle"
        found = Counter[bytes]()
        async with await client.stream_consumer("t-DLQ", "watch", initial_position="earliest") as dead:
            while len(batch := await dead.receive_batch(timeout=LETTERS_S_MAX if found.total() < MESSAGES else 2.0)):
                found.update(bytes(m.value) for m in batch)
        assert found == Counter(b"%d" % n for n in range(MESSAGES))
    await server.close()
