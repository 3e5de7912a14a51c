"""Who reads ranges on the broker's machine reads the log files, and sees what everybody sees."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.aio.files import ReadFile
from engine.broker import server, short_circuit
from engine.limits import READ_BLOCK_SIZE

FILE_SIZE = 8 * 1024
Place = tuple[int, int, bytes]


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[engine.AsyncEngine]:
    """Its segments have many files."""
    configured = server.storage_config
    small = lambda config: dataclasses.replace(configured(config), file_size_max=FILE_SIZE)  # noqa: E731
    monkeypatch.setattr(server, "storage_config", small)
    async with engine.open_async(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0") as opened:
        yield opened


@asynccontextmanager
async def client_of(
    served: engine.AsyncEngine, open_file: Callable[[str], ReadFile] = ReadFile
) -> AsyncIterator[engine.AsyncClient]:
    async with engine.AsyncClient(served.service_url) as client:
        client._pool.options = dataclasses.replace(client._pool.options, open_file=open_file)
        yield client


def nothing_opens(path: str) -> ReadFile:
    raise PermissionError(13, "not for you", path)


async def write(client: engine.AsyncClient, count: int = 2000, topic: str = "t") -> None:
    """Over two segments and a split; every third group of messages is in a transaction, every other one aborted."""
    await client.admin.create_topic(topic, segments=2, entry_buckets=4)
    async with await client.producer(topic, compression="lz4") as producer:
        for start in range(0, count, 50):
            if start == count // 2:
                await client.admin.split_segment(topic, 0)
            values = [b"%d" % n * (1 + n % 40) for n in range(start, start + 50)]
            keys = [b"k%d" % (n % 30) for n in range(50)]
            if start % 150:
                await producer.send_batch(values, keys=keys)
                await producer.flush()
                continue
            transaction = await client.transaction()
            await producer.send_batch(values, keys=keys, transaction=transaction)
            await (transaction.abort() if start % 300 else transaction.commit())


async def ranges_of(client: engine.AsyncClient, topic: str = "t") -> dict[int, tuple[int, int]]:
    async with await client.topic_view(topic) as view:
        found = await view.segments(exact=True)
    return {i: (s.first, s.end) for i, s in found.segments.items()}


async def read(client: engine.AsyncClient, ranges: Any, topic: str = "t", **options: Any) -> list[Place]:
    async with await client.range_reader(topic, ranges, **options) as reader:
        batches = [batch async for batch in reader.batches(options.get("receive_queue_size", 1000))]
    return [(m.id.segment_id, m.id.offset, m.value) for batch in batches for m in batch]


def counted(served: engine.AsyncEngine) -> tuple[int, int]:
    """(messages that were sent, messages that were to be read from files)."""
    hosted = list(served.broker.hosting)
    return sum(h.sent_messages for h in hosted), sum(h.near_messages for h in hosted)


async def test_files_and_frames_say_the_same(served: engine.AsyncEngine):
    async with client_of(served) as near, client_of(served, nothing_opens) as far:
        await write(near)
        ranges, rng = await ranges_of(near), random.Random(7)
        before, _ = counted(served)
        whole = await read(near, ranges)
        assert counted(served) == (before, len(whole))
        assert await read(far, ranges) == whole
        assert counted(served)[0] == before + len(whole)
        assert len({value for _, _, value in whole}) > 1000
        for _ in range(20):
            some = {}
            for segment_id, (first, end) in ranges.items():
                low, high = sorted((rng.randint(first, end), rng.randint(first, end)))
                some[segment_id] = (low, high)
            room = rng.choice([1, 10, 5000])
            assert await read(near, some, receive_queue_size=room) == [
                place for place in whole if some[place[0]][0] <= place[1] < some[place[0]][1]
            ]


async def test_buckets_and_keys_leave_the_same_out(served: engine.AsyncEngine):
    async with client_of(served) as near, client_of(served, nothing_opens) as far:
        await write(near, 600)
        ranges = await ranges_of(near)
        for options in ({"buckets": (0, 0x7FFF)}, {"keys": ["k7"]}):
            found = await read(near, ranges, **options)
            assert found == await read(far, ranges, **options)
            assert 0 < len(found) < 600


async def test_an_entry_may_be_larger_than_what_is_read_at_a_time(served: engine.AsyncEngine):
    async with client_of(served) as near:
        await near.admin.create_topic("t", segments=1)
        values = [bytes([n]) * (READ_BLOCK_SIZE * n) for n in (1, 4, 1, 3)]
        async with await near.producer("t") as producer:
            for value in values:
                await producer.send(value)
        assert [value for *_, value in await read(near, await ranges_of(near))] == values
        assert counted(served) == (0, 4)


async def test_where_it_stops_short_the_owner_goes_on(served: engine.AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    """As much of a range as it may read there, and the rest in the usual way."""
    told = short_circuit._files

    async def less(hosted: Any, start: int, stop: int) -> dict[str, Any]:
        answer = await told(hosted, start, stop)
        return {**answer, "upto": start + max(1, (stop - start) // 2)}

    async with client_of(served) as near, client_of(served, nothing_opens) as far:
        await write(near)
        ranges = await ranges_of(near)
        whole = await read(far, ranges)
        monkeypatch.setattr(short_circuit, "_files", less)
        before = counted(served)[0]
        for room in (1000, 7):
            assert await read(near, ranges, receive_queue_size=room) == whole
        assert counted(served)[0] > before


async def test_a_file_that_cannot_be_read_is_asked_for(served: engine.AsyncEngine):
    """The first one, or one in the middle; because it is gone, or another one is there under its name, or it ends."""
    faults: list[str] = []
    opened: list[str] = []

    class Faulty(ReadFile):
        def __init__(self, path: str) -> None:
            opened.append(path)
            super().__init__(path)
            self.fault = faults.pop(0) if faults else ""
            if self.fault == "gone":
                raise FileNotFoundError(2, "gone", path)

        def head(self, size: int) -> bytes:
            return bytes(size) if self.fault == "another" else super().head(size)

        async def read_into(self, view: memoryview, position: int) -> int:
            if self.fault == "error":
                raise OSError(5, "the disk does not answer")
            return 0 if self.fault == "ends" else await super().read_into(view, position)

    async with client_of(served, Faulty) as near, client_of(served, nothing_opens) as far:
        await write(near)
        ranges = await ranges_of(near)
        whole = await read(far, ranges)
        assert await read(near, ranges) == whole
        assert len(opened) > len(ranges) + 2  # some have several files
        for fault in ("gone", "another", "error", "ends"):
            for place in (0, 1, 2):
                faults[:] = [""] * place + [fault]
                assert await read(near, ranges) == whole
                assert not faults


def damage(directory: Path) -> None:
    """A bit of the message."""
    (path,) = directory.glob("data/**/*.log")
    image = bytearray(path.read_bytes())
    image[image.index(b"x" * 1000) + 500] ^= 1
    path.write_bytes(image)


async def test_damage_is_told(served: engine.AsyncEngine, tmp_path: Path):
    async with client_of(served) as near:
        await near.admin.create_topic("t", segments=1)
        async with await near.producer("t") as producer:
            await producer.send(b"x" * 10_000)
        damage(tmp_path)
        with pytest.raises(engine.CorruptionError):
            await read(near, {0: (0, 1)})


async def test_what_is_open_is_read_on_after_it_was_deleted(served: engine.AsyncEngine):
    async with client_of(served) as near:
        await near.admin.create_topic("t", segments=1)
        async with await near.producer("t") as producer:
            await producer.send_batch([b"%d" % n for n in range(2000)])
        await near.admin.split_segment("t", 0)
        async with await near.range_reader("t", {0: (0, 2000)}, receive_queue_size=10) as reader:
            found = [(await reader.next_batch(10)).values]
            assert await served.broker.service.prune_segment("t", 0)
            found += [batch.values async for batch in reader.batches(10)]
            assert [value for values in found for value in values] == [b"%d" % n for n in range(2000)]
            assert reader.deleted == {}


async def test_it_is_for_those_nearby_and_can_be_switched_off(tmp_path: Path):
    settings = {"short_circuit_reads": False}
    async with engine.open_async(tmp_path / "data", listen="127.0.0.1:0", config=settings) as served:
        await write(served, 300)
        ranges = await ranges_of(served)
        async with client_of(served) as client:
            assert await read(client, ranges) == await read(served, ranges)
        assert counted(served)[1] == 0


async def test_who_has_it_in_the_same_process_asks(served: engine.AsyncEngine):
    await write(served, 300)
    sent, _ = counted(served)
    found = await read(served, await ranges_of(served))
    assert counted(served) == (sent + len(found), 0)
