"""Producers over a real engine while their topic is reshaped: nothing is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.wire.connector import SocketConnector
from engine.wire.stream import FrameHandler, FrameStream

KEYS = [f"k{n}" for n in range(25)]

Sent = list[tuple[str | None, asyncio.Future[engine.MessageId]]]


class Cutting:
    """A Connector whose connections can all be cut."""

    def __init__(self) -> None:
        self._tcp = SocketConnector()
        self._streams: list[FrameStream] = []

    async def connect(self, url: str, handler: Callable[[FrameStream], FrameHandler]) -> FrameStream:
        stream = await self._tcp.connect(url, handler)
        self._streams.append(stream)
        return stream

    def cut(self) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.abort()


class Load:
    """Sends and sends, of every key in order, until it is stopped."""

    def __init__(self, producer: engine.AsyncProducer) -> None:
        self.producer = producer
        self.sent: Sent = []
        self._going = True
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._going:
            for key in [*KEYS, None]:
                self.sent.append((key, asyncio.ensure_future(self.producer.send(b"v", key=key))))
            await asyncio.sleep(0)
            await self.producer.writable()
            if len(self.sent) % 10 == 0:
                await asyncio.sleep(0.001)

    async def stop(self) -> Sent:
        self._going = False
        await self._task
        await self.producer.flush()
        return self.sent


async def active(client: engine.AsyncClient, topic: str = "t") -> list[dict[str, Any]]:
    """The segments that take messages, by range."""
    segments = (await client.admin.get_metadata(topic))["segments"]
    found = [s for s in (segments.values() if isinstance(segments, dict) else segments) if s["state"] == "ACTIVE"]
    return sorted(found, key=lambda s: s["hashRange"]["start"])


async def reshape(client: engine.AsyncClient, rng: random.Random) -> None:
    """One random change."""
    segments = [s["segmentId"] for s in await active(client)]
    at = rng.randrange(len(segments))
    kind = rng.choice(["split", "merge", "rebucket"])
    if kind == "split" and len(segments) < 6:
        await client.admin.split_segment("t", segments[at])
    elif kind == "rebucket" or len(segments) == 1:
        with contextlib.suppress(engine.InvalidArgumentError):  # it has so many already
            await client.admin.rebucket_segment("t", segments[at], rng.choice([1, 2, 8, 16]))
    else:
        at = min(at, len(segments) - 2)
        await client.admin.merge_segments("t", segments[at], segments[at + 1])


async def check(client: engine.AsyncClient, sent: Sent, *, lossless: bool) -> None:
    """Each once: as many lie there as were sent, no two in one place; and those of a key in the order of sending."""
    stats = await client.admin.get_stats("t")
    segments = stats["segments"].values() if isinstance(stats["segments"], dict) else stats["segments"]
    assert sum(s["nextOffset"] for s in segments) == len(sent)
    ids = [await future for _, future in sent]
    known = [(i.segment_id, i.offset) for i in ids if i.offset >= 0]
    assert len(set(known)) == len(known)
    assert not lossless or len(known) == len(sent), "an offset is unknown only where a receipt was lost"
    last: dict[str, tuple[int, int]] = {}
    for (key, _), found in zip(sent, ids, strict=True):
        if key is not None and found.offset >= 0:
            place = (found.segment_id, found.offset)  # children have larger ids than their parents
            assert last.get(key, (-1, -1)) < place
            last[key] = place


@pytest.mark.parametrize("seed", [1, 2])
async def test_23_a_topic_is_reshaped_under_load(client: engine.AsyncClient, seed: int):
    rng = random.Random(seed)
    await client.admin.create_topic("t", segments=2)
    producers = [await client.producer("t", compression=codec) for codec in ("none", "zstd")]
    loads = [Load(producer) for producer in producers]
    for _ in range(12):
        await asyncio.sleep(0.03)
        await reshape(client, rng)
    await asyncio.sleep(0.03)
    sent = [await load.stop() for load in loads]
    for load in sent:
        assert load
    await check_each(client, sent)
    for producer in producers:
        await producer.close()


async def check_each(client: engine.AsyncClient, sent: list[Sent]) -> None:
    together = [one for load in sent for one in load]
    stats = await client.admin.get_stats("t")
    segments = stats["segments"].values() if isinstance(stats["segments"], dict) else stats["segments"]
    assert sum(s["nextOffset"] for s in segments) == len(together)
    for load in sent:
        last: dict[str, tuple[int, int]] = {}
        for key, future in load:
            found = await future
            assert found.offset >= 0
            if key is not None:
                assert last.get(key, (-1, -1)) < (found.segment_id, found.offset)
                last[key] = (found.segment_id, found.offset)
    places = [(f.result().segment_id, f.result().offset) for _, f in together]
    assert len(set(places)) == len(places)


@contextlib.asynccontextmanager
async def cutting(tmp_path: Path) -> AsyncIterator[tuple[engine.AsyncClient, engine.AsyncClient, Cutting]]:
    """(a client that is not disturbed, one that is, what disturbs it)."""
    connector = Cutting()
    async with (
        engine.open_async(tmp_path / "data", listen="127.0.0.1:0") as served,
        engine.AsyncClient(served.service_url, connector=connector) as client,
    ):
        yield served, client, connector


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_24_connections_are_lost_while_a_topic_is_reshaped(tmp_path: Path, seed: int):
    rng = random.Random(seed)
    async with cutting(tmp_path) as (served, client, connector):
        await served.admin.create_topic("t", segments=2)
        load = Load(await client.producer("t", name="p", batching=engine.Batching(max_messages=20)))
        for _ in range(12):
            await asyncio.sleep(rng.random() * 0.05)
            change = asyncio.ensure_future(reshape(served, rng))
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(rng.random() * 0.01)
                connector.cut()
            await change
        sent = await load.stop()
        await check(served, sent, lossless=False)


async def test_24_a_restart_between_the_loss_and_the_retry(tmp_path: Path):
    """What a merged segment knew of a producer, of both its parents, is there after a crash of the broker."""
    async with cutting(tmp_path) as (served, client, _):
        await served.admin.create_topic("t", segments=2)
        producer = await client.producer("t", name="p")
        await asyncio.gather(*(producer.send(b"v", key=key) for key in KEYS))
        first, second = [s["segmentId"] for s in await active(served)]
        await served.admin.merge_segments("t", first, second)
        await asyncio.gather(*(producer.send(b"v", key=key) for key in KEYS))
    async with engine.open_async(tmp_path / "data") as again:
        alone = engine.Batching(max_messages=1)  # batches are other ones the second time
        producer = await again.producer("t", name="p", initial_sequence_id=-1, batching=alone)
        assert producer.last_sequence_id == -1
        ids = await asyncio.gather(*(producer.send(b"v", key=key) for key in KEYS * 2))
        assert {i.segment_id for i in ids} == {2}
        stats = await again.admin.get_stats("t")
        segments = stats["segments"].values() if isinstance(stats["segments"], dict) else stats["segments"]
        assert sum(s["nextOffset"] for s in segments) == 2 * len(KEYS)


async def test_25_exclusive_access_survives_a_split(client: engine.AsyncClient):
    await client.admin.create_topic("t", segments=1)
    producer = await client.producer("t", access_mode="exclusive")
    await producer.send(b"v")
    await client.admin.split_segment("t", 0)
    await producer.send(b"v", key="a")
    await producer.send(b"v", key="b")
    with pytest.raises(engine.ProducerBusyError):
        await client.producer("t", access_mode="exclusive")
    await producer.close()
    again = await client.producer("t", access_mode="exclusive")
    await again.send(b"v")


async def test_25_who_waits_for_exclusive_access_waits_through_a_split(client: engine.AsyncClient):
    await client.admin.create_topic("t", segments=1)
    holder = await client.producer("t", access_mode="exclusive")
    await holder.send(b"v")
    waiting = asyncio.ensure_future(client.producer("t", access_mode="wait_for_exclusive"))
    await asyncio.sleep(0.05)
    await client.admin.split_segment("t", 0)
    for key in KEYS:
        await holder.send(b"v", key=key)
    await asyncio.sleep(0.5)
    assert not waiting.done()
    await holder.send(b"v", key="a")
    await holder.send(b"v", key="b")
    await holder.close()
    heir = await asyncio.wait_for(waiting, 10)
    assert {(await heir.send(b"v", key=key)).segment_id for key in KEYS} == {1, 2}


async def test_24_a_named_producer_continues_behind_what_parents_knew(client: engine.AsyncClient):
    await client.admin.create_topic("t", segments=1)
    async with await client.producer("t", name="p") as producer:
        for key in KEYS:
            await producer.send(b"v", key=key)
    await client.admin.split_segment("t", 0)
    async with await client.producer("t", name="p") as producer:
        assert producer.last_sequence_id == len(KEYS) - 1
        assert (await producer.send(b"v", key="k")).offset == 0


def test_23_blocking_producers_follow(blocking: engine.Client):
    blocking.admin.create_topic("t", segments=1)
    with blocking.producer("t") as producer:
        for round_ in range(3):
            for key in KEYS:
                producer.send_nowait(b"v", key=key)
            blocking.admin.split_segment("t", round_ * 2)
            assert producer.send(b"v", key="a").offset >= 0
        producer.flush()
