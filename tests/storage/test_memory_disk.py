"""What storage asks of a disk: the one in memory answers as the operating system's does."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import DataDirectoryBusyError
from engine.storage.disk.disk import Disk, File, OsDisk
from engine.storage.disk.memory import MemoryDisk


@pytest.fixture(params=[OsDisk, MemoryDisk])
def disk(request: pytest.FixtureRequest) -> Disk:
    found: Disk = request.param()
    return found


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    path = str(tmp_path / "data" / "deep")
    disk.make_directories(path)
    disk.make_directories(path)
    return path


def read(file: File, position: int, size: int) -> bytes:
    buffer = bytearray(size)
    return bytes(buffer[: file.read_into(buffer, position)])


def test_bytes_are_read_as_they_were_written(disk: Disk, root: str):
    file = disk.create(f"{root}/a")
    file.write([b"one", memoryview(b"two"), bytearray(b"three")], 0)
    assert (file.size(), read(file, 0, 100), read(file, 2, 3), read(file, 11, 5)) == (11, b"onetwothree", b"etw", b"")
    file.write([b"XX"], 3)
    file.write([b"far"], 13)
    assert read(file, 0, 100) == b"oneXXothree\0\0far"
    file.write([b"over the end"], 14)
    assert read(file, 12, 100) == b"\0fover the end"
    file.truncate(4)
    assert read(file, 0, 100) == b"oneX"
    file.truncate(6)
    assert read(file, 0, 100) == b"oneX\0\0"
    file.sync()
    file.drop_cache()
    assert disk.open(f"{root}/a").size() == 6
    cached = bytearray(6)
    assert file.read_cached(cached, 0) in (0, 6)
    assert disk.create(f"{root}/a").size() == 0
    file.close()
    file.close()


def test_names_come_move_and_go(disk: Disk, root: str):
    assert disk.list(root) == []
    assert disk.list(f"{root}/none") == []
    for name in ("b", "a"):
        disk.create(f"{root}/{name}").close()
    disk.make_directories(f"{root}/c/d")
    disk.create(f"{root}/c/d/e").write([b"e"], 0)
    assert disk.list(root) == ["a", "b", "c"]
    assert [disk.exists(f"{root}/{name}") for name in ("a", "c", "x")] == [True, True, False]
    disk.sync_directory(root)
    disk.open(f"{root}/b").write([b"new"], 0)
    disk.rename(f"{root}/b", f"{root}/a")
    assert (disk.list(root), read(disk.open(f"{root}/a"), 0, 9)) == (["a", "c"], b"new")
    disk.rename(f"{root}/c", f"{root}/moved")
    assert read(disk.open(f"{root}/moved/d/e"), 0, 9) == b"e"
    held = disk.open(f"{root}/a")
    for _ in range(2):
        disk.unlink(f"{root}/a")
    assert read(held, 0, 9) == b"new", "what is open stays readable"
    with pytest.raises(OSError, match="not empty"):
        disk.remove_directory(f"{root}/moved/d")
    disk.unlink(f"{root}/moved/d/e")
    for _ in range(2):
        disk.remove_directory(f"{root}/moved/d")
    assert disk.list(f"{root}/moved") == []


def test_what_is_not_there_is_an_error(disk: Disk, root: str):
    for call in (disk.open, disk.sync_directory, lambda path: disk.rename(path, path)):
        with pytest.raises(FileNotFoundError):
            call(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        disk.create(f"{root}/none/file")
    disk.create(f"{root}/file").close()
    with pytest.raises(NotADirectoryError):
        disk.make_directories(f"{root}/file/inside")


def test_a_directory_is_locked_once(disk: Disk, root: str):
    lock = disk.lock(f"{root}/lock")
    with pytest.raises(DataDirectoryBusyError, match="locked"):
        disk.lock(f"{root}/lock")
    for _ in range(2):
        lock.release()
    disk.lock(f"{root}/lock").release()


def test_no_other_process_opens_a_file_in_memory():
    assert MemoryDisk().shared_path("x") is None
