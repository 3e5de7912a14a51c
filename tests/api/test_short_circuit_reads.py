"""Who reads ranges on the broker's machine reads the log files, and sees what everybody sees."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

import engine
from engine.aio.files import ReadFile
from engine.broker.session import short_circuit
from engine.client.files import local_files
from engine.client.ranges.range_reader import LOCAL_WINDOW_BYTES
from engine.limits import ENTRY_SIZE_MAX, KIB, MIB, READ_BLOCK_SIZE
from engine.wire.commands import Files
from tests.api.near_reading import client_of, counted, nothing_opens, ranges_of, read, write
from tests.api.reshaping import until

WAIT_S = 60.0

pytestmark = pytest.mark.usefixtures("small_files")


@pytest.mark.parametrize("block_size", [2 * KIB, READ_BLOCK_SIZE])
async def test_files_and_frames_say_the_same(
    served: engine.AsyncEngine, monkeypatch: pytest.MonkeyPatch, block_size: int
):
    """In blocks of any size, with any room, from anywhere to anywhere."""
    monkeypatch.setattr(local_files, "READ_BLOCK_SIZE", block_size)
    monkeypatch.setattr(local_files, "_WANTED", block_size + KIB)
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
            room = rng.choice([1, 2, 10, 5000])
            assert await read(near, some, receive_queue_size=room) == [
                place for place in whole if some[place[0]][0] <= place[1] < some[place[0]][1]
            ]


async def test_where_there_is_a_rate_all_goes_through_the_broker(served: engine.AsyncEngine):
    """Files that a client reads by itself count for no limit."""
    async with client_of(served) as near:
        await write(near, 600)
        ranges, (before, _) = await ranges_of(near), counted(served)
        await served.admin.set_limits("public", {"total_dispatch_bytes_per_s": 1_000_000_000})
        whole = await read(near, ranges)
        assert counted(served) == (before + len(whole), 0)
        await served.admin.remove_limits("public")
        assert await read(near, ranges) == whole
        assert counted(served) == (before + len(whole), len(whole))


async def test_producers_and_sequence_ids_are_columns_from_files_too(served: engine.AsyncEngine):
    async with client_of(served) as near, client_of(served, nothing_opens) as far:
        await write(near, 600)
        ranges, tables = await ranges_of(near), []
        for client in (near, far):
            async with await client.range_reader("t", ranges) as reader:
                found = [batch.to_arrow(include_sequence_ids=True) async for batch in reader.batches(1000)]
            tables.append(pa.concat_tables(found).select(["segment", "offset", "producer_name", "sequence_id"]))
            assert (counted(served)[0] > 0) is (client is far)
        assert tables[0].to_pylist() == tables[1].to_pylist()
        assert len(set(tables[0]["sequence_id"].to_pylist())) == tables[0].num_rows > 100
        assert len(set(tables[0]["producer_name"].to_pylist())) == 1


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


@pytest.mark.parametrize("near_blocks", [0, 1, 12])
async def test_what_is_read_from_files_is_not_read_far_ahead(served: engine.AsyncEngine, near_blocks: int):
    """Nobody waits for it. Over the connection, also behind files that fail, as much is under way as may be."""
    left = near_blocks

    class Failing(ReadFile):
        async def read_into(self, view: memoryview, position: int) -> int:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(5, "the disk does not answer")
            return await super().read_into(view, position)

    async with client_of(served, Failing) as near:
        await near.admin.create_topic("t", segments=1)
        async with await near.producer("t") as producer:
            await producer.send_batch([bytes([n]) * (MIB - KIB) for n in range(12)])
        async with await near.range_reader("t", {0: (0, 12)}) as reader:
            waiting = {0: 12, 1: 12, 12: LOCAL_WINDOW_BYTES // MIB + 1}[near_blocks]
            await until(lambda: reader.statistics().messages_queued >= waiting)
            for _ in range(100):  # more would come at once
                await asyncio.sleep(0)
            assert reader.statistics().messages_queued == waiting
            found = [m.value[0] async for batch in reader.batches(1) for m in batch]
        assert found == list(range(12))


@pytest.mark.parametrize("files", [True, False])
async def test_what_is_told_may_be_a_part(served: engine.AsyncEngine, monkeypatch: pytest.MonkeyPatch, files: bool):
    """Then it asks for more; and what is in no file the owner sends."""
    told = short_circuit._files
    asked: list[tuple[int, int]] = []

    async def less(hosted: Any, start: int, stop: int) -> Files:
        answer = await told(hosted, start, stop)
        asked.append((start, stop))
        upto = start if start > stop // 2 and not files else min(stop, start + max(1, (stop - start) // 2))
        return replace(answer, upto=upto)

    async with client_of(served) as near, client_of(served, nothing_opens) as far:
        await write(near)
        ranges = await ranges_of(near)
        whole = await read(far, ranges)
        monkeypatch.setattr(short_circuit, "_files", less)
        for room in (1000, 7):
            before = counted(served)[0]
            assert await read(near, ranges, receive_queue_size=room) == whole
            assert (counted(served)[0] > before) is not files
        assert len(asked) > 3 * len(ranges)


async def test_more_files_than_are_told_at_a_time(served: engine.AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("engine.storage.reader.STRETCHES_MAX", 2)
    async with client_of(served) as near, client_of(served, nothing_opens) as far:
        await write(near)
        ranges = await ranges_of(near)
        whole, before = await read(far, ranges), counted(served)[0]
        assert await read(near, ranges) == whole
        assert counted(served)[0] == before


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
    async with engine.open_async(tmp_path / "data", listen="127.0.0.1:0", config=settings, shared=False) as served:
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


@pytest.mark.parametrize("open_file", [ReadFile, nothing_opens])
async def test_much_that_nobody_gets_takes_no_room_for_ever(served: engine.AsyncEngine, open_file: Any):
    """More than may be received ahead; nobody takes anything of it, so that nobody gives its room back."""
    async with engine.AsyncClient(served.service_url, memory_limit=ENTRY_SIZE_MAX) as client:
        client.pool.options = dataclasses.replace(client.pool.options, open_file=open_file)
        await client.admin.create_topic("t", segments=1)
        async with await client.producer("t") as producer, client.transaction() as transaction:
            await producer.send(b"first")
            for _ in range(12):
                await producer.send(bytes(MIB), transaction=transaction)
            await transaction.abort()
            await producer.send(b"last")
        async with asyncio.timeout(WAIT_S):
            assert [value for *_, value in await read(client, {0: (0, 14)})] == [b"first", b"last"]


@pytest.mark.parametrize("open_file", [ReadFile, nothing_opens])
@pytest.mark.parametrize("begin", [0, 20])
async def test_what_is_left_out_and_was_hidden_is_counted_once(served: engine.AsyncEngine, open_file: Any, begin: int):
    """By a key, or by a range that begins inside an entry. Room that was given back twice is never given again."""
    async with client_of(served, open_file) as client:
        await client.admin.create_topic("t", segments=1)
        async with await client.producer("t") as producer:
            await producer.send(b"a", key=b"k")
            transaction = await client.transaction()
            await producer.send_batch([b"x"] * 40, keys=[b"z"] * 40, transaction=transaction)
            await transaction.flush()
            await transaction.abort()
            await client.admin.split_segment("t", 0)
            for n in range(24):
                await producer.send(b"%d" % n * 10_000, key=b"k")
        ranges = await ranges_of(client)
        ranges[0] = (begin, ranges[0][1])
        async with asyncio.timeout(WAIT_S):
            found = await read(client, ranges, receive_queue_size=2, **({} if begin else {"keys": ["k"]}))
        assert len(found) == 24 + (begin == 0)


async def test_it_may_be_closed_while_it_reads(served: engine.AsyncEngine):
    reading, go_on = asyncio.Event(), asyncio.Event()

    class Slow(ReadFile):
        async def read_into(self, view: memoryview, position: int) -> int:
            reading.set()
            await go_on.wait()
            return await super().read_into(view, position)

    async with client_of(served, Slow) as near:
        await write(near, 300)
        reader = await near.range_reader("t", await ranges_of(near))
        await reading.wait()
        await reader.close()
        go_on.set()
        await asyncio.sleep(0)
        with pytest.raises(engine.AlreadyClosedError):
            await reader.next_batch()
        assert reader.statistics().messages_received == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"files": [["x"]]},
        {"files": [["relative", b"", 0, 0, 10, 10]]},
        {"files": [["/tmp/\0x", b"", 0, 0, 10, 10]]},
        {"files": [["/dev/zero", b"", 0, 0, 10, 10]]},
        {"files": []},
        {"hidden": [7]},
        {"upto": None},
    ],
)
async def test_an_answer_that_makes_no_sense_is_none(
    served: engine.AsyncEngine, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
):
    told = short_circuit._files

    async def other(hosted: Any, start: int, stop: int) -> Files:
        return replace(await told(hosted, start, stop), **wrong)

    monkeypatch.setattr(short_circuit, "_files", other)
    async with client_of(served) as near:
        await write(near, 300)
        ranges = await ranges_of(near)
        sent = counted(served)[0]
        assert await read(near, ranges) == await read(served, ranges)
        assert counted(served)[0] > sent


@pytest.mark.parametrize("position", ["before the end", "behind what is asked for"])
async def test_files_that_are_not_as_they_were_said_to_be_are_left(
    served: engine.AsyncEngine, monkeypatch: pytest.MonkeyPatch, position: str
):
    """The loop is not kept."""
    told = short_circuit._files

    async def other(hosted: Any, start: int, stop: int) -> Files:
        answer = await told(hosted, start, stop)
        (path, opening, salt, first, end, after), *_ = answer.files
        second = first + size_at(path, first)
        if position == "before the end":
            return replace(answer, files=[(path, opening, salt, first, second, after)])
        return replace(answer, files=[(path, opening, salt, second, end, after)], upto=1)

    monkeypatch.setattr(short_circuit, "_files", other)
    async with client_of(served) as near:
        await near.admin.create_topic("t", segments=1)
        async with await near.producer("t") as producer:
            for n in range(20):
                await producer.send(b"%d" % n)
        async with asyncio.timeout(WAIT_S):
            assert [int(value) for *_, value in await read(near, {0: (0, 20)})] == list(range(20))


def size_at(path: str, position: int) -> int:
    """Of the entry there."""
    return int.from_bytes(Path(path).read_bytes()[position + 4 : position + 8], "little")
