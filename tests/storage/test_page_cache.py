"""The system's page cache behind a log stays bounded: pages are counted with mincore, on a real file system."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from engine._native.jobs.filejob import drop_cached
from engine.limits import KIB, MIB
from engine.storage.disk.disk import OsDisk
from engine.storage.file.page_cache import OVERLAP, STEP, PageCache, Span
from engine.storage.segment import Block, Segment
from engine.storage.store import SegmentStore
from tests.kit.entry_images import entry, values_of
from tests.kit.stores import forget_tails, log_files, make_store, name
from tests.storage.commit_parts import HandWorkers, plan

LIMIT = 8 * MIB
ENTRY = 256 * KIB
COUNT = 128  # entries: 32 MiB
_libc = ctypes.CDLL(None, use_errno=True)


def resident_pages(path: Path) -> list[bool]:
    """Of each page of a file, whether it is in the page cache."""
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        states = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(mapped)))
        if _libc.mincore(address, ctypes.c_size_t(size), states):
            raise OSError(ctypes.get_errno(), "mincore")
        return [bool(state & 1) for state in states.raw]


def resident_bytes(store: SegmentStore) -> int:
    return sum(sum(resident_pages(path)) for path in log_files(store, name())) * mmap.PAGESIZE


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where files are on a medium, and their pages can be dropped."""
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(MIB))
    fd = os.open(probe, os.O_RDWR)
    os.fdatasync(fd)
    drop_cached(fd, 0, 0, False)
    os.close(fd)
    if any(resident_pages(probe)):
        pytest.skip("this file system keeps its files in memory")
    return tmp_path


async def filled(root: Path, durability: str = "fsync", limit: int = LIMIT) -> tuple[SegmentStore, Segment]:
    """A segment of 32 MiB in several files, of which nothing is in the process's memory."""
    store = make_store(root, log_cache_bytes=limit, file_size_max=12 * MIB)
    segment = await store.create(name(), durability=durability)
    for i in range(COUNT):
        await segment.append(entry(i, (bytes([i]) * ENTRY,)))
    forget_tails(store)
    return store, segment


async def read_through(segment: Segment, start: int, stop: int, at_once: bool = False) -> None:
    """Read from the medium what is not in memory, and look at it. `at_once`: on the loop, where the system has it."""
    while start < stop:
        block = segment.read(start, MIB, at_once=at_once)
        assert block is not None
        if not isinstance(block, Block):
            block = await block
        assert values_of(block.data)[0] == (start, bytes([start]) * ENTRY)
        start = block.next_offset


@pytest.mark.parametrize("durability", ["fsync", "interval", "os"])
async def test_what_is_written_does_not_fill_the_page_cache(root: Path, durability: str):
    store, segment = await filled(root, durability)
    assert resident_bytes(store) <= LIMIT
    assert store.statistics().log_cache_bytes <= LIMIT
    assert store.statistics().log_cache_dropped_bytes >= COUNT * ENTRY - LIMIT
    await read_through(segment, 0, COUNT)
    await store.close()


async def test_without_a_bound_all_stays_there(root: Path):
    store, _ = await filled(root, limit=0)
    assert resident_bytes(store) > 2 * LIMIT
    assert store.statistics().log_cache_bytes == store.statistics().log_cache_dropped_bytes == 0
    await store.close()


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_reader_that_is_behind_does_not_evict_the_tail(root: Path, at_once: bool):
    store, segment = await filled(root)
    tail = LIMIT // 2 // mmap.PAGESIZE  # of the three quarters that are for it, what is there in any case
    newest = log_files(store, name())[-1]
    before = sum(resident_pages(newest)[-tail:])
    await read_through(segment, 0, COUNT - LIMIT // ENTRY, at_once)
    assert sum(resident_pages(newest)[-tail:]) >= before > tail // 2
    assert resident_bytes(store) <= LIMIT + OVERLAP  # and what the system has read ahead
    await store.close()


async def test_what_is_kept_is_counted_over_restarts(root: Path):
    store, _ = await filled(root)
    await store.close()
    store = make_store(root, log_cache_bytes=LIMIT, file_size_max=12 * MIB)
    segment = await store.open(name())
    forget_tails(store)
    await read_through(segment, 0, COUNT)  # of earlier runs: nothing of it counts as written
    assert 0 < store.statistics().log_cache_bytes <= LIMIT // 4
    await store.close()


# -- counting, with workers by hand -------------------------------------------------------------------------------


def begun(limit: int) -> tuple[PageCache, HandWorkers, list[Span]]:
    """A cache of a disk that takes notes of what is dropped."""
    dropped: list[Span] = []

    class NotingFile:
        def __init__(self, path: str) -> None:
            self.path = path

        def drop_cache(self, start: int = 0, end: int = 0, *, writes: bool = False) -> None:
            dropped.append(Span(self.path, start, end, writes))

        def close(self) -> None:
            """Nothing is open."""

    class NotingDisk(OsDisk):
        def open(self, path: str) -> NotingFile:  # type: ignore[override]
            if path.endswith("-9.log"):
                raise FileNotFoundError(path)
            return NotingFile(path)

    workers = HandWorkers()
    return PageCache(NotingDisk(), workers, limit), workers, dropped


def grow(pages: PageCache, file: object, size: int) -> None:
    file.end_position += size  # type: ignore[attr-defined]
    pages.written(file)  # type: ignore[arg-type]


def test_the_oldest_goes_first_over_all_files_and_one_job_runs_at_a_time():
    pages, workers, dropped = begun(16 * MIB)  # 12 for what is written
    first, second = plan(0), plan(100)
    for file in (first, second):
        file.end_position = 0
        pages.begin(file, 0, writes=file is second)
    grow(pages, first, 8 * MIB)
    grow(pages, second, 4 * MIB)
    assert not workers.jobs
    grow(pages, second, MIB)
    grow(pages, second, 9 * MIB)
    assert len(workers.jobs) == 1
    workers.run()
    assert dropped == [Span(first.path, 0, 8 * MIB, False)]
    workers.run()
    assert dropped[1:] == [Span(second.path, 0, 4 * MIB, True)]
    assert pages.written_bytes == 10 * MIB
    pages.finish(second)
    grow(pages, second, 4 * MIB)
    workers.run()
    assert dropped[2:] == [Span(second.path, 4 * MIB - OVERLAP, 14 * MIB, True)]
    assert (pages.written_bytes, pages.dropped_bytes) == (4 * MIB, 22 * MIB)


def test_a_file_that_nothing_is_written_to_goes_whole_with_its_last_bytes():
    pages, workers, dropped = begun(4 * MIB)
    file = plan(0)
    file.end_position = 0
    pages.begin(file, 0, writes=False)
    file.end_position = 10
    pages.finish(file)
    assert pages.written_bytes == 10
    other = plan(100)
    other.end_position = 0
    pages.begin(other, 0, writes=False)
    grow(pages, other, 3 * MIB)
    workers.run()
    assert dropped[0] == Span(file.path, 0, 0, False)


def test_deleted_files_do_not_count_and_are_left_alone():
    pages, workers, dropped = begun(4 * MIB)
    file, other = plan(0), plan(9)
    for one in (file, other):
        one.end_position = 0
        pages.begin(one, 0, writes=False)
    grow(pages, file, 2 * MIB)
    pages.forget(file)
    pages.forget(file)
    assert pages.size == 0
    grow(pages, file, MIB)
    assert pages.size == 0
    grow(pages, other, 4 * MIB)
    workers.run()
    assert [span.path for span in dropped] == [other.path]
    assert pages.written_bytes == 0


def test_reads_have_a_part_of_their_own():
    pages, workers, dropped = begun(8 * MIB)  # 6 and 2
    file = plan(0)
    file.end_position = 0
    pages.begin(file, 0, writes=False)
    grow(pages, file, 4 * MIB)
    grow(pages, file, 4 * MIB)
    workers.run()
    dropped.clear()
    pages.read(file, 5 * MIB, MIB)  # counted as written
    assert pages.read_bytes == 0
    for i in range(3):
        pages.read(file, i * MIB, MIB)
    workers.run()
    assert [(span.start, span.writes) for span in dropped] == [(0, False)]
    assert 2 * MIB <= dropped[0].end < 3 * MIB  # two that lie behind each other are one
    assert (pages.written_bytes, pages.read_bytes) == (4 * MIB, MIB)


def test_a_failure_of_the_disk_stops_nothing_and_a_closed_one_drops_nothing():
    pages, workers, dropped = begun(MIB)
    file = plan(0)
    file.path = "segment-9.log"
    file.end_position = 0
    pages.begin(file, 0, writes=False)
    grow(pages, file, 2 * MIB)
    workers.run()
    assert (dropped, pages.written_bytes) == ([], 0)
    pages.close()
    grow(pages, file, 2 * MIB)
    assert not workers.jobs


async def test_small_commits_are_counted_once_there_is_a_step_of_them(root: Path):
    store = make_store(root, log_cache_bytes=LIMIT)
    segment = await store.create(name())
    size = 0
    while size < STEP - 2_000:
        assert store.statistics().log_cache_bytes == 0
        size += len(image := entry(segment.next_offset, (b"x" * 1000,)))
        await segment.append(image)
    for _ in range(4):
        await segment.append(entry(segment.next_offset, (b"x" * 1000,)))
    assert STEP <= store.statistics().log_cache_bytes < 2 * STEP
    await store.close()


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (5, 5), (5, 4)])
def test_what_is_dropped_is_a_range(start: int, end: int):
    with pytest.raises(ValueError, match=f"got {start} and {end}"):
        drop_cached(0, start, end, False)


def test_without_a_limit_nothing_is_counted():
    pages, workers, _ = begun(0)
    file = plan(0)
    pages.begin(file, 0, writes=False)
    assert file.window is None
    file.end_position = file.count_at
    pages.written(file)
    pages.read(file, 0, MIB)
    pages.finish(file)
    assert pages.size == 0
    assert not workers.jobs
