"""Workers for jobs that take no interpreter lock: writes of files, commits of a database."""

from __future__ import annotations

import asyncio
import os

from engine._native.jobs.jobs import Job, JobThreads, tell_all
from engine.aio.workers import Done, ThreadWorkers, Work


class NativeWorkers(ThreadWorkers):
    """ThreadWorkers with a second set of threads for native jobs, which never wait for the interpreter lock.

    The native threads serve the first loop that posts a native job; jobs of other loops run on Python's threads.
    """

    def __init__(self, threads: int = 16) -> None:
        super().__init__(threads)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._native: JobThreads | None = None
        self._wakes = (-1, -1)  # a pipe: readable when jobs have ended

    def post(self, work: Work, done: Done) -> None:
        """Post a native job to a native thread, other work to one of Python's."""
        loop = asyncio.get_running_loop()
        if isinstance(work, Job):
            native = self._native if self._loop is loop else self._threads_for(loop)
            if native is not None:
                try:
                    native.submit(work, done)
                except OSError as e:
                    loop.call_soon(done, None, e)
                return
        super().post(work, done)

    def _threads_for(self, loop: asyncio.AbstractEventLoop) -> JobThreads | None:
        """The native threads, where they serve this loop."""
        if self._loop is None:
            self._loop = loop
            self._wakes = os.pipe()
            for end in self._wakes:
                os.set_blocking(end, False)
            self._native = JobThreads(self._wakes[1], self._threads_max)
            loop.add_reader(self._wakes[0], self._native.deliver, self._wakes[0])
        return self._native if self._loop is loop else None

    def close(self) -> None:
        native, self._native = self._native, None
        if native is not None and self._loop is not None:
            jobs, waits = native.close(), not self._loop.is_closed()
            if waits:
                self._loop.remove_reader(self._wakes[0])
            for fd in self._wakes:
                os.close(fd)
            if waits:
                tell_all(iter(jobs))
        super().close()
