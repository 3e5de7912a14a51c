"""NATS JetStream: a file store, `publish_async` with 4,000 outstanding; a pull consumer that acknowledges the last."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import nats
from nats.errors import Error
from nats.js.api import AckPolicy, ConsumerConfig, StorageType

from engine.cli.peers.peer import Rows

WINDOW = 4_000
READ = 1_000
TIMEOUT_S = 30.0

T = TypeVar("T")


class NatsStream:
    """A stream whose subjects end with the key. Its client runs on a loop of its own while it is called."""

    def __init__(self, url: str, topic: str) -> None:
        self._topic = topic
        self._runner = asyncio.Runner()
        self._client: Any = None
        self._stream: Any = None
        try:
            self._run(self._open(url))
        except BaseException:
            self._runner.close()
            raise

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(work)
        except (Error, TimeoutError) as e:
            raise OSError(f"NATS: {e or type(e).__name__}") from e

    async def _open(self, url: str) -> None:
        self._client = await nats.connect(url, allow_reconnect=False, connect_timeout=TIMEOUT_S)
        self._stream = self._client.jetstream(timeout=TIMEOUT_S, publish_async_max_pending=WINDOW)
        await self._stream.add_stream(name=self._topic, subjects=[f"{self._topic}.>"], storage=StorageType.FILE)

    def publish(self, rows: Rows) -> None:
        self._run(self._publish(rows))

    async def _publish(self, rows: Rows) -> None:
        send = self._stream.publish_async
        for key, value in rows:
            await send(f"{self._topic}.{key.decode()}", value)
        await asyncio.wait_for(self._stream.publish_async_completed(), TIMEOUT_S)

    def publish_each(self, rows: Rows) -> None:
        self._run(self._publish_each(rows))

    async def _publish_each(self, rows: Rows) -> None:
        for key, value in rows:
            await self._stream.publish(f"{self._topic}.{key.decode()}", value)

    def consume(self, count: int) -> int:
        return self._run(self._consume(count))

    async def _consume(self, count: int) -> int:
        config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=100_000)
        subscription = await self._stream.pull_subscribe(
            f"{self._topic}.>", durable="engine", stream=self._topic, config=config
        )
        size = got = 0
        while got < count:
            messages = await subscription.fetch(min(READ, count - got), timeout=TIMEOUT_S)
            got += len(messages)
            size += sum(len(message.data) for message in messages)
            await messages[-1].ack()
        await self._client.flush()
        await subscription.unsubscribe()
        return size

    def close(self) -> None:
        try:
            self._run(self._close())
        finally:
            self._runner.close()

    async def _close(self) -> None:
        await self._stream.delete_stream(self._topic)
        await self._client.close()


connected = NatsStream
