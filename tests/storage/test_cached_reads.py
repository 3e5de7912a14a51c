"""What the system has in its cache is read at once when that is asked for, and is the same as what a worker reads."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engine._native.serve.blocks import Block
from engine.aio import files as system
from engine.errors import CorruptionError
from engine.limits import KIB
from engine.storage.disk.buffers import BUFFER_SIZE, BUFFERS_MAX, ReadBuffers
from engine.storage.disk.disk import OsDisk, OsFile
from engine.storage.segment import Segment
from engine.storage.store import SegmentStore
from engine.testing.disk import SimDisk
from tests.kit.entry_images import entry, values_of
from tests.kit.stores import forget_tails, log_files, make_store, name, read_blocks

COUNT = 40


async def behind(root: Path, size: int = 3_000, **config: int) -> tuple[SegmentStore, Segment]:
    """A segment in several open files, of which nothing is in memory."""
    store = make_store(root, file_size_max=64 * KIB, **config)
    segment = await store.create(name())
    for i in range(COUNT):
        await segment.append(entry(i, (b"%d " % i * (size // 3),)))
    forget_tails(store)
    await read_blocks(segment)
    return store, segment


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says how many bytes of each read the system has in its cache."""

    def have(most: int) -> None:
        def read_cached(self: OsFile, buffer: memoryview, position: int) -> int:
            return os.preadv(self.fileno(), [buffer[:most]], position) if most else 0

        monkeypatch.setattr(OsFile, "read_cached", read_cached)

    return have


@pytest.mark.parametrize("max_bytes", [1, 5_000, 1 << 20])
async def test_a_block_at_once_is_what_a_worker_reads(
    tmp_path: Path, cached: Callable[[int], None], max_bytes: int
) -> None:
    cached(1 << 30)
    store, segment = await behind(tmp_path)
    assert len(log_files(store, name())) > 1
    offset = 0
    while offset < COUNT:
        reading = segment.read(offset, max_bytes)
        assert reading is not None
        assert not isinstance(reading, Block)
        block, at_once = await reading, segment.read(offset, max_bytes, at_once=True)
        assert isinstance(at_once, Block)
        assert at_once == block
        assert at_once.data.readonly
        offset = block.next_offset
    await store.close()


async def test_of_what_is_there_in_part_whole_entries_come_at_once(
    tmp_path: Path, cached: Callable[[int], None]
) -> None:
    store, segment = await behind(tmp_path)
    cached(10_000)
    block = segment.read(0, at_once=True)
    assert isinstance(block, Block)
    assert len(block.data) <= 10_000
    assert values_of(block.data) == [(i, b"%d " % i * 1_000) for i in range(block.next_offset)]
    await store.close()


@pytest.mark.parametrize("most", [0, 100, 2_000])
async def test_what_is_not_there_is_left_to_a_worker(tmp_path: Path, cached: Callable[[int], None], most: int) -> None:
    store, segment = await behind(tmp_path)
    cached(most)
    reading = segment.read(0, at_once=True)
    assert reading is not None
    assert not isinstance(reading, Block)
    assert (await reading).first_offset == 0
    await store.close()


async def test_damage_is_reported_as_by_a_worker(tmp_path: Path, cached: Callable[[int], None]) -> None:
    cached(1 << 30)
    store, segment = await behind(tmp_path)
    path = log_files(store, name())[0]
    image = bytearray(path.read_bytes())
    image[image.index(b"0 0 ")] ^= 1
    path.write_bytes(image)
    reading = segment.read(0, at_once=True)
    assert reading is not None
    assert not isinstance(reading, Block)
    with pytest.raises(CorruptionError, match=path.name):
        await reading
    await store.close()


async def test_a_file_that_is_not_open_is_opened_by_no_one_who_must_not_wait(
    tmp_path: Path, cached: Callable[[int], None]
) -> None:
    cached(1 << 30)
    store, segment = await behind(tmp_path, open_files_max=1)
    assert len(log_files(store, name())) > 1, "the last one is open"
    reading = segment.read(0, at_once=True)
    assert not isinstance(reading, Block)
    assert reading is not None
    await reading
    assert isinstance(segment.read(0, at_once=True), Block)
    await store.close()


def test_the_cache_is_asked_and_never_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    file = OsDisk().open(str(path))
    buffer = bytearray(4)
    got = file.read_cached(buffer, 2)
    assert buffer[:got] == b"2345"[:got]
    monkeypatch.setattr(system, "_NOWAIT", None)
    assert file.read_cached(buffer, 2) == 0
    monkeypatch.setattr(system, "_NOWAIT", 1 << 30)  # a flag that no system knows
    assert file.read_cached(buffer, 2) == 0
    file.close()


def test_a_simulated_disk_has_no_cache() -> None:
    mount = SimDisk(random.Random(1)).mount()
    mount.make_directories("/d")
    file = mount.create("/d/f")
    file.write([b"hello"], 0)
    assert file.read_cached(bytearray(5), 0) == 0


def test_memory_is_used_again_when_nobody_holds_a_part_of_it() -> None:
    buffers = ReadBuffers()
    first = buffers.take(BUFFER_SIZE)
    part = first[:10].toreadonly()
    second = buffers.take(BUFFER_SIZE)
    assert first.obj is not second.obj
    memory = first.obj
    del first
    assert buffers.take(BUFFER_SIZE).obj is not memory, "a part of it is held"
    del part
    again = buffers.take(BUFFER_SIZE - 1)
    assert again.obj is memory
    assert len(again) == BUFFER_SIZE - 1


def test_a_few_large_pieces_of_memory_are_kept_and_others_made_for_their_block() -> None:
    buffers = ReadBuffers()
    held = [buffers.take(BUFFER_SIZE) for _ in range(3 * BUFFERS_MAX)]
    memories = {id(view.obj): view.obj for view in held}  # so that no address is used again
    assert len(memories) == 3 * BUFFERS_MAX
    held.clear()
    assert kept(buffers, memories) == BUFFERS_MAX
    for size in (100, BUFFER_SIZE + 1):
        own = buffers.take(size).obj
        assert isinstance(own, bytearray)
        assert len(own) == size
    assert kept(buffers, memories) == BUFFERS_MAX


def kept(buffers: ReadBuffers, memories: dict[int, object]) -> int:
    """How much of this memory is lent again."""
    views = [buffers.take(BUFFER_SIZE) for _ in memories]
    return sum(id(view.obj) in memories for view in views)
