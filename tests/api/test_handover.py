"""A blocking client reads the broker's files in the threads that receive, and sees what everybody sees."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace

import engine
from engine._native.consume.opening import damaged_entry
from engine.aio.files import ReadFile
from engine.broker.session import short_circuit
from engine.client.ranges import caller_reads as handover
from engine.client.ranges.range_attachment import RangeAttachment
from engine.wire.commands import Files
from tests.api.near_reading import Place, client_of, counted, nothing_opens, ranges_of, read, write

pytestmark = pytest.mark.usefixtures("small_files")


def tell_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is asked for, the broker says each time where the first half is."""
    told = short_circuit._files

    async def less(hosted: Any, start: int, stop: int) -> Files:
        return replace(await told(hosted, start, stop), upto=min(stop, start + max(1, (stop - start) // 2)))

    monkeypatch.setattr(short_circuit, "_files", less)


def places(batches: list[engine.MessageBatch]) -> list[Place]:
    return [(m.id.segment_id, m.id.offset, m.value) for batch in batches for m in batch]


async def read_blocking(
    served: engine.AsyncEngine,
    ranges: Any,
    at_once: int = 1000,
    open_file: Callable[[str], ReadFile] = ReadFile,
    **options: Any,
) -> list[Place]:
    def work() -> list[Place]:
        with engine.Client(served.service_url) as client:
            object.__setattr__(client._client.pool.options, "open_file", open_file)
            with client.range_reader("t", ranges, **options) as reader:
                found = places(list(reader.batches(at_once)))
                assert reader.next_batch() is None
                return found

    return await asyncio.to_thread(work)


async def test_the_same_is_read_in_the_callers_thread(served: engine.AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    """From anywhere to anywhere, by buckets and by keys, in batches of any size."""
    threads = set()
    decode = handover.take_block

    def noted(*args: Any) -> Any:
        threads.add(threading.current_thread().name)
        return decode(*args)

    monkeypatch.setattr(handover, "take_block", noted)
    async with client_of(served, nothing_opens) as far:
        await write(far)
        ranges, rng = await ranges_of(far), random.Random(3)
        whole = await read(far, ranges)
        sent, near = counted(served)
        assert await read_blocking(served, ranges) == whole
        assert counted(served) == (sent, near + len(whole))
        for _ in range(12):
            some = {i: tuple(sorted((rng.randint(*ends), rng.randint(*ends)))) for i, ends in ranges.items()}
            at_once, room = rng.choice([1, 7, 5000]), rng.choice([1, 10, 5000])
            assert await read_blocking(served, some, at_once, receive_queue_size=room) == [
                place for place in whole if some[place[0]][0] <= place[1] < some[place[0]][1]
            ]
        for options in ({"buckets": (0, 0x7FFF)}, {"keys": ["k7"]}):
            assert await read_blocking(served, ranges, **options) == await read(far, ranges, **options)
    assert threads
    assert "engine" not in threads


@pytest.mark.parametrize("fault", ["gone", "error", "ends"])
async def test_behind_a_file_that_fails_it_is_asked_for(served: engine.AsyncEngine, fault: str):
    left = 0

    class Faulty(ReadFile):
        def __init__(self, path: str) -> None:
            super().__init__(path)
            if fault == "gone":
                self.count()

        def count(self) -> bool:
            nonlocal left
            left -= 1
            if left < 0 and fault != "ends":
                raise OSError(5, "the disk does not answer")
            return left >= 0

        def read_now(self, view: memoryview, position: int) -> int:
            return super().read_now(view, position) if fault == "gone" or self.count() else 0

    async with client_of(served, nothing_opens) as far:
        await write(far)
        ranges = await ranges_of(far)
        whole = await read(far, ranges)
        for good in (0, 1, 2, 5):
            left, before = good, counted(served)[0]
            assert await read_blocking(served, ranges, 100, Faulty) == whole
            assert counted(served)[0] > before


async def test_what_is_told_may_be_a_part(served: engine.AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    """Then the owner is asked for more, however often."""
    async with client_of(served, nothing_opens) as far:
        await write(far)
        ranges = await ranges_of(far)
        whole, sent = await read(far, ranges), counted(served)[0]
        tell_halves(monkeypatch)
        assert await read_blocking(served, ranges, 100) == whole
        assert counted(served)[0] == sent


async def test_who_cannot_be_asked_for_more_is_asked_again(served: engine.AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    """The connection is lost just then."""
    ask, asked = RangeAttachment._ask, 0

    async def fails(self: RangeAttachment, url: str | None) -> Any:
        nonlocal asked
        asked += 1
        if asked % 3 == 2:
            raise engine.ConnectError("the connection is lost")
        return await ask(self, url)

    async with client_of(served, nothing_opens) as far:
        await write(far)
        ranges = await ranges_of(far)
        whole, sent = await read(far, ranges), counted(served)[0]
        tell_halves(monkeypatch)
        monkeypatch.setattr(RangeAttachment, "_ask", fails)
        assert await asyncio.wait_for(read_blocking(served, ranges, 100), 60) == whole
        assert counted(served)[0] > sent


async def test_damage_is_told_behind_what_is_good(served: engine.AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    decode, calls = handover.take_block, 0

    def bad(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            return [], damaged_entry(args[2], args[3], "a checksum does not match")
        return decode(*args)

    async with client_of(served) as near:
        await write(near)
        ranges = await ranges_of(near)
        whole = await read(near, ranges)
    monkeypatch.setattr(handover, "take_block", bad)

    def work() -> list[Place]:
        found: list[engine.MessageBatch] = []
        with engine.Client(served.service_url) as client, client.range_reader("t", ranges) as reader:
            with pytest.raises(engine.CorruptionError):
                found.extend(reader.batches(100))
            with pytest.raises(engine.CorruptionError):
                reader.next_batch()
        return places(found)

    found = await asyncio.to_thread(work)
    assert 0 < len(found) < len(whole)
    assert found == whole[: len(found)]


async def test_who_is_interrupted_loses_nothing(served: engine.AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    """Between the read of a block and its place in the queue."""
    decode, calls = handover.take_block, 0

    def interrupted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 4 == 2:
            raise KeyboardInterrupt
        return decode(*args)

    async with client_of(served, nothing_opens) as far:
        await write(far)
        ranges = await ranges_of(far)
        whole = await read(far, ranges)
    monkeypatch.setattr(handover, "take_block", interrupted)

    def work() -> list[Place]:
        found: list[engine.MessageBatch] = []
        with engine.Client(served.service_url) as client, client.range_reader("t", ranges) as reader:
            while True:
                try:
                    batch = reader.next_batch(100)
                except KeyboardInterrupt:
                    continue
                if batch is None:
                    return places(found)
                found.append(batch)

    assert await asyncio.to_thread(work) == whole
    assert calls > 2


async def test_many_threads_share_one_reader(served: engine.AsyncEngine):
    """Each message comes to one of them, and to each of them in order, also while the loop counts what they took."""
    async with client_of(served, nothing_opens) as far:
        await write(far)
        ranges = await ranges_of(far)
        whole = await read(far, ranges)

    def work() -> list[list[Place]]:
        with (
            engine.Client(served.service_url) as client,
            client.range_reader("t", ranges) as reader,
            ThreadPoolExecutor(4) as threads,
        ):
            shares = [threads.submit(lambda: places(list(reader.batches(10)))) for _ in range(4)]
            while not all(share.done() for share in shares):
                reader._portal.call(reader._reader._return_credit)
            return [share.result(60) for share in shares]

    for _ in range(5):
        shares = await asyncio.to_thread(work)
        assert sorted(place for share in shares for place in share) == sorted(whole)
        rank = {place: i for i, place in enumerate(whole)}
        for share in shares:
            assert share == sorted(share, key=rank.__getitem__)


async def test_it_may_be_closed_by_another_thread(served: engine.AsyncEngine):
    async with client_of(served) as near:
        await write(near)
        ranges = await ranges_of(near)
    reading, go_on = threading.Event(), threading.Event()

    class Slow(ReadFile):
        def read_now(self, view: memoryview, position: int) -> int:
            reading.set()
            assert go_on.wait(60)
            return super().read_now(view, position)

    def work() -> None:
        with engine.Client(served.service_url) as client:
            object.__setattr__(client._client.pool.options, "open_file", Slow)
            reader = client.range_reader("t", ranges)
            with ThreadPoolExecutor(1) as other:
                found = other.submit(lambda: [len(batch) for batch in reader.batches(10)])
                assert reading.wait(60)
                reader.close()
                go_on.set()
                with pytest.raises(engine.AlreadyClosedError):
                    found.result(60)
            with pytest.raises(engine.AlreadyClosedError):
                reader.next_batch()

    await asyncio.to_thread(work)


async def test_a_batch_of_none_is_refused(served: engine.AsyncEngine):
    async with client_of(served) as near:
        await write(near, 100)
        ranges = await ranges_of(near)

    def work() -> None:
        with engine.Client(served.service_url) as client, client.range_reader("t", ranges) as reader:
            assert len(reader.next_batch(1) or []) == 1
            with pytest.raises(engine.InvalidArgumentError):
                reader.next_batch(0)

    await asyncio.to_thread(work)
