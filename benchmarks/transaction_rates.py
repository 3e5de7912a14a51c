"""What transactions cost: the same groups of messages with one each and without, commits by themselves, many open ones.

A group is sent, and waited for until it is durable; the one in a transaction also until that is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from processes import Server
from support import Rows, run, sized
from workloads import new_topic, publish_each

GROUP = 100  # messages of one transaction
SEGMENTS = 4
AT_ONCE = 32
OPEN = sized(10_000, 20)
BEGUN_AT_ONCE = 100
TIMEOUT_S = 600.0


def groups_of(sample: Rows) -> Iterator[Rows]:
    """The rows, a hundred at a time."""
    return (sample[start : start + GROUP] for start in range(0, len(sample), GROUP))


async def _send(client: Any, producer: Any, group: Rows, transactional: bool) -> None:
    if not transactional:
        for key, value in group:
            producer.send_nowait(value, key=key)
        await producer.flush()
        return
    async with client.transaction(TIMEOUT_S) as transaction:
        for key, value in group:
            producer.send_nowait(value, key=key, transaction=transaction)


async def group_seconds(client: Any, topic: str, sample: Rows, at_once: int, transactional: bool) -> float:
    """Seconds for all groups, `at_once` of them on their way at any time."""
    async with await client.producer(topic) as producer:
        started = time.perf_counter()
        await send_groups(client, producer, sample, at_once, transactional)
        return time.perf_counter() - started


async def send_groups(client: Any, producer: Any, sample: Rows, at_once: int, transactional: bool) -> None:
    """Send all groups, `at_once` of them on their way at any time."""
    groups = groups_of(sample)

    async def one_by_one() -> None:
        for group in groups:
            await _send(client, producer, group, transactional)

    await asyncio.gather(*(one_by_one() for _ in range(at_once)))


async def group_rate(client: Any, sample: Rows, at_once: int, transactional: bool) -> float:
    """Messages per second into a new topic of four segments."""
    async with new_topic(client, segments=SEGMENTS) as topic:
        await group_seconds(client, topic, sample[: 10 * GROUP], at_once, transactional)  # attached, warm
        return len(sample) / await group_seconds(client, topic, sample, at_once, transactional)


async def stream_rate(client: Any, sample: Rows) -> float:
    """Messages per second when only the end is awaited."""
    async with new_topic(client, segments=SEGMENTS) as topic:
        return len(sample) / await publish_each(client, topic, sample)


async def commit_seconds(client: Any, count: int) -> list[float]:
    """How long the commit alone took, of so many transactions with a message each."""
    waits = []
    async with new_topic(client, segments=SEGMENTS) as topic, await client.producer(topic) as producer:
        for number in range(count):
            transaction = await client.transaction(TIMEOUT_S)
            await producer.send(b"%d" % number, key=b"k%d" % number, transaction=transaction)
            started = time.perf_counter()
            await transaction.commit()
            waits.append(time.perf_counter() - started)
    return waits


# -- many open ones -----------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def open_transactions(client: Any, count: int) -> AsyncIterator[None]:
    """So many, with a message each in a topic of their own; aborted afterwards."""
    async with new_topic(client, segments=SEGMENTS) as topic, await client.producer(topic) as producer:
        opened = []
        for start in range(0, count, BEGUN_AT_ONCE):
            begun = await asyncio.gather(
                *(client.transaction(TIMEOUT_S).__aenter__() for _ in range(min(BEGUN_AT_ONCE, count - start)))
            )
            for transaction in begun:
                producer.send_nowait(b"x", key=transaction.id.encode(), transaction=transaction)
            await producer.flush()
            opened += begun
        yield
        for start in range(0, count, BEGUN_AT_ONCE):
            await asyncio.gather(*(one.abort() for one in opened[start : start + BEGUN_AT_ONCE]))


async def many_open(client: Any, broker: Server, sample: Rows, count: int = OPEN) -> dict[str, float]:
    """Memory of an open transaction, and what publishing to another topic, with and without one, is then like."""
    before = broker.resident_bytes()
    figures = {
        "plain, none open": await stream_rate(client, sample),
        "transactions, none open": await group_rate(client, sample[: len(sample) // 4], AT_ONCE, True),
    }
    async with open_transactions(client, count):
        figures["open transaction bytes"] = max(0, broker.resident_bytes() - before) / count
        figures["plain, many open"] = await stream_rate(client, sample)
        figures["transactions, many open"] = await group_rate(client, sample[: len(sample) // 4], AT_ONCE, True)
    return figures


def over(url: str, use: Any) -> Any:
    """What `use` returns for a client of its own."""
    import engine

    async def main() -> Any:
        async with engine.AsyncClient(url) as client:
            return await use(client)

    return run(main())
