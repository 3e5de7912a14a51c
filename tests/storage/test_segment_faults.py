"""Segments on a disk that is full, that lies, or that loses power in the middle of a repair."""

from __future__ import annotations

import contextlib
import errno
import random

import pytest

from engine.errors import CorruptionError, DiskFullError, StorageError, UnknownOutcomeError
from engine.storage.file.format import HEADER_SIZES, VERSION
from engine.testing.disk import Fault, SimDisk
from tests.kit.entry_images import entry, values_of
from tests.kit.stores import QUARTERS, make_store, name, read_blocks


async def test_a_full_disk_fails_exactly_what_did_not_fit() -> None:
    disk = SimDisk(random.Random(1))
    store = make_store("/data", disk=disk.mount())
    segment = await store.create(name())
    await segment.append(entry(0))
    disk.capacity = disk.used() + 5_000
    future = segment.append(entry(1, (b"x" * 20_000,)))
    with pytest.raises(DiskFullError):
        await future
    assert segment.next_offset == segment.durable_offset == 1
    with pytest.raises(DiskFullError):
        await segment.append(entry(1, (b"x" * 20_000,)))
    disk.capacity = None
    assert (await segment.append(entry(1, (b"x" * 20_000,))))[0].first_offset == 1
    disk.crash()
    segment = await make_store("/data", disk=disk.mount()).open(name())
    assert [v for b in await read_blocks(segment) for _, v in values_of(b.data)] == [b"v", b"x" * 20_000]


async def test_a_failed_sync_is_never_retried() -> None:
    disk = SimDisk(random.Random(1))
    store = make_store("/data", disk=disk.mount())
    segment = await store.create(name())
    await segment.append(entry(0))
    disk.faults = [Fault("sync", errno.EIO)]
    with pytest.raises(UnknownOutcomeError):
        await segment.append(entry(1))
    (place,) = await segment.append(entry(1))
    assert place.first_offset == 1
    assert [p.rsplit("/")[-1] for p in disk.paths()] == ["0.log", "1.log"], "a new file continues"
    disk.crash()
    segment = await make_store("/data", disk=disk.mount()).open(name())
    assert len(await read_blocks(segment, 0, 1)) == 2


async def test_what_a_failed_sync_left_in_the_page_cache_is_written_again() -> None:
    """The process dies of a failed sync; the next one sees pages that are clean and not on the medium."""
    for seed in range(20):
        disk = SimDisk(random.Random(seed))
        segment = await make_store("/data", disk=disk.mount()).create(name())
        await segment.append(entry(0))
        disk.faults = [Fault("sync", errno.EIO), Fault("create", errno.EIO)]
        with pytest.raises(UnknownOutcomeError):
            await segment.append(entry(1))
        disk.kill()
        segment = await make_store("/data", disk=disk.mount()).open(name())
        found = len(await read_blocks(segment, 0, 1))
        await segment.append(entry(2))
        disk.crash()
        segment = await make_store("/data", disk=disk.mount()).open(name())
        assert len(await read_blocks(segment, 0, 1)) == found + 1


async def test_a_seal_that_failed_is_confirmed_by_the_next_process() -> None:
    for seed in range(20):
        disk = SimDisk(random.Random(seed))
        segment = await make_store("/data", disk=disk.mount()).create(name())
        await segment.append(entry(0))
        disk.faults = [Fault("sync", errno.EIO, after=seed % 2)]
        with pytest.raises(StorageError):
            await segment.seal()
        disk.kill()
        segment = await make_store("/data", disk=disk.mount()).open(name())
        assert await segment.seal() == 1
        disk.crash()
        segment = await make_store("/data", disk=disk.mount()).open(name())
        assert segment.sealed
        assert segment.next_offset == 1


async def test_a_rename_that_was_not_synced_is_synced_at_open() -> None:
    for seed in range(20):
        disk = SimDisk(random.Random(seed))
        store = make_store("/data", disk=disk.mount())
        disk.faults = [Fault("sync_directory", errno.EIO)]
        with pytest.raises(StorageError):
            await store.create(name())
        disk.kill()
        segment = await make_store("/data", disk=disk.mount()).create(name())
        await segment.append(entry(0))
        disk.crash()
        segment = await make_store("/data", disk=disk.mount()).open(name())
        assert segment.next_offset == 1


async def test_damage_found_after_a_failed_sync_stops_the_segment() -> None:
    disk = SimDisk(random.Random(1))
    store = make_store("/data", disk=disk.mount())
    segment = await store.create(name())
    await segment.append(entry(0))
    disk.corrupt(disk.paths()[0], HEADER_SIZES[VERSION] + 130)
    disk.faults = [Fault("sync", errno.EIO)]
    with pytest.raises(UnknownOutcomeError):
        await segment.append(entry(1))
    with pytest.raises(CorruptionError, match=r"0\.log"):
        await segment.append(entry(1))
    assert isinstance(segment.failed, CorruptionError)


async def test_a_failed_append_has_to_come_again_before_later_ones() -> None:
    disk = SimDisk(random.Random(1))
    store = make_store("/data", disk=disk.mount())
    segment = await store.create(name())
    await segment.append(entry(0))
    disk.faults = [Fault("write", errno.EIO)]
    with pytest.raises(StorageError):
        await segment.append(entry(1))
    with pytest.raises(StorageError, match="sequence 1 failed"):
        await segment.append(entry(2))
    assert (await segment.append(entry(9, producer="other")))[0].first_offset == 1, "others go on"
    assert (await segment.append(entry(1)))[0].first_offset == 2
    with pytest.raises(StorageError, match="sequence 2 failed"):
        await segment.append(entry(3))
    segment.producer_attached("p")
    assert (await segment.append(entry(3)))[0].first_offset == 3
    await store.close()


@pytest.mark.parametrize("failed", [None, (7, 0)])
async def test_c3_in_a_transaction_or_not_what_failed_comes_before_what_was_sent_behind_it(failed) -> None:
    """A key's messages are one order, whatever they are in; another bucket's are another."""
    disk = SimDisk(random.Random(1))
    store = make_store("/data", disk=disk.mount())
    segment = await store.create(name(), bucket_ends=QUARTERS)
    behind = None if failed else (7, 0)

    async def append(sequence: int, transaction: tuple[int, int] | None, bucket: int = 0) -> int:
        image = entry(sequence, bucket=(bucket, bucket), transaction=transaction)
        return (await segment.append(image, transaction=transaction))[0].first_offset

    disk.faults = [Fault("sync", errno.EIO)]
    with pytest.raises(UnknownOutcomeError):
        await append(3, failed)
    assert await append(7, behind, 0x4000) == 0
    for sequence in (7, 8):
        with pytest.raises(StorageError, match="sequence 3 failed"):
            await append(sequence, behind)
    assert await append(3, failed) == 1
    with pytest.raises(StorageError, match="sequence 7 failed"):
        await append(8, behind)
    assert [await append(sequence, behind) for sequence in (7, 8)] == [2, 3]
    await store.close()


async def closed_log(disk: SimDisk, close: str) -> str:
    """Three entries in a file that was closed in order, its closing block torn; the file's path."""
    store = make_store("/data", disk=disk.mount())
    segment = await store.create(name())
    for i in range(3):
        await segment.append(entry(i))
    if close == "sealed":
        await segment.seal()
    await store.close()
    disk.kill()
    (path,) = disk.paths()
    disk.corrupt(path, 64 + 60, 0xFF)
    return path


@pytest.mark.parametrize("close", ["clean", "sealed"])
@pytest.mark.parametrize("operation", ["write", "truncate", "sync"])
async def test_d6_a_closing_block_is_restored_over_any_failure_while_it_is(close: str, operation: str) -> None:
    """The footer that tells all is never touched, so a power cut in the repair leaves something to repair from."""
    for seed in range(30):
        disk = SimDisk(random.Random(seed))
        await closed_log(disk, close)
        for after in (0, 0, 1):
            disk.faults = [Fault(operation, errno.EIO, after=after)]
            with contextlib.suppress(StorageError):  # it is the disk that fails, and no data that is damaged
                await make_store("/data", disk=disk.mount()).open(name())
            disk.crash()
        disk.faults = []
        segment = await make_store("/data", disk=disk.mount()).open(name())
        assert len(await read_blocks(segment, 0, 1)) == 3
        assert segment.sealed == (close == "sealed")


async def test_d6_a_torn_closing_block_does_not_hide_that_a_file_is_missing() -> None:
    disk = SimDisk(random.Random(1))
    store = make_store("/data", disk=disk.mount(), file_size_max=4096)
    segment = await store.create(name())
    for i in range(30):
        await segment.append(entry(i, (b"x" * 500,)))
    await store.close()
    disk.kill()
    first, *following = sorted(disk.paths(), key=lambda p: int(p.rsplit("/")[-1].removesuffix(".log")))
    assert following
    mount = disk.mount()
    for path in following:
        mount.unlink(path)
    disk.corrupt(first, 64 + 60, 0xFF)
    with pytest.raises(CorruptionError, match="which is missing"):
        await make_store("/data", disk=mount).open(name())
