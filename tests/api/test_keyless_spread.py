"""Many producers of few keyless messages use every segment of a topic."""

from __future__ import annotations

from engine.client import AsyncClient


async def counts(client: AsyncClient, topic: str) -> list[int]:
    segments = (await client.admin.get_stats(topic))["segments"].values()
    return [segment["nextOffset"] for segment in segments]


async def test_named_and_short_lived_producers_spread_over_the_segments(client: AsyncClient) -> None:
    for topic, producers, messages, named in (("named", 40, 5, True), ("unnamed", 30, 1, False)):
        await client.admin.create_topic(topic, segments=4)
        for i in range(producers):
            async with await client.producer(topic, name=f"worker-{i}" if named else None) as producer:
                for _ in range(messages):
                    await producer.send(b"job")
        found = await counts(client, topic)
        assert sum(found) == producers * messages
        if named:
            assert min(found) > 0, found
            assert max(found) < producers * messages / 2, found
        assert max(found) < producers * messages, "names of unnamed producers differ in each run"
