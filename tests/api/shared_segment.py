"""Topics of one segment with several buckets, and consumers that share it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import engine
from engine.client.consume.stream_consumer import AsyncStreamConsumer
from engine.client.local import LocalClient
from tests.api.reshaping import KEYS, until

Sharer = AsyncStreamConsumer


async def make_topic(client: engine.AsyncClient, buckets: int = 8) -> None:
    """A topic "t" of one segment, which stays so."""
    await client.admin.create_topic("t", segments=1, entry_buckets=buckets)
    await client.admin.set_auto_scale_policy("t", {"enabled": False})


async def join(client: engine.AsyncClient, *names: str, ahead: int = 1000) -> list[Sharer]:
    """Consumers of the subscription "s", from the earliest message on, each sent so many messages ahead."""
    made: list[Any] = [
        await client.stream_consumer("t", "s", name=name, initial_position="earliest", receive_queue_size=ahead)
        for name in names
    ]
    return made


def modes(consumer: Sharer) -> dict[int, str]:
    """How it is attached to the segments it has."""
    return {i: a.mode for i, a in consumer.attachments.items() if a.connected and not a.draining}


async def settled(mode: str, *consumers: Sharer) -> None:
    """Until all of them are attached in this mode, and in no other."""
    await until(lambda: all(set(modes(c).values()) == {mode} for c in consumers))


async def send(client: engine.AsyncClient, first: int, count: int, keys: int = KEYS) -> list[bytes]:
    """So many messages "key:counter" of each key, one entry each."""
    sent = []
    async with await client.producer("t") as producer:
        for counter in range(first, first + count):
            values = [b"%d:%d" % (key, counter) for key in range(keys)]
            await asyncio.gather(*(producer.send(v, key=v.partition(b":")[0]) for v in values))
            sent += values
    return sent


async def take(consumer: Sharer, count: int) -> list[engine.Message]:
    """Exactly so many messages."""
    found: list[engine.Message] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += await consumer.receive_batch(count - len(found))
    return found


async def take_waiting(*consumers: Sharer) -> list[list[engine.Message]]:
    """What each of them has got when nothing more comes."""
    return [list(await _waiting(consumer)) for consumer in consumers]


async def _waiting(consumer: Sharer) -> list[engine.Message]:
    found: list[engine.Message] = []
    while len(batch := await consumer.receive_batch(timeout=0.2)):
        found += batch
    return found


def values_of(messages: Sequence[engine.Message]) -> list[bytes]:
    return [m.value for m in messages]


def keys_of(messages: Sequence[engine.Message]) -> set[bytes | None]:
    return {m.key for m in messages}


class Worker:
    """Receives, notes into a list that others share, acknowledges; until it is told to leave."""

    def __init__(self, consumer: Sharer, values: list[bytes]) -> None:
        self.consumer = consumer
        self.values = values
        self.got = 0
        self._leaving = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._leaving:
            batch = await self.consumer.receive_batch(50, timeout=0.05)
            self.values += batch.values
            self.got += len(batch)
            await self.consumer.acknowledge_cumulative(batch)

    async def leave(self) -> None:
        """All that it was given is acknowledged by then."""
        self._leaving = True
        await self._task
        await self.consumer.close()


def clients_of(opened: engine.AsyncEngine, count: int) -> list[engine.AsyncClient]:
    """Clients of one embedded engine, with connections of their own."""
    broker = opened.broker
    return [LocalClient(broker.accept_local, broker.service_url, broker.admin) for _ in range(count)]


def crash(client: engine.AsyncClient) -> None:
    """Its process dies: nothing is said, nothing comes back."""
    client.pool.closed = True
    tear(client)


def tear(client: engine.AsyncClient) -> None:
    """Its connections break."""
    for connection in client.pool.connections:
        connection.stream.abort()
