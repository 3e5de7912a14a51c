"""What the tests of consumers of many topics share: a namespace, its topics, and who sends and reads there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import engine

NS = "shop/eu"


def full(*names: str) -> list[str]:
    return [f"topic://{NS}/{name}" for name in names]


async def make(client: engine.AsyncClient, *names: str, **options: Any) -> None:
    for topic in full(*names):
        await client.admin.create_topic(topic, **options)


async def send(client: engine.AsyncClient, name: str, values: Iterable[bytes]) -> None:
    async with await client.producer(*full(name)) as producer:
        await producer.send_batch(list(values))


async def take(consumer: Any, count: int) -> list[engine.Message]:
    found: list[engine.Message] = []
    while len(found) < count:
        message = await consumer.receive(timeout=20)
        assert message is not None, f"{len(found)} of {count} came"
        found.append(message)
    return found


async def stream(client: engine.AsyncClient, **options: Any) -> engine.AsyncMultiStreamConsumer:
    made = {"namespace": NS, "initial_position": "earliest", **options}
    consumer = await client.stream_consumer(None, "s", **made)
    assert isinstance(consumer, engine.AsyncMultiStreamConsumer)
    return consumer


async def left_over(client: engine.AsyncClient, **options: Any) -> dict[str, list[bytes]]:
    """What the subscription has not acknowledged, by topic; nothing is acknowledged."""
    found: dict[str, list[bytes]] = defaultdict(list)
    async with await stream(client, **options) as consumer:
        while batch := await consumer.receive_batch(timeout=0.5):
            found[batch.topic.rsplit("/")[-1]] += batch.values
    return dict(found)
