"""Connections that break all the time: nothing is lost, reordered or stored twice, and nobody sees an error."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

import engine
from engine.wire.commands import Header
from engine.wire.connector import SocketConnector
from engine.wire.stream import FrameHandler, FrameStream

MESSAGES = 3_000
KEYS = 13


class Tearing:
    """A Connector whose connections all break: each a few frames after it was made, at once or some milliseconds later.

    Counted in frames and for ever: a slow machine takes longer for a connection, and gets as much out of it. A fault
    by the clock alone would, on a machine that is too slow, only show that nothing can be done in no time.
    """

    def __init__(self, rng: random.Random, frames_max: int) -> None:
        """`frames_max`: the longest life; it must be enough to attach everything and get one answer."""
        self.rng = rng
        self.frames_max = frames_max
        self.torn = 0
        self.on = False  # what is connected lives on until this is set
        self._tcp = SocketConnector()

    async def connect(self, url: str, handler: Callable[[FrameStream], FrameHandler]) -> FrameStream:
        """A connection with its days numbered."""
        return await self._tcp.connect(url, lambda stream: Torn(self, stream, handler(stream)))


class Torn:
    """A FrameHandler in front of the client's own."""

    def __init__(self, tearing: Tearing, stream: FrameStream, handler: FrameHandler) -> None:
        self._tearing = tearing
        self._stream = stream
        self._handler = handler
        self._left = tearing.rng.randint(1, tearing.frames_max)
        self.pause_writing = handler.pause_writing
        self.resume_writing = handler.resume_writing
        self.connection_lost = handler.connection_lost

    def frame_received(self, header: Header, payload: memoryview) -> None:
        """One more; perhaps the last."""
        self._handler.frame_received(header, payload)
        if self._tearing.on:
            self._left -= 1
            if self._left == 0:
                self._tear()

    def _tear(self) -> None:
        self._tearing.torn += 1
        rng = self._tearing.rng
        if rng.random() < 0.5:
            self._stream.abort()
        else:
            asyncio.get_running_loop().call_later(rng.uniform(0, 0.02), self._stream.abort)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_torn_connections(tmp_path: Path, seed: int):
    """D1, D3, O1, O2 and C1 under resets, with a producer of each kind of call."""
    rng = random.Random(seed)
    tearing = Tearing(rng, 24)
    async with (
        engine.open_async(tmp_path / "data", listen="127.0.0.1:0") as served,
        engine.AsyncClient(served.service_url, connector=tearing) as client,
    ):
        await served.admin.create_topic("t", segments=3)
        producer = await client.producer("t", name="p", batching=engine.Batching(max_messages=20))
        consumer = await client.stream_consumer("t", "s", initial_position="earliest")
        tearing.on = True
        sending = asyncio.ensure_future(send_all(producer, rng))
        received = await receive_all(consumer, rng)
        acknowledged = await sending
        tearing.on = False
        stored = await read_back(served)
    assert tearing.torn >= 10, f"seed {seed}"
    values = [int(m.value) for m in stored]
    assert sorted(values) == list(range(MESSAGES)), f"seed {seed}"
    where = {(m.segment_id, m.offset): int(m.value) for m in stored}
    assert all(where[segment, offset] == n for n, (segment, offset) in acknowledged.items())
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    for message in stored:
        by_key[message.key].append(int(message.value))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert received == set(range(MESSAGES))


async def send_all(producer: engine.AsyncProducer, rng: random.Random) -> dict[int, tuple[int, int]]:
    """Every number once; {number: (segment, offset)} of those whose offset the broker still knew."""
    waiting: dict[int, asyncio.Future[engine.MessageId]] = {}
    for n in range(MESSAGES):
        key = b"k%d" % (n % KEYS)
        if n % 3:
            producer.send_nowait(b"%d" % n, key=key)
        else:
            waiting[n] = asyncio.ensure_future(producer.send(b"%d" % n, key=key))
            await asyncio.sleep(0)
        if n % 50 == 49:
            await asyncio.sleep(rng.uniform(0, 0.02))
    await producer.flush()
    ids = {n: await future for n, future in waiting.items()}
    return {n: (i.segment_id, i.offset) for n, i in ids.items() if i.offset >= 0}


async def receive_all(consumer: engine.AsyncStreamConsumer, rng: random.Random) -> set[int]:
    """Until every number was seen; within a segment, offsets go back only to what was not acknowledged."""
    seen: set[int] = set()
    confirmed: dict[int, int] = defaultdict(int)
    while len(seen) < MESSAGES:
        batch = await consumer.receive_batch(max_messages=rng.randrange(1, 400), timeout=20)
        assert len(batch), "nothing came any more"
        for message in batch:
            assert message.offset >= confirmed[message.segment_id]
            seen.add(int(message.value))
        if rng.random() < 0.5:
            await consumer.acknowledge_cumulative(batch)
            confirmed.update(batch.positions)
    return seen


async def read_back(client: engine.AsyncClient) -> list[engine.Message]:
    """Everything, by a reader over a connection that holds. What is there too often comes soon behind the rest."""
    found: list[engine.Message] = []
    async with await client.checkpoint_consumer("t", start=engine.Checkpoint.earliest()) as reader:
        while batch := await reader.receive_batch(timeout=20 if len(found) < MESSAGES else 0.2):
            found += batch
    return found


@pytest.mark.parametrize("seed", [4, 5])
async def test_torn_connections_of_a_queue_consumer(tmp_path: Path, seed: int):
    """C2: what is acknowledged never comes again, everything else does until it is."""
    rng = random.Random(seed)
    tearing = Tearing(rng, 8)
    async with (
        engine.open_async(tmp_path / "data", listen="127.0.0.1:0") as served,
        engine.AsyncClient(served.service_url, connector=tearing) as client,
    ):
        await served.admin.create_topic("t", segments=2)
        consumer = await client.queue_consumer("t", "s", initial_position="earliest")
        async with await served.producer("t") as producer:
            await producer.send_batch([b"%d" % n for n in range(MESSAGES)], keys=[b"k%d" % n for n in range(MESSAGES)])
        tearing.on = True
        confirmed: set[engine.MessageId] = set()
        while len(confirmed) < MESSAGES:
            batch = await consumer.receive_batch(max_messages=rng.randrange(1, 60), timeout=20)
            assert len(batch), "nothing came any more"
            assert not confirmed & {m.id for m in batch}
            if rng.random() < 0.3:
                await asyncio.sleep(rng.uniform(0, 0.02))
            await consumer.acknowledge(batch)
            confirmed |= {m.id for m in batch}
        tearing.on = False
    assert tearing.torn >= 10, f"seed {seed}"
