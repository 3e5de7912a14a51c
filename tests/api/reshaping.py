"""Who publishes, who reads and who changes the topic's shape in the tests of reshaping."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import engine
from engine.errors import AlreadyClosedError

KEYS = 40


class Publisher:
    """Sends values "key:counter" as long as it runs; the counters of each key rise by one."""

    def __init__(self, client: engine.AsyncClient, topic: str = "t") -> None:
        self.client = client
        self.topic = topic
        self.sent = 0
        self._running = True

    async def __aenter__(self) -> Publisher:
        self._producer = await self.client.producer(self.topic)
        self._task = asyncio.create_task(self._run())
        return self

    async def _run(self) -> None:
        while self._running:
            await self.some()
            await asyncio.sleep(0.002)

    async def some(self) -> None:
        """One of each key."""
        sends = [self._producer.send(b"%d:%d" % (k, self.sent), key=b"%d" % k) for k in range(KEYS)]
        self.sent += 1
        await asyncio.gather(*sends)

    async def until(self, more: int) -> None:
        """Wait until so much more was sent."""
        enough = self.sent + more
        while self.sent < enough:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.002)

    async def stop(self) -> None:
        """Nothing follows; all of it is stored."""
        self._running = False
        await self._task

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
        await self._producer.close()

    def missing(self, values: Iterable[bytes]) -> set[bytes]:
        """What was sent and is not among these."""
        return {b"%d:%d" % (k, n) for k in range(KEYS) for n in range(self.sent)} - set(values)


def assert_in_order(values: Iterable[bytes]) -> None:
    """Per key rising by one: nothing twice, nothing left out."""
    following: dict[bytes, int] = defaultdict(int)
    for value in values:
        key, _, counter = value.partition(b":")
        assert int(counter) == following[key], f"{value!r} came where {following[key]} was due"
        following[key] += 1


class Reader:
    """Receives in the background, in the order it comes, and acknowledges each batch."""

    def __init__(self, consumer: Any, values: list[bytes], acknowledge: Callable[..., Awaitable[None]] | None) -> None:
        self.consumer = consumer
        self.values = values
        self._acknowledge = acknowledge
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            batch = await self.consumer.receive_batch(50)
            self.values += batch.values
            if self._acknowledge is not None:
                await self._acknowledge(batch)

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, AlreadyClosedError):
            await self.task


async def reshape(client: engine.AsyncClient, publisher: Publisher, rounds: int = 2) -> None:
    """1 → 2 → 3 → 2 → 1 segments, again and again, while it is published."""
    for _ in range(rounds):
        (only,) = await active(client)
        await client.admin.split_segment("t", only)
        await publisher.until(3)
        left, right = await active(client)
        await client.admin.split_segment("t", right)
        await publisher.until(3)
        left, middle, right = await active(client)
        await client.admin.merge_segments("t", left, middle)
        await publisher.until(3)
        await client.admin.merge_segments("t", *await active(client))
        await publisher.until(3)


async def active(client: engine.AsyncClient) -> list[int]:
    """The ids of the active segments, by hash range."""
    segments = (await client.admin.get_metadata("t"))["segments"].values()
    found = sorted((s["hashRange"]["start"], s["segmentId"]) for s in segments if s["state"] == "ACTIVE")
    return [segment_id for _, segment_id in found]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)
