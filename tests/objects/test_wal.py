"""The log of a session on a real S3 server: its format, the fence against PUTs in flight, a server that is killed."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from engine.errors import EngineError, UnknownOutcomeError
from engine.metadata.memory import MemoryMetadataStore
from engine.storage.objects.footers import Footers
from engine.storage.objects.format import FENCE, LogName, WalGroup
from engine.storage.objects.remote import RemoteObjectStore
from engine.storage.objects.wal import ObjectWal
from engine.storage.objects.writer import WalConfig
from engine.testing.clock import FakeClock
from tests.kit.s3_server import S3Server
from tests.objects.conftest import open_store

SEGMENT = "/topics/t/n/a/segments/0"
RACES = 8
OBJECTS = 300


async def opened(store: RemoteObjectStore, metadata: MemoryMetadataStore, name: str, seed: int = 0) -> ObjectWal:
    rng, config = random.Random(f"{name} {seed}"), WalConfig(flush_s=0.01, resolve_s=60.0)
    return await ObjectWal.open(store, metadata, "c", name, "engine://a", rng=rng, config=config, grace_s=0.0)


def group(offset: int, size: int = 2_000) -> WalGroup:
    body = random.Random(offset).randbytes(size)
    return WalGroup(SEGMENT, 1, offset, offset + 1, [body[:7], bytearray(body[7:])])


async def read(wal: ObjectWal, session: str, start: int, end: int) -> dict[int, bytes]:
    return {g.first_offset: bytes(data) async for g, data in wal.read(session, start, end, SEGMENT)}


async def test_what_was_acknowledged_is_read_by_another_session(store: RemoteObjectStore):
    metadata = MemoryMetadataStore(FakeClock())
    wal, other = await opened(store, metadata, "a"), await opened(store, metadata, "b")
    for first in range(0, 700, 7):
        appends = [asyncio.ensure_future(wal.append(group(offset))) for offset in range(first, first + 7)]
        await wal.drain()
        assert await asyncio.gather(*appends) == [first // 7] * 7
    assert await other.fence("a") == 100
    before = store.statistics().requests["get"]
    assert len(await Footers(store).of(LogName("c", "a"), 0, 100, SEGMENT)) == 100
    assert store.statistics().requests["get"] - before == 1 + 36
    found = await read(other, "a", 0, 100)
    assert found == {offset: b"".join(group(offset).buffers) for offset in range(700)}
    for each in (wal, other):
        await each.writer.close()


async def test_trimmed_objects_are_deleted(store: RemoteObjectStore):
    metadata = MemoryMetadataStore(FakeClock())
    wal = await opened(store, metadata, "a")
    for offset in range(5):
        await wal.append(group(offset))
    await wal.trim("a", 4)
    assert await wal.delete_trimmed() == 4
    assert [info.name async for info in store.list("wal/c/a")] == ["wal/c/a/000000000004"]
    await wal.close()


async def race(store: RemoteObjectStore, metadata: MemoryMetadataStore, number: int, after: int) -> None:
    """A successor fences while eight PUTs are in flight, at another moment in each race."""
    session = f"a{number}"
    wal, other = await opened(store, metadata, session), await opened(store, metadata, f"b{number}")
    acknowledged: dict[int, int] = {}
    begun = asyncio.Event()

    async def append(offset: int) -> None:
        with suppress(EngineError):
            acknowledged[offset] = await wal.append(group(offset))
            if len(acknowledged) > after:
                begun.set()

    async def drain() -> None:
        with suppress(EngineError):
            await wal.drain()

    async def append_all() -> None:
        async with asyncio.TaskGroup() as tasks:
            for offset in range(OBJECTS):  # each an object of its own, eight of them in flight
                tasks.create_task(append(offset))
                tasks.create_task(drain())

    appending = asyncio.create_task(append_all())
    await begun.wait()
    end = await other.fence(session)
    await appending
    assert end < OBJECTS, "the fence came too late for a race"
    assert await wal.ended
    assert max(acknowledged.values()) < end
    found = await read(other, session, 0, end)
    assert acknowledged.keys() <= found.keys()
    assert sorted(found) == list(range(len(found)))
    assert bytes(await store.get(LogName("c", session).object(end))) == FENCE
    for each in (wal, other):
        await each.writer.close()


async def test_r4_a_fence_against_puts_in_flight(store: RemoteObjectStore):
    metadata = MemoryMetadataStore(FakeClock())
    for number in range(RACES):
        await race(store, metadata, number, after=3 * number)


@pytest.mark.fuzz
async def test_r4_many_fences_against_puts_in_flight(store: RemoteObjectStore):
    metadata = MemoryMetadataStore(FakeClock())
    for number in range(100):
        await race(store, metadata, number, after=3 * (number % 40))


async def test_what_was_acknowledged_survives_a_kill_of_the_server(server: S3Server):
    """The session goes on when the server is back: nothing that was acknowledged is lost, nothing stored twice."""
    store, metadata = open_store(server, "killed", timeout_s=2.0, attempts_max=20), MemoryMetadataStore(FakeClock())
    wal, other = await opened(store, metadata, "a"), await opened(store, metadata, "b")
    acknowledged: dict[int, int] = {}

    async def append(offset: int) -> None:
        acknowledged[offset] = await wal.append(group(offset))

    await asyncio.gather(*(append(offset) for offset in range(40)))
    in_flight = [asyncio.create_task(append(offset)) for offset in range(40, 80)]
    sealed = asyncio.create_task(wal.drain())
    await asyncio.sleep(0)
    server.kill()
    in_flight += [asyncio.create_task(append(offset)) for offset in range(80, 100)]
    await asyncio.to_thread(server.start)
    await asyncio.gather(sealed, *in_flight)
    assert wal.writer.over is None
    assert len(acknowledged) == 100
    end = await other.fence("a")
    assert end == wal.writer.acknowledged
    assert await read(other, "a", 0, end) == {offset: b"".join(group(offset).buffers) for offset in range(100)}
    for each in (wal, other):
        await each.writer.close()
    await store.close()


async def test_what_was_acknowledged_by_a_server_that_hangs_is_stored_once(server: S3Server):
    """PUTs time out while the server is suspended; it carries some of them out when it goes on."""
    store, metadata = open_store(server, "hangs", timeout_s=0.5, attempts_max=40), MemoryMetadataStore(FakeClock())
    wal, other = await opened(store, metadata, "a"), await opened(store, metadata, "b")
    await wal.append(group(0))
    server.pause()
    try:
        appends = [asyncio.create_task(wal.append(group(offset))) for offset in range(1, 20)]
        with pytest.raises(UnknownOutcomeError, match=r"no answer within 0\.5 s"):
            await store.put_if_absent("other", [b"x"])
        assert not any(each.done() for each in appends)
    finally:
        server.resume()
    await asyncio.gather(*appends)
    end = await other.fence("a")
    assert await read(other, "a", 0, end) == {offset: b"".join(group(offset).buffers) for offset in range(20)}
    for each in (wal, other):
        await each.writer.close()
    await store.close()
