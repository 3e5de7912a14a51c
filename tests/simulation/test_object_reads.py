"""Range readers read rolled files from the store of objects themselves: with the results that the broker gives, and
whatever happens to the objects meanwhile. Over real frames, on virtual time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from engine.broker.session import short_circuit
from engine.client.base import object_access
from engine.client.client import AsyncClient
from engine.errors import (
    AuthorizationError,
    CorruptionError,
    DecryptionError,
    EngineError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from engine.model.positions import Checkpoint
from engine.storage import consolidation
from engine.storage.objects import trim
from engine.storage.objects.ports import ObjectMissingError
from engine.testing.cluster import DEFAULT_CONFIG, SimCluster, simulate
from tests.api.near_reading import ranges_of, read, write
from tests.kit.key_pairs import x25519_pair
from tests.simulation.test_object_files import settled

CONFIG = replace(DEFAULT_CONFIG, balance_enabled=False, segments=1)
PIECE = 4_096
Body = Callable[[SimCluster], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, log_file_size: Any) -> None:
    """Files of several pieces, all of which are worth a request."""
    log_file_size(16_384)
    monkeypatch.setattr(object_access, "OBJECT_CHUNK_SIZE", PIECE)
    monkeypatch.setattr(object_access, "PIECE_SIZE_MIN", PIECE // 4)
    monkeypatch.setattr(short_circuit, "OBJECT_READ_MIN", 1)
    monkeypatch.setattr(consolidation, "OBJECT_SHARED_FILE_MAX", 0)  # shared objects are read by brokers alone


def run(body: Body, seed: int = 1, brokers: tuple[str, ...] = ("b1", "b2")) -> None:
    async def scenario(cluster: SimCluster) -> None:
        for name in brokers:
            await cluster.start(name)
        await body(cluster)
        assert not cluster.loop.problems

    simulate(seed, scenario, config=CONFIG, objects=True, time_limit=20_000)


class Reads:
    """The store as a client sees it, which may refuse or change what it reads. `ranges`: those that were read."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.ranges: list[tuple[str, int, int]] = []
        self.error: EngineError | None = None
        self.damage: Callable[[str, int, bytes], bytes] = lambda name, start, data: data
        self.opened = self.closed = 0

    def __call__(self) -> Reads:
        self.opened += 1
        return self

    async def get_range(self, name: str, start: int, end: int) -> memoryview:
        self.ranges.append((name, start, end))
        if self.error is not None:
            raise self.error
        data = bytes(await self.cluster.objects.get_range(name, start, end))
        return memoryview(self.damage(name, start, data))

    async def close(self) -> None:
        self.closed += 1

    def client(self, name: str = "near") -> AsyncClient:
        return self.cluster.client(name, objects=self)


def sent(cluster: SimCluster) -> int:
    """Messages that brokers have sent."""
    return sum(h.sent_messages for b in cluster.brokers.values() if b.broker for h in b.broker.segments)


async def filled(cluster: SimCluster, count: int = 6_000) -> dict[int, tuple[int, int]]:
    """A topic of many kinds of messages, all of which are in objects, but for the last ones."""
    client = cluster.client("writer")
    await write(client, count, admin=cluster.brokers["b1"].broker.admin)
    await settled(cluster)
    return await ranges_of(client)


def test_all_is_read_from_objects_and_nothing_is_sent() -> None:
    async def body(cluster: SimCluster) -> None:
        ranges = await filled(cluster)
        reads = Reads(cluster)
        client = reads.client()
        before = sent(cluster)
        found = await read(client, ranges)
        assert sent(cluster) == before
        assert {name.split("/")[0] for name, _, _ in reads.ranges} == {"log"}
        assert found == await read(cluster.client("far"), ranges)
        assert sent(cluster) - before == len(found)
        read_by_clients = [h.object_messages for b in cluster.brokers.values() for h in b.broker.segments]
        assert sum(read_by_clients) == len(found)
        assert client.pool.objects.ahead.readers == 0, "none is counted that has ended"
        await client.close()
        assert (reads.opened, reads.closed) == (1, 1)

    run(body)


def test_each_byte_of_a_whole_file_is_read_once() -> None:
    async def body(cluster: SimCluster) -> None:
        ranges = await filled(cluster)
        reads = Reads(cluster)
        await read(reads.client(), ranges)
        by_file: dict[str, list[tuple[int, int]]] = {}
        for name, start, end in reads.ranges:
            by_file.setdefault(name, []).append((start, end))
        assert len(by_file) > 10
        for name, pieces in by_file.items():
            size = len(cluster.objects.objects[name])
            assert [start for start, _ in pieces] == [0, *(end for _, end in pieces[:-1])]
            assert len(pieces) <= -(-size // PIECE)

    run(body)


def test_encrypted_and_delayed_messages_are_read_as_others() -> None:
    pair = x25519_pair(7)

    async def body(cluster: SimCluster) -> None:
        await cluster.brokers["b1"].broker.admin.create_topic("t", segments=2)
        async with await cluster.client("writer").producer("t", encryption_keys={"k": pair.public}) as producer:
            for n in range(300):
                await producer.send(b"%d" % n * 30, key=f"k{n}", deliver_after=3600 if n % 3 == 0 else None)
        await settled(cluster)
        ranges = await ranges_of(cluster.client("view"))
        reads, before = Reads(cluster), sent(cluster)
        found = await read(reads.client(), ranges, decryption_keys={"k": pair.private})
        assert sent(cluster) == before
        assert sorted(value for _, _, value in found) == sorted(b"%d" % n * 30 for n in range(300))
        assert found == await read(cluster.client("far"), ranges, decryption_keys={"k": pair.private})
        with pytest.raises(DecryptionError):
            await read(reads.client(), ranges)

    run(body)


@pytest.mark.parametrize("seed", range(3))
def test_any_part_of_it_is_what_the_broker_gives(seed: int) -> None:
    async def body(cluster: SimCluster) -> None:
        ranges = await filled(cluster)
        rng = random.Random(seed)
        client, far = Reads(cluster).client(), cluster.client("far")
        for _ in range(12):
            part = {i: tuple(sorted((rng.randint(first, end), rng.randint(first, end))))
                    for i, (first, end) in ranges.items()}  # fmt: skip
            options = {} if rng.random() < 0.5 else {"buckets": (0, rng.randrange(65_536))}
            size = rng.choice((1, 7, 1000))
            assert await read(client, part, receive_queue_size=size, **options) == await read(far, part, **options)
            assert client.pool.objects.ahead.readers == 0

    run(body, seed)


@pytest.mark.parametrize("seed", range(4))
def test_while_files_roll_are_named_and_deleted_and_objects_vanish(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What both readers get is the same; what one of them lacks, retention had deleted before it came there."""
    monkeypatch.setattr(trim, "GRACE_S", 0.0)

    async def body(cluster: SimCluster) -> None:
        rng = random.Random(seed)
        ranges = await filled(cluster, 3_000)
        reads = Reads(cluster)
        client, far, writer = reads.client(), cluster.client("far"), cluster.client("more")
        expected = dict(await places(far, ranges))
        cluster.objects.delay_s_max = 0.5

        async def go_on() -> None:
            async with await writer.producer("t") as producer:
                for n in range(60):
                    await producer.send(rng.randbytes(900), key=f"k{n % 30}")

        async def vanish() -> None:
            """What the records still name is deleted: brokers have it in their caches, or it is nowhere."""
            for _ in range(20):
                await asyncio.sleep(rng.random())
                names = [name for name, _, _ in reads.ranges[-3:]]
                names += [file.key for file in rng.sample(named_files(cluster), 3)]
                reads.damage = lambda name, start, data, gone=names: _missing(name) if name in gone else data

        async def look() -> None:
            for _ in range(6):
                found = await places(client, ranges)
                assert found == {place: expected[place] for place in found}
                assert len(found) == len(expected)

        await asyncio.gather(go_on(), vanish(), look())
        assert {name for name, _, _ in reads.ranges}
        again = await ranges_of(far)
        assert await read(Reads(cluster).client("late"), again) == await read(far, again)

    run(body, seed)


async def places(client: AsyncClient, ranges: Any, **options: Any) -> dict[tuple[int, int], bytes]:
    return {(segment, offset): value for segment, offset, value in await read(client, ranges, **options)}


def _missing(name: str) -> bytes:
    raise ObjectMissingError(name)


def test_what_retention_has_deleted_meanwhile_is_said_as_by_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(cluster: SimCluster) -> None:
        ranges = await filled(cluster)
        client = Reads(cluster).client()
        whole = await places(client, ranges)
        await delete_some(cluster)
        kept = await places(client, ranges, skip_deleted=True)
        assert kept == await places(cluster.client("far"), ranges, skip_deleted=True)
        assert 0 < len(kept) < len(whole)
        assert kept.items() <= whole.items()
        with pytest.raises(NotFoundError, match="retention has deleted"):
            await read(client, ranges)

    run(body)


def test_r17_a_reader_that_was_told_of_objects_that_are_deleted_then_asks_again() -> None:
    async def body(cluster: SimCluster) -> None:
        ranges = await filled(cluster)
        reads = Reads(cluster)
        client = reads.client()
        whole = await places(client, ranges)
        async with await client.range_reader("t", ranges, skip_deleted=True, receive_queue_size=10) as reader:
            first = await reader.next_batch(10)
            assert first is not None
            await delete_some(cluster)
            for name in [n for n in cluster.objects.objects if n.startswith("log/")]:
                if not any(name == file.key for file in named_files(cluster)):
                    del cluster.objects.objects[name]  # the grace is over
            rest = [batch async for batch in reader.batches()]
            lost = sum(reader.deleted.values())
        found = {(m.id.segment_id, m.id.offset): m.value for batch in [first, *rest] for m in batch}
        assert found.items() <= whole.items()
        assert lost > 0
        kept = await places(cluster.client("far"), ranges, skip_deleted=True)
        assert kept.items() <= found.items()

    run(body)


def open_segments(cluster: SimCluster) -> list[Any]:
    return [h.segment for b in cluster.brokers.values() if b.broker for h in b.broker.segments]


def named_files(cluster: SimCluster) -> list[Any]:
    return [file for segment in open_segments(cluster) for file in segment.consolidation.named.objects.files]


async def delete_some(cluster: SimCluster) -> None:
    """Retention deletes the first half of every segment."""
    for broker in cluster.brokers.values():
        for hosted in broker.broker.segments:
            middle = (hosted.segment.first_offset + hosted.segment.durable_offset) // 2
            await hosted.segment.retain(middle, retention_ms=None, retention_bytes=0)


@pytest.mark.parametrize("error", [AuthorizationError("no"), StorageError("no answer"), UnsupportedError("no obstore")])
def test_without_a_right_in_the_store_it_is_read_through_the_broker(error: EngineError) -> None:
    async def body(cluster: SimCluster) -> None:
        ranges = await filled(cluster)
        reads = Reads(cluster)
        reads.error = None if isinstance(error, UnsupportedError) else error

        def opens() -> Any:
            if reads.error is None:
                raise error
            return reads

        client, before = cluster.client("near", objects=opens), sent(cluster)
        found = await read(client, ranges)
        assert sent(cluster) - before == len(found)
        assert len(reads.ranges) <= 1, "a refusal is not asked for again and again"
        assert found == await read(cluster.client("far"), ranges)

    run(body)


@pytest.mark.parametrize("where", ["header", "entry", "footer", "cut off", "another file"])
def test_damage_is_named_with_key_and_byte_and_the_broker_is_asked(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(cluster: SimCluster) -> None:
        ranges = await filled(cluster)
        reads = Reads(cluster)
        files = {file.key: file for file in named_files(cluster)}

        def flipped(name: str, start: int, data: bytes) -> bytes:
            file = files[name]
            at = {"header": 10, "entry": 3_000, "footer": file.size - 20}.get(where)
            if where == "cut off":
                return data[:-1]
            if where == "another file":
                other = next(key for key in files if key != name)
                return cluster.objects.objects[other][start : start + len(data)].ljust(len(data), b"\0")
            if at is None or not start <= at < start + len(data):
                return data
            return data[: at - start] + bytes([data[at - start] ^ 1]) + data[at - start + 1 :]

        reads.damage = flipped
        part = {i: (first + (where == "footer"), end) for i, (first, end) in ranges.items()}
        found = await read(reads.client(), part)
        assert found == await read(cluster.client("far"), part)

    run(body)
    said = [r.getMessage() for r in caplog.records if r.name == "engine.client.base.object_access"]
    assert any("log/simulated/" in text and ", position " in text for text in said), said


def test_r17_a_file_of_another_topic_is_never_read_as_this_one() -> None:
    """Not even one of the same segment number, offsets and size."""

    async def body(cluster: SimCluster) -> None:
        client, admin = cluster.client("writer"), cluster.brokers["b1"].broker.admin
        for topic in ("t", "u"):
            await admin.create_topic(topic)
            async with await client.producer(topic) as producer:
                for n in range(60):
                    await producer.send(b"%s%03d" % (topic.encode(), n) * 100)
        await settled(cluster)
        keys = {(file.first, file.end, file.size, "/t/" in file.key): file.key for file in named_files(cluster)}
        reads = Reads(cluster)

        def swapped(name: str, start: int, data: bytes) -> bytes:
            like = next((*facts[:3], False) for facts, key in keys.items() if key == name)
            return cluster.objects.objects[keys[like]][start : start + len(data)]

        reads.damage = swapped
        ranges = await ranges_of(client)
        assert [value[:4] for _, _, value in await read(reads.client(), ranges)] == [b"t%03d" % n for n in range(60)]
        assert reads.ranges

    run(body)


def test_damage_that_the_broker_has_too_is_corruption_with_key_and_byte() -> None:
    async def body(cluster: SimCluster) -> None:
        ranges = await filled(cluster)
        file = named_files(cluster)[0]
        for broker in cluster.brokers.values():
            await broker.lose_machine()  # with what it had in its cache
        image = bytearray(cluster.objects.objects[file.key])
        image[3_000] ^= 1
        cluster.objects.objects[file.key] = bytes(image)
        await cluster.start("b3")
        with pytest.raises(CorruptionError) as far:
            await read(cluster.client("far"), ranges)
        with pytest.raises(CorruptionError) as near:
            await read(Reads(cluster).client(), ranges)
        assert str(near.value) == str(far.value)
        assert f"{file.key}, position " in str(near.value)

    run(body)


@pytest.mark.parametrize("queue", [200, 100_000])
def test_the_broker_sends_what_is_in_no_object_and_nothing_else(queue: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read of objects and not received yet is not sent again."""

    async def body(cluster: SimCluster) -> None:
        await cluster.brokers["b1"].broker.admin.create_topic("t", segments=2)
        producer = await cluster.client("writer").producer("t")
        for n in range(900):
            producer.send_nowait(b"%d" % n * 40, key=f"k{n}")
            if n % 30 == 29:
                await producer.flush()
            if n == 599:
                await settled(cluster)
        files = named_files(cluster)
        ends = {s.name.segment_id: s.consolidation.named.end_offset for s in open_segments(cluster)}
        ranges = await ranges_of(cluster.client("writer"))
        behind = sum(end - ends[i] for i, (_, end) in ranges.items())
        assert len(files) > 2
        assert behind > 0
        reads, before = Reads(cluster), sent(cluster)
        found: list[Any] = []
        async with await reads.client().range_reader("t", ranges, receive_queue_size=queue) as reader:
            while (batch := await reader.next_batch(50)) is not None:
                found += [(m.id.segment_id, m.id.offset, m.value) for m in batch]
                await asyncio.sleep(0.05)  # virtual: what comes next is queued, and the owner attached behind it
        assert sent(cluster) - before == behind
        assert found == await read(cluster.client("far"), ranges)
        assert len(found) == 900

    run(body)


def test_a_small_range_is_not_worth_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_circuit, "OBJECT_READ_MIN", 1 << 20)

    async def body(cluster: SimCluster) -> None:
        ranges = await filled(cluster)
        reads = Reads(cluster)
        assert await read(reads.client(), ranges) == await read(cluster.client("far"), ranges)
        assert reads.ranges == []

    run(body)


async def consumed(client: AsyncClient, start: Checkpoint, count: int, pause: float = 0.0) -> tuple[Any, Checkpoint]:
    """So many messages of a checkpoint consumer, by place, and where it stands then. It is a slow one, with a pause."""
    consumer = await client.checkpoint_consumer("t", start=start)
    found: list[tuple[int, int, bytes]] = []
    while len(found) < count:
        batch = await consumer.receive_batch(min(200, count - len(found)), timeout=60)
        found += [(m.id.segment_id, m.id.offset, m.value) for m in batch]
        await asyncio.sleep(pause)
    place = await consumer.checkpoint()
    await consumer.close()
    return found, place


@pytest.mark.parametrize("pause", [0.0, 0.2])
def test_a_checkpoint_consumer_reads_what_is_old_from_objects(pause: float) -> None:
    async def body(cluster: SimCluster) -> None:
        ranges = await filled(cluster)
        expected = {(i, offset): value for i, offset, value in await read(cluster.client("far"), ranges)}
        reads, before = Reads(cluster), sent(cluster)
        client = reads.client()
        found, place = await consumed(client, Checkpoint.earliest(), len(expected), pause)
        assert sent(cluster) == before
        assert {(i, offset): value for i, offset, value in found} == expected
        parents = [n for n, (i, _, _) in enumerate(found) if i == 0]
        children = [n for n, (i, _, _) in enumerate(found) if i not in (0, 1)]
        assert max(parents) < min(children), "a child is read behind its parent"
        async with await cluster.client("more").producer("t") as producer:
            for n in range(20):
                await producer.send(b"more %d" % n, key=f"k{n}")
        more, _ = await consumed(client, place, 20)
        assert sorted(value for _, _, value in more) == sorted(b"more %d" % n for n in range(20))
        assert sent(cluster) - before == 20

    run(body)


@pytest.mark.parametrize("seed", range(4))
def test_a_checkpoint_consumer_goes_on_where_it_stood_while_objects_vanish_and_brokers_go(seed: int) -> None:
    """Consumers one behind the other, each from the checkpoint of the one before: every message once."""

    async def body(cluster: SimCluster) -> None:
        rng = random.Random(seed)
        ranges = await filled(cluster, 3_000)
        expected = await places(cluster.client("far"), ranges)
        reads = Reads(cluster)
        client = reads.client()

        async def trouble() -> None:
            for _ in range(4):
                await asyncio.sleep(rng.uniform(0.5, 3))
                gone = {file.key for file in rng.sample(named_files(cluster), 3)}
                reads.damage = lambda name, start, data, gone=gone: _missing(name) if name in gone else data
            await next(b for b in cluster.brokers.values() if list(b.broker.segments)).lose_machine()
            await cluster.start("b3")

        task = asyncio.ensure_future(trouble())
        found: dict[tuple[int, int], bytes] = {}
        place = Checkpoint.earliest()
        while len(found) < len(expected):
            count = min(rng.randint(1, 600), len(expected) - len(found))
            some, place = await consumed(client, place, count, rng.choice((0.0, 0.3)))
            for segment, offset, value in some:
                assert (segment, offset) not in found
                found[segment, offset] = value
        assert found == expected
        await task

    run(body, seed)
