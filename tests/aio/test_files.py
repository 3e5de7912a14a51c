"""Reading files of the system: what is opened, what is read, and when it is closed."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path

import pytest

from engine.aio.files import ReadFile

WHOLE = bytes(range(256)) * 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_bytes(WHOLE)
    return made


async def test_it_reads_from_anywhere_to_the_end(path: Path):
    file = ReadFile(str(path))
    assert file.head(64) == WHOLE[:64]
    for position, size in ((0, 1), (5, 300), (16_000, 384), (16_000, 1000), (16_384, 8), (20_000, 8)):
        buffer = bytearray(size)
        count = await file.read_into(memoryview(buffer), position)
        assert (count, buffer[:count]) == (len(WHOLE[position : position + size]), WHOLE[position : position + size])


async def test_what_is_not_cached_is_read_on_a_thread(path: Path, monkeypatch: pytest.MonkeyPatch):
    threads: list[int] = []
    read = ReadFile.read_now

    def noted(self: ReadFile, view: memoryview, position: int) -> int:
        threads.append(threading.get_ident())
        return read(self, view, position)

    monkeypatch.setattr(ReadFile, "read_now", noted)
    monkeypatch.setattr("engine.aio.files._NOWAIT", None)
    buffer = bytearray(100)
    assert await ReadFile(str(path)).read_into(memoryview(buffer), 0) == 100
    assert buffer == WHOLE[:100]
    assert threads
    assert threading.get_ident() not in threads


async def test_it_stays_open_while_a_thread_reads(path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also when the caller has gone: another file may get its number."""
    begun, go_on, found = threading.Event(), threading.Event(), []
    read = ReadFile.read_now

    def slow(self: ReadFile, view: memoryview, position: int) -> int:
        begun.set()
        assert go_on.wait(20)
        found.append(read(self, view, position))
        return found[0]

    monkeypatch.setattr(ReadFile, "read_now", slow)
    monkeypatch.setattr("engine.aio.files._NOWAIT", None)
    file: ReadFile | None = ReadFile(str(path))
    reading = asyncio.ensure_future(file.read_into(memoryview(bytearray(10)), 0))
    await asyncio.to_thread(begun.wait, 20)
    file = None
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert found == [10]


def test_it_is_closed_when_nobody_holds_it(path: Path):
    file = ReadFile(str(path))
    fd = file._fd
    os.fstat(fd)
    del file
    gc.collect()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


@pytest.mark.parametrize("what", ["missing", "directory", "link", "pipe"])
def test_only_files_are_opened_and_nothing_is_waited_for(tmp_path: Path, path: Path, what: str):
    other = tmp_path / what
    if what == "directory":
        other.mkdir()
    elif what == "link":
        other.symlink_to(path)
    elif what == "pipe":
        os.mkfifo(other)
    with pytest.raises(OSError, match=what):
        ReadFile(str(other))
