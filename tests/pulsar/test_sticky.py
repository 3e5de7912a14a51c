"""Key_Shared consumers that ask for hash ranges: each gets the keys whose hashes lie in its own, and no others."""

from __future__ import annotations

from typing import Any

import engine
from engine._native.produce.hashing import murmur3_32
from engine.pulsar.server_errors import CONSUMER_BUSY, NOT_ALLOWED
from tests.pulsar.conftest import connect, service_url
from tests.pulsar.raw import Raw, greeted

KEY_SHARED, STICKY, AUTO = 3, 1, 0
RING = 65_536
COUNT = 60


async def subscribe(raw: Raw, topic: str, number: int, ranges: list[tuple[int, int]], mode: int = STICKY) -> Any:
    """The answer: its name, and itself."""
    asked = {"mode": mode, "ranges": [{"start": start, "end": end} for start, end in ranges]}
    await raw.say_command(
        "subscribe", topic=topic, subscription="s", type=KEY_SHARED, consumer=number, request=number,
        initial_position=1, key_shared=asked,
    )  # fmt: skip
    return await raw.hear()


async def test_each_consumer_gets_the_keys_of_its_ranges(served: engine.Engine, topic: str) -> None:
    client = connect(service_url(served))
    producer = client.create_producer(topic)
    for n in range(COUNT):
        producer.send(b"%d" % n, partition_key=f"key-{n}")
    client.close()
    async with Raw(served) as raw:
        await greeted(raw)
        own = {1: [(0, 9_999), (40_000, RING - 1)], 2: [(10_000, 39_999)]}
        for number, ranges in own.items():
            assert (await subscribe(raw, topic, number, ranges))[0] == "success"
        for number in own:
            await raw.say_command("flow", consumer=number, permits=COUNT)
        expected = dict.fromkeys(own, 0)
        for n in range(COUNT):
            place = murmur3_32(b"key-%d" % n) % RING
            expected[next(i for i, ranges in own.items() if any(a <= place <= b for a, b in ranges))] += 1
        assert all(expected.values())
        for _ in range(COUNT):
            await raw.heard("message")
        assert {number: raw.consumers.count(number) for number in own} == expected


async def test_ranges_that_cannot_be_had_are_refused(served: engine.Engine, topic: str) -> None:
    async with Raw(served) as raw:
        await greeted(raw)
        assert (await subscribe(raw, topic, 1, [(0, 100)]))[0] == "success"
        refused: list[tuple[list[tuple[int, int]], int, int, str]] = [
            ([(100, 200)], STICKY, CONSUMER_BUSY, "in part another consumer's"),
            ([(200, 300), (250, 400)], STICKY, CONSUMER_BUSY, "in part another consumer's"),
            ([(200, RING)], STICKY, NOT_ALLOWED, "must lie in 0 to 65535"),
            ([(300, 200)], STICKY, NOT_ALLOWED, "must lie in 0 to 65535"),
            ([], STICKY, NOT_ALLOWED, "at least one hash range"),
            ([], AUTO, CONSUMER_BUSY, "must all be sticky"),
        ]
        for number, (ranges, mode, error, text) in enumerate(refused, 2):
            name, said = await subscribe(raw, topic, number, ranges, mode)
            assert (name, said.error) == ("error", error)
            assert text in said.message
        assert (await subscribe(raw, topic, 20, [(101, RING - 1)]))[0] == "success"
