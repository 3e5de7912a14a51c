"""What the tests of queue consumers share: what is published, and who receives it."""

from __future__ import annotations

import engine


async def publish(client: engine.AsyncClient, count: int, topic: str = "t", **options: object) -> None:
    async with await client.producer(topic, batching=engine.Batching(**options)) as producer:  # type: ignore[arg-type]
        for i in range(count):
            producer.send_nowait(b"%d" % i, key=b"k", properties={"n": str(i)}, event_time=1000 + i)
        await producer.flush()


async def received(consumer: engine.AsyncQueueConsumer, timeout: float = 10) -> engine.Message:
    message = await consumer.receive(timeout)
    assert message is not None, "nothing came"
    return message


async def everything(consumer: engine.AsyncQueueConsumer, count: int) -> list[engine.Message]:
    found: list[engine.Message] = []
    while len(found) < count:
        batch = await consumer.receive_batch(timeout=10)
        assert len(batch), f"{len(found)} of {count} came"
        found += batch
    return found
