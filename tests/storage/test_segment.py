"""Segments: append, read, wait, roll, seal, fence, retain."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from engine.aio.workers import ThreadWorkers
from engine.clock import Ages, ForwardSteps
from engine.errors import (
    AlreadyClosedError,
    CorruptionError,
    FencedError,
    InvalidArgumentError,
    InvalidConfigurationError,
    NotFoundError,
    SegmentSealedError,
)
from engine.storage.disk.disk import OsDisk, OsFile
from engine.storage.file.continuation import NOTHING
from engine.storage.file.index import Index
from engine.storage.file.logfile import LogFile
from engine.storage.file.producer_snapshot import write_producer_snapshot
from engine.storage.file.recovery import recover
from engine.storage.reader import Reader
from engine.storage.segment import Appended, Block
from engine.testing.clock import FakeClock
from engine.testing.disk import SimDisk
from tests.kit.entry_images import KEYED, entry, values_of
from tests.kit.stores import QUARTERS, TOPIC, forget_tails, log_files, make_store, name, read_blocks


async def test_append_gives_each_entry_its_place(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    segment = await store.create(name())
    two = bytearray(entry(0, (b"a", b"b")) + entry(2, (b"c",)))
    assert await segment.append(two) == [Appended(0, 1, 0, 2, False), Appended(2, 2, 2, 1, False)]
    assert segment.durable_offset == segment.next_offset == 3
    block = segment.read(1)
    assert isinstance(block, Block)
    assert values_of(block.data) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert (block.first_offset, block.next_offset, block.messages) == (0, 3, 3)
    assert segment.read(3) is None
    await store.close()


async def test_large_appends_are_stamped_in_place_and_read_only_ones_copied(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    segment = await store.create(name())
    image = entry(0, (b"x" * 50_000,))
    mine = bytearray(image)
    await segment.append(mine)
    assert bytes(mine) != image
    assert bytes(mine[:80]) == image[:80]
    kept = entry(1, (b"y" * 50_000,))
    copy = bytes(bytearray(kept))
    await segment.append(kept)
    assert kept == copy
    await store.close()


@pytest.mark.parametrize("max_bytes", [1, 700, 5_000, 1 << 20])
async def test_blocks_are_whole_entries_from_memory_as_from_files(tmp_path: Path, max_bytes: int) -> None:
    store = make_store(tmp_path, file_size_max=300_000)
    segment = await store.create(name())
    rng = random.Random(3)
    sizes = [rng.choice([10, 200, 3_000, 90_000]) for _ in range(60)]
    for i, size in enumerate(sizes):
        await segment.append(entry(2 * i, (b"a" * size, b"b")))
    expected = [(2 * i + j, v) for i, size in enumerate(sizes) for j, v in enumerate((b"a" * size, b"b"))]
    assert len(log_files(store, name())) > 2
    for _ in range(2):
        blocks = await read_blocks(segment, 0, max_bytes)
        assert [m for b in blocks for m in values_of(b.data)] == expected
        assert all(len(b.data) <= max_bytes or b.messages == 2 for b in blocks)
        assert [b.first_offset for b in blocks[1:]] == [b.next_offset for b in blocks[:-1]]
        for offset in range(0, 120, 7):
            block = segment.read(offset, max_bytes)
            block = block if isinstance(block, Block) else await block
            assert block.first_offset == offset - offset % 2
        forget_tails(store)
    await store.close()


async def test_d5_nothing_is_read_or_acknowledged_before_the_sync(tmp_path: Path) -> None:
    store = make_store("/data", disk=SimDisk(random.Random(1)).mount(), workers=(workers := HeldWorkers()))
    creating = asyncio.ensure_future(store.create(name()))
    segment = await workers.release_until(creating)
    future = segment.append(entry(0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(workers.held) == 1
    assert not future.done()
    assert segment.read(0) is None
    assert segment.durable_offset == 0
    assert segment.next_offset == 1
    workers.release()
    await future
    assert segment.read(0) is not None


async def test_appends_during_a_sync_form_the_next_commit(tmp_path: Path) -> None:
    store = make_store("/data", disk=SimDisk(random.Random(1)).mount(), workers=(workers := HeldWorkers()))
    segment = await workers.release_until(asyncio.ensure_future(store.create(name())))
    first = segment.append(entry(0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [segment.append(entry(i)) for i in range(1, 20)]
    await asyncio.sleep(0)
    assert len(workers.held) == 1, "they wait for the sync that runs"
    workers.release()
    await first
    assert len(workers.held) == 1
    workers.release()
    await asyncio.gather(*others)
    assert segment.statistics().syncs == 2


class HeldWorkers:
    """Keeps jobs until they are released."""

    def __init__(self) -> None:
        self.held: list = []

    def post(self, work, done) -> None:
        self.held.append((work, done))

    def release(self) -> None:
        """Do the oldest job."""
        work, done = self.held.pop(0)
        done(work(), None)

    async def release_until(self, future: asyncio.Future):
        """Do jobs until something is done."""
        while not future.done():
            await asyncio.sleep(0)
            while self.held:
                self.release()
        return future.result()

    def close(self) -> None:
        """Nothing."""


async def test_when_durable_wakes_readers(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    segment = await store.create(name())
    early, late = segment.when_durable(0), segment.when_durable(1)
    await segment.append(entry(0))
    assert early.done()
    assert not late.done()
    await segment.seal()
    assert late.done(), "sealing must end the waits for offsets that will not come"
    assert segment.when_durable(99).done()
    await store.close()


async def test_seal_is_final_and_idempotent(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    segment = await store.create(name())
    pending = segment.append(entry(0, (b"a", b"b")))
    assert await segment.seal() == 2
    assert pending.done()
    assert await segment.seal() == 2
    with pytest.raises(SegmentSealedError):
        await segment.append(entry(2))
    await store.close()
    segment = await make_store(tmp_path).open(name())
    assert segment.sealed
    assert segment.next_offset == 2
    with pytest.raises(SegmentSealedError):
        await segment.append(entry(2))


async def test_where_messages_lie_is_told_without_a_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when retention deletes the first file while that is looked up."""
    store = make_store(tmp_path, file_size_max=4096)
    segment = await store.create(name())
    for i in range(40):
        await segment.append(entry(i, (b"x" * 300,)))
    told = await segment.stretches(0, 40)
    assert len(told) > 3
    assert told[-1].next_offset == 40
    for stretch in told:
        image = read_file(stretch.path)
        assert image.startswith(stretch.opening)
        assert values_of(image[stretch.position : stretch.end])[-1][0] == stretch.next_offset - 1
    assert [s.path for s in await segment.stretches(told[0].next_offset, told[1].next_offset)] == [told[1].path]
    assert await segment.stretches(40, 50) == []
    look = segment._reader._index_of

    async def slowly(file: LogFile) -> Index:
        if file.first_offset == told[1].next_offset:
            assert await segment.retain(told[0].next_offset, retention_ms=0, retention_bytes=0) == 1
        return await look(file)

    monkeypatch.setattr(Reader, "_index_of", lambda self, file: slowly(file))
    assert await segment.stretches(0, 40) == []
    assert await segment.stretches(0, 40) == []
    await store.close()


def read_file(path: str) -> bytes:
    return Path(path).read_bytes()


async def test_g3_l1_older_terms_are_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    segment = await store.create(name(), term=3)
    await segment.append(entry(0), term=4)
    with pytest.raises(FencedError):
        await segment.append(entry(1), term=3)
    with pytest.raises(FencedError):
        await segment.seal(3)
    assert segment.next_offset == 1
    segment.release()
    segment = await make_store(tmp_path).open(name())
    assert segment.term == 4, "the log remembers"
    segment.release()


async def test_bad_entries_are_refused_whole(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    segment = await store.create(name(0, 0, 0x7FFF), bucket_ends=QUARTERS)
    damaged = bytearray(entry(0) + entry(1))
    damaged[-1] ^= 1
    for image, error in [
        (b"", InvalidArgumentError),
        (b"x" * 200, CorruptionError),
        (bytes(damaged), CorruptionError),
        (entry(0)[:-8], CorruptionError),
        (entry(0, bucket=(0x3FFF, 0x4000)), InvalidArgumentError),
        (entry(0, segment_hash=(0x8000, 0x8000), flags=KEYED), InvalidArgumentError),
        (entry(0) + entry(0, ("a",) * 0 or (b"a", b"b")), InvalidArgumentError),
    ]:
        with pytest.raises(error):
            await segment.append(image)
    assert segment.next_offset == 0
    assert await segment.append(entry(0)) == [Appended(0, 0, 0, 1, False)]
    await store.close()


async def test_open_and_create(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    with pytest.raises(NotFoundError):
        await store.open(name())
    segment = await store.create(name())
    assert await store.create(name()) is segment
    assert store.get(name()) is segment
    assert await store.list(TOPIC) == [name()]
    with pytest.raises(InvalidConfigurationError):
        await store.create(name(1), durability="maybe")
    with pytest.raises(InvalidArgumentError):
        await store.create(name(1), bucket_ends=[5])
    await store.delete(name())
    await store.delete(name())
    assert store.get(name()) is None
    assert await store.list(TOPIC) == []
    with pytest.raises(AlreadyClosedError):
        segment.read(0)
    await store.close()
    with pytest.raises(AlreadyClosedError):
        await store.create(name())


async def test_a_new_segment_is_as_recovery_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is read back: what was just written is known, and durable."""
    store = make_store(tmp_path)

    def never(disk: OsDisk, path: str) -> OsFile:
        raise AssertionError(f"{path} was opened")

    with monkeypatch.context() as patched:
        patched.setattr(OsDisk, "open", never)
        made = store._recover(name(), (*QUARTERS,), "fsync", None, NOTHING, create=True)
    found = recover(OsDisk(), store.directory(name()), name(), QUARTERS)
    assert found is not None
    assert made.dedup.snapshot() == found.dedup.snapshot()
    for part in ("term", "sealed", "orderly", "restart", "end", "torn"):
        assert getattr(made, part) == getattr(found, part), part
    (file,), (same,) = made.files, found.files
    assert file.index is not None
    assert same.index is not None
    beginning = file.first_offset, file.opening.data_position
    assert file.index.last(*beginning) == same.index.last(*beginning)
    for part in set(LogFile.__slots__) - {"index"}:
        assert getattr(file, part) == getattr(same, part), part
    await store.close()


async def test_a_new_segment_knows_the_producers_of_its_parents_that_lie_there_before_it(tmp_path: Path) -> None:
    """As a segment on object storage is restored, whose parents' producers are there and whose log is not."""
    parent = await (above := make_store(tmp_path / "above")).create(name())
    await parent.append(entry(0))
    store = make_store(tmp_path / "below")
    OsDisk().make_directories(directory := store.directory(name()))
    write_producer_snapshot(OsDisk(), f"{directory}/inherited", parent.dedup_snapshot())
    await above.close()
    again = await (await store.create(name())).append(entry(0))
    assert [place.duplicate for place in again] == [True]
    await store.close()


async def test_names_that_trouble_a_file_system(tmp_path: Path) -> None:
    from engine.model.hashrange import HashRange
    from engine.model.names import TopicName

    store = make_store(tmp_path)
    for local in ("a b", "ü" * 120, "%", "x" * 255, "CON:*?"):
        segment_name = TopicName("t", "n", local).segment(HashRange.whole(), 0)
        segment = await store.create(segment_name)
        await segment.append(entry(0))
        await store.release(segment_name)
        assert (await store.open(segment_name)).next_offset == 1
        assert await store.list(segment_name.topic) == [segment_name]
    await store.close()


async def test_retention_deletes_whole_acknowledged_files_only(tmp_path: Path) -> None:
    clock = FakeClock()
    store = make_store(tmp_path, clock=clock, file_size_max=4096, retention_ms=1000)
    segment = await store.create(name())
    for i in range(60):
        await segment.append(entry(i, (b"x" * 200,)))
        clock.advance(0.1)
    before = log_files(store, name())
    assert await segment.retain(0) == 0, "nothing is acknowledged"
    assert await segment.retain(60, retention_ms=None) == 0, "kept for ever"
    assert await segment.retain(25) == len([p for p in before[1:] if int(p.stem) <= 25])
    assert segment.first_offset <= 25
    block = segment.read(0)
    block = block if isinstance(block, Block) else await block
    assert block.first_offset == segment.first_offset
    assert await segment.retain(60, retention_bytes=6000, retention_ms=None) > 0
    assert segment.size_bytes >= 6000
    assert segment.next_offset == 60
    await store.close()
    segment = await make_store(tmp_path).open(name())
    assert await segment.append(entry(0, (b"x" * 200,))) == [Appended(0, 0, -1, 1, True)], (
        "its file is gone, not its sequence"
    )
    segment.release()


async def test_offset_at_a_time(tmp_path: Path) -> None:
    clock = FakeClock(time_ms=10_000)
    store = make_store(tmp_path, clock=clock, file_size_max=4096)
    segment = await store.create(name())
    assert await segment.offset_at(0) == 0
    for i in range(60):
        await segment.append(entry(i, (b"x" * 200,)))
        clock.jump(-5 if i == 30 else 10)
    forget_tails(store)
    times = [t for b in await read_blocks(segment, 0, 1) for t in [int.from_bytes(b.data[96:104], "little")]]
    assert times == sorted(times), "publish times never go back, whatever the clock does"
    for at in (0, 10_000, 10_001, 10_155, 10_299, 10_305, 11_000):
        expected = next((i for i, t in enumerate(times) if t >= at), 60)
        assert await segment.offset_at(at) == expected
    await store.close()


@pytest.mark.parametrize("durability", ["interval", "os"])
async def test_relaxed_modes_acknowledge_what_is_written(durability: str) -> None:
    disk = SimDisk(random.Random(1))
    store = make_store("/data", disk=disk.mount(), interval_ms=20)
    segment = await store.create(name(), durability=durability)
    syncs = disk.statistics.calls["sync"]
    await segment.append(entry(0))
    assert segment.durable_offset == 1
    assert disk.statistics.calls["sync"] == syncs
    await asyncio.sleep(0.1)
    assert disk.statistics.calls["sync"] == syncs + (durability == "interval")
    await segment.seal()
    disk.crash()
    segment = await make_store("/data", disk=disk.mount()).open(name())
    assert segment.sealed
    assert segment.next_offset == 1


async def test_many_open_segments_share_few_descriptors(tmp_path: Path) -> None:
    store = make_store(tmp_path, open_files_max=3, workers=(workers := ThreadWorkers(4)))
    segments = [await store.create(name(i)) for i in range(20)]
    for round_ in range(3):
        await asyncio.gather(*(s.append(entry(round_)) for s in segments))
        assert store.statistics().open_files <= 3
    assert all(s.durable_offset == 3 for s in segments)
    await store.close()
    workers.close()


async def test_the_tail_cache_is_bounded_over_all_segments(tmp_path: Path) -> None:
    store = make_store(tmp_path, cache_bytes=50_000)
    segments = [await store.create(name(i)) for i in range(5)]
    for i in range(30):
        for segment in segments:
            await segment.append(entry(i, (b"x" * 1000,)))
    assert store.statistics().cache_bytes <= 50_000
    for segment in segments:
        oldest = segment.read(0)
        assert oldest is not None
        assert not isinstance(oldest, Block), "it comes from the file"
        await oldest
        assert isinstance(segment.read(29), Block)
        assert len(await read_blocks(segment, 0, 1)) == 30
    await store.close()


@pytest.mark.parametrize("step_ms", [-86_400_000, 86_400_000])
async def test_a_clock_that_is_set_changes_no_retention_of_files(tmp_path: Path, step_ms: int) -> None:
    clock = FakeClock()
    store = make_store(tmp_path, clock=clock, file_size_max=4096, retention_ms=60_000)
    segment, ages = await store.create(name()), Ages[int](clock, ForwardSteps(clock))
    for i in range(60):
        await segment.append(entry(i, (b"x" * 200,)))
        clock.advance(0.1)
        assert await segment.retain(60, ages=ages) == 0
        if i == 30:
            clock.jump(step_ms)
    clock.advance(53.5)
    assert await segment.retain(60, ages=ages) == 0
    clock.advance(3.5)
    files = len(log_files(store, name()))
    assert 0 < await segment.retain(60, ages=ages) < files - 1, "half of it is a minute old"
    clock.advance(3.5)
    await segment.retain(60, ages=ages)
    assert len(log_files(store, name())) == 1
    await store.close()
