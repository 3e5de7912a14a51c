"""Write jobs, and the workers that run them without the interpreter lock."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from engine.aio.workers import InlineWorkers, ThreadWorkers, Workers, run
from engine.storage.disk.disk import OsDisk, OsFile
from engine.storage.disk.workers import NativeWorkers
from engine.storage.file.logfile import SyncFailed
from engine.storage.file.writer import write_job


class OtherFile(OsFile):
    """A subclass of OsFile, whose overridden methods the writer must call."""

    __slots__ = ("done",)

    def __init__(self, path: str, fd: int) -> None:
        super().__init__(path, fd)
        self.done: list[str] = []

    def write(self, buffers, position):
        self.done.append("write")
        if position > 0:
            raise OSError(errno.ENOSPC, "full")
        super().write(buffers, position)

    def sync(self):
        self.done.append("sync")
        super().sync()


@pytest.fixture
def file(tmp_path):
    opened = OsDisk().create(str(tmp_path / "file"))
    yield opened
    opened.close()


@pytest.fixture(params=["file", "threads", "inline"])
def workers(request):
    made: Workers = {"file": NativeWorkers, "threads": ThreadWorkers, "inline": InlineWorkers}[request.param]()
    yield made
    made.close()


async def test_it_is_written_whoever_runs_it(file, workers):
    jobs = [write_job(file, [b"%03d" % i], 3 * i, 0, True) for i in range(50)]
    await asyncio.gather(*(run(workers, job) for job in jobs))
    last = write_job(file, [b"end"], 150, 10, True)
    await run(workers, last)
    assert last.padded
    assert os.pread(file.fileno(), 1000, 0) == b"".join(b"%03d" % i for i in range(50)) + b"end" + bytes(10)


async def test_a_failed_write_and_a_failed_sync_are_told_apart(tmp_path, workers):
    (tmp_path / "read").touch()
    unwritable = OsFile("read", os.open(tmp_path / "read", os.O_RDONLY))
    with pytest.raises(OSError, match="Bad file descriptor"):
        await run(workers, write_job(unwritable, [b"x"], 0, 0, True))
    unwritable.close()
    ends = os.pipe()
    with pytest.raises(SyncFailed) as failed:
        await run(workers, write_job(OsFile("pipe", ends[1]), [], 0, 0, True))
    assert failed.value.error.errno == errno.EINVAL
    for end in ends:
        os.close(end)


async def test_another_kind_of_file_is_written_by_its_own_methods(tmp_path, workers):
    other = OtherFile("other", os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT))
    job = write_job(other, [b"data"], 0, 8, True)  # no room for the zeros, which is no error
    await run(workers, job)
    assert other.done == ["write", "write", "sync"]
    assert not job.padded
    other.close()


async def test_close_finishes_what_was_posted(file):
    workers = NativeWorkers(2)
    done: list[BaseException | None] = []
    for i in range(20):
        workers.post(write_job(file, [b"x"], i, 0, True), lambda _, error: done.append(error))
    workers.close()
    workers.close()
    assert done == [None] * 20
    assert file.size() == 20


def test_a_second_loop_is_served_as_well(file):
    workers = NativeWorkers(2)
    for loops in range(3):
        asyncio.run(_write(workers, file, loops))
    workers.close()
    assert file.size() == 3


async def _write(workers: NativeWorkers, file: OsFile, position: int) -> None:
    await asyncio.wait_for(run(workers, write_job(file, [b"x"], position, 0, True)), 30)
