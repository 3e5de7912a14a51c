"""Workers for jobs that take no interpreter lock: writes of files, commits of a database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from engine._native.jobs.jobs import Job, JobThreads
from engine.aio.workers import Done, ThreadWorkers, Work, call

_WAKES_READ = 64


class NativeWorkers(ThreadWorkers):
    """ThreadWorkers with a second set of threads for native jobs, which never wait for the interpreter lock.

    The native threads serve the first loop that posts a native job; jobs of other loops run on Python's threads.
    """

    def __init__(self, threads: int = 16) -> None:
        super().__init__(threads)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._native: JobThreads | None = None
        self._wakes = (-1, -1)  # a pipe: readable when jobs have ended
        self._waiting: dict[Job, Done] = {}

    def post(self, work: Work, done: Done) -> None:
        """Post a native job to a native thread, other work to one of Python's."""
        if isinstance(work, Job) and self._serves(asyncio.get_running_loop()):
            assert self._native is not None
            try:
                self._native.submit(work)
            except OSError as e:
                asyncio.get_running_loop().call_soon(done, None, e)
            else:
                self._waiting[work] = done
        else:
            super().post(work, done)

    def _serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        if self._loop is None:
            self._loop = loop
            self._wakes = os.pipe()
            for end in self._wakes:
                os.set_blocking(end, False)
            self._native = JobThreads(self._wakes[1], self._threads_max)
            loop.add_reader(self._wakes[0], self._ended)
        return self._loop is loop and self._native is not None

    def _ended(self) -> None:
        assert self._native is not None
        os.read(self._wakes[0], _WAKES_READ)
        self._deliver(self._native.take())

    def _deliver(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._waiting.pop(job)(*call(job.check))

    def close(self) -> None:
        native, self._native = self._native, None
        if native is not None and self._loop is not None:
            jobs = native.close()
            if not self._loop.is_closed():  # else nothing waits any more
                self._loop.remove_reader(self._wakes[0])
                self._deliver(jobs)
            for fd in self._wakes:
                os.close(fd)
        super().close()
