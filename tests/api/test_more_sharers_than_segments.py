"""As many ordered consumers as there are buckets, over all segments of a wide topic (PIP-486, use case 3)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import engine

SEGMENTS, CONSUMERS, BUCKETS = 64, 200, 256
KEYS, ROUNDS = 4_000, 5


async def test_64_segments_and_200_consumers_all_receive(tmp_path: Path):
    """Auto-scale is on, and finds nothing to do: the buckets suffice."""
    async with engine.open_async(tmp_path / "data") as client:
        await client.admin.create_topic("t", segments=SEGMENTS, entry_buckets=BUCKETS)
        consumers = [
            await client.stream_consumer("t", "s", name=f"c{n:03d}", initial_position="earliest")
            for n in range(CONSUMERS)
        ]
        arrived = asyncio.Semaphore(0)
        readers = [asyncio.create_task(read(consumer, arrived)) for consumer in consumers]
        async with await client.producer("t") as producer:
            for number in range(ROUNDS):
                values = [b"%d" % number] * KEYS
                await producer.send_batch(values, keys=[b"k%d" % key for key in range(KEYS)])
            await producer.flush()
        async with asyncio.timeout(60):
            for _ in range(KEYS * ROUNDS):
                await arrived.acquire()
        await asyncio.gather(*(consumer.close() for consumer in consumers))
        got = await asyncio.gather(*readers)
        assert all(got), "all of them receive"
        owners: dict[bytes, set[int]] = defaultdict(set)
        for number, messages in enumerate(got):
            seen: dict[bytes, int] = {}
            for key, value in messages:
                owners[key].add(number)
                assert seen.get(key, -1) + 1 == value, f"{key!r} has a gap, or is out of order"
                seen[key] = value
        assert len(owners) == KEYS
        assert all(len(numbers) == 1 for numbers in owners.values()), "a key is wholly with one"
        assert (await client.admin.get_metadata("t"))["epoch"] == 0


async def read(consumer: engine.AsyncStreamConsumer, arrived: asyncio.Semaphore) -> list[tuple[bytes, int]]:
    """(key, number) of what it is given, until it is closed."""
    found: list[tuple[bytes, int]] = []
    try:
        while True:
            batch = await consumer.receive_batch()
            found += [(m.key or b"", int(m.value)) for m in batch]
            for _ in batch:
                arrived.release()
            await consumer.acknowledge_cumulative(batch)
    except engine.AlreadyClosedError:
        return found
