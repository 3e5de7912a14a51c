"""Brokers with common metadata have one data directory: its number, which broker makes it, and which is refused."""

from __future__ import annotations

import asyncio
import errno
import random
import re
from pathlib import Path

import pytest

from engine.broker.opening import NUMBER_FILE, check_common
from engine.errors import DataDirectoryError, StorageError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.storage.disk.disk import OsDisk, OsFile
from engine.testing.clock import FakeClock
from engine.testing.metadata import FaultyMetadataStore


def common(data: Path, metadata: MemoryMetadataStore | FaultyMetadataStore, seed: int = 1) -> asyncio.Task[None]:
    return asyncio.create_task(check_common(OsDisk(), str(data), metadata, random.Random(seed)))


async def test_all_of_one_directory_start_and_those_of_another_do_not(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore(FakeClock())
    await asyncio.gather(*(common(tmp_path / "one", metadata, seed) for seed in range(8)))
    assert OsDisk().list(str(tmp_path / "one")) == [NUMBER_FILE]
    found = await metadata.get(keys.DIRECTORY)
    assert found is not None
    assert found.value == (tmp_path / "one" / NUMBER_FILE).read_bytes()
    with pytest.raises(DataDirectoryError, match=f"two must be the data directory .*{found.value.decode()}, got"):
        await common(tmp_path / "two", metadata, 9)
    await common(tmp_path / "one", metadata, 10)


class LateLook(OsDisk):
    """It sees no file that another broker has just made, as over a network."""

    def exists(self, path: str) -> bool:
        return False


async def test_a_number_that_is_there_already_is_taken(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore(FakeClock())
    await common(tmp_path, metadata)
    before = (tmp_path / NUMBER_FILE).read_bytes()
    await check_common(LateLook(), str(tmp_path), metadata, random.Random(2))
    assert (tmp_path / NUMBER_FILE).read_bytes() == before
    assert OsDisk().list(str(tmp_path)) == [NUMBER_FILE]


class NoLinks(OsDisk):
    """As a disk of Windows or a bucket that is mounted."""

    def link(self, old: str, new: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")


async def test_a_disk_without_links_is_not_compared_and_nothing_is_left_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = MemoryMetadataStore(FakeClock())
    await check_common(NoLinks(), str(tmp_path), metadata, random.Random(1))
    assert "is not compared" in caplog.text
    assert OsDisk().list(str(tmp_path)) == []
    assert await metadata.get(keys.DIRECTORY) is None


class Immutable(OsDisk):
    """A directory in which no file can be made."""

    def create(self, path: str) -> OsFile:
        raise OSError(errno.EPERM, "Operation not permitted")


async def test_a_directory_that_cannot_be_written_to_is_not_taken_for_one_without_links(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore(FakeClock())
    with pytest.raises(StorageError, match=NUMBER_FILE):
        await check_common(Immutable(), str(tmp_path), metadata, random.Random(1))
    assert await metadata.get(keys.DIRECTORY) is None


@pytest.mark.parametrize("seed", range(10))
async def test_lost_answers_change_nothing(tmp_path: Path, seed: int) -> None:
    faulty = FaultyMetadataStore(MemoryMetadataStore(FakeClock()), random.Random(seed))
    faulty.unknown_rate = 0.3
    await common(tmp_path / "one", faulty, seed)
    await common(tmp_path / "one", faulty, seed + 100)
    with pytest.raises(DataDirectoryError):
        await common(tmp_path / "two", faulty, seed + 200)


async def test_a_file_that_is_no_number_and_a_directory_that_cannot_be_made_are_told(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore(FakeClock())
    for wrong in (b"12", b"hello world, oh!"):
        (tmp_path / NUMBER_FILE).write_bytes(wrong)
        with pytest.raises(DataDirectoryError, match=re.escape(f"must have 16 hexadecimal digits, got {wrong!r}")):
            await common(tmp_path, metadata)
    (tmp_path / "file" / NUMBER_FILE).mkdir(parents=True)
    with pytest.raises(StorageError, match=NUMBER_FILE):
        await common(tmp_path / "file", metadata)
    assert await metadata.get(keys.DIRECTORY) is None
