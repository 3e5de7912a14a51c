"""Writes and syncs on threads that need no interpreter lock."""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import time
import warnings
import weakref
from collections.abc import Callable

import pytest

from engine._native.jobs.filejob import ZEROS_MAX, FileJob
from engine._native.jobs.jobs import JobThreads

WAIT_S_MAX = 30.0


@pytest.fixture
def fd(tmp_path):
    number = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield number
    os.close(number)


@pytest.fixture
def pipe():
    ends = os.pipe2(os.O_NONBLOCK)
    yield ends
    for end in ends:
        os.close(end)


def take(threads: JobThreads, wakes: int, count: int) -> list[FileJob]:
    """So many jobs, in the order in which they ended."""
    found: list[FileJob] = []
    while len(found) < count:
        assert select.select([wakes], [], [], WAIT_S_MAX)[0], "nothing ended"
        os.read(wakes, 64)
        found += threads.take()
    return found


def test_buffers_then_zeros_are_written_at_their_position(fd):
    job = FileJob(fd, [b"one", bytearray(b"two"), memoryview(b"three")], 5, 4, True)
    job.run()
    assert (job.write_error, job.sync_error, job.padded) == (0, 0, True)
    assert os.pread(fd, 100, 0) == bytes(5) + b"onetwothree" + bytes(4)


def test_more_buffers_than_one_call_takes(fd):
    parts = [b"%04d" % i for i in range(3000)]
    FileJob(fd, parts, 0, 0, False).run()
    assert os.pread(fd, 20_000, 0) == b"".join(parts)


def test_no_buffers_only_sync(fd):
    job = FileJob(fd, [], 0, 0, True)
    job.run()
    assert (job.write_error, job.sync_error, job.padded) == (0, 0, False)
    assert os.fstat(fd).st_size == 0


def test_zeros_are_bounded(fd):
    FileJob(fd, [b"x"], 0, ZEROS_MAX + 1, False).run()
    assert os.fstat(fd).st_size == 1 + ZEROS_MAX


def test_a_failed_write_is_told_and_nothing_is_synced(tmp_path):
    (tmp_path / "file").touch()
    number = os.open(tmp_path / "file", os.O_RDONLY)
    job = FileJob(number, [b"x"], 0, 8, True)
    job.run()
    os.close(number)
    assert (job.write_error, job.sync_error, job.padded) == (errno.EBADF, 0, False)


def test_a_failed_sync_is_told(pipe):
    job = FileJob(pipe[1], [], 0, 0, True)  # a pipe cannot be synced
    job.run()
    assert (job.write_error, job.sync_error) == (0, errno.EINVAL)


def test_buffers_are_lent_until_the_job_has_ended(fd, pipe):
    data = bytearray(b"data")
    job = FileJob(fd, [data], 0, 0, True)
    with pytest.raises(BufferError):
        data.append(0)
    threads = JobThreads(pipe[1], 1)
    threads.submit(job)
    assert take(threads, pipe[0], 1) == [job]
    data.append(0)
    assert threads.close() == []


@pytest.mark.parametrize("threads_max", [1, 4, 1000])
def test_every_job_comes_back_once(fd, pipe, threads_max):
    threads = JobThreads(pipe[1], threads_max)
    jobs = [FileJob(fd, [b"%08d" % i], 8 * i, 0, i % 10 == 0) for i in range(500)]
    for job in jobs:
        threads.submit(job)
    found = take(threads, pipe[0], len(jobs))
    assert len(found) == len(jobs)
    assert set(found) == set(jobs)
    if threads_max == 1:
        assert found == jobs
    assert os.pread(fd, 8000, 0) == b"".join(b"%08d" % i for i in range(500))
    threads.close()


def test_close_runs_what_was_submitted_and_hands_it_out(fd, pipe):
    threads = JobThreads(pipe[1], 2)
    jobs = [FileJob(fd, [b"x"], i, 0, True) for i in range(20)]
    for job in jobs:
        threads.submit(job)
    assert set(threads.close()) == set(jobs)
    assert os.fstat(fd).st_size == 20
    assert threads.close() == []
    assert threads.take() == []
    with pytest.raises(RuntimeError):
        threads.submit(FileJob(fd, [b"x"], 0, 0, False))


def test_an_error_of_one_that_is_told_keeps_it_from_no_other(fd, pipe):
    told: list[int] = []

    def tell(i: int) -> None:
        told.append(i)
        if i in {1, 2}:
            raise ValueError(f"of {i}")

    threads = JobThreads(pipe[1], 1)
    for i in range(5):
        threads.submit(FileJob(fd, [b"x"], i, 0, False), lambda _, error, i=i: tell(i))
    time.sleep(0.05)  # so that they end together, as a rule
    raised = []
    while len(told) < 5:
        assert select.select([pipe[0]], [], [], WAIT_S_MAX)[0], f"only {told} were told"
        try:
            threads.deliver(pipe[0])
        except ValueError as e:
            raised += [str(one) for one in (e.__context__, e) if one is not None]
    assert told == [0, 1, 2, 3, 4]
    assert raised == ["of 1", "of 2"]
    threads.close()


def test_a_job_under_way_is_not_collected_with_what_it_tells(fd, pipe):
    class Owned(FileJob):
        def done(self, _: object, error: BaseException | None) -> None:
            """It is part of a cycle: the job, itself, and by it the threads."""

    def begin() -> weakref.ref[Owned]:
        threads = JobThreads(pipe[1], 1)
        threads.submit(FileJob(fd, [b"x"], 0, 0, False))
        job = Owned(fd, [b"x"], 1, 0, False)
        job.threads = threads
        threads.submit(job, job.done)
        return weakref.ref(job)

    job = begin()
    gc.collect()
    assert job() is not None
    assert job() in job().threads.close()
    gc.collect()
    assert job() is None


def test_what_is_no_buffer_is_refused_and_lends_nothing(fd):
    data = bytearray(b"data")
    with pytest.raises(TypeError):
        FileJob(fd, [data, "text"], 0, 0, False)
    data.append(0)


def in_a_fork(work: Callable[[], None]) -> int:
    """The exit code of a fork that does it: 0, or 1 for an error, or minus the signal that ended it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # some Pythons warn of forks of processes with threads
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        signal.alarm(int(WAIT_S_MAX))
        work()
        code = 0
    finally:
        os._exit(code)


def test_a_fork_does_not_wait_for_threads_that_it_has_not(fd, pipe):
    threads = JobThreads(pipe[1], 2)
    threads.submit(FileJob(fd, [b"x"], 0, 0, True))
    take(threads, pipe[0], 1)
    assert in_a_fork(threads.close) == 0
    threads.submit(FileJob(fd, [b"y"], 1, 0, True))
    assert len(threads.close()) == 1
