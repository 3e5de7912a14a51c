"""What surrounds group commit, made by hand: workers that run jobs one by one, a segment that takes notes."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

from engine._native.serve import log
from engine._native.serve.groups import Group
from engine._native.serve.tails import TailCache
from engine.aio.workers import Done, Work, call
from engine.clock import SystemClock
from engine.errors import EngineError, NotOwnerError
from engine.storage.disk.config import StorageConfig
from engine.storage.disk.disk import Disk
from engine.storage.file.context import Context
from engine.storage.file.handles import Handles
from engine.storage.file.logfile import FileFacts, LogFile, new_file
from engine.storage.file.page_cache import PageCache
from tests.kit.entry_images import entry

DIRECTORY = "/data"


class HandWorkers:
    """Keeps jobs until the test runs them; the oldest first, or another."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Work, Done]] = deque()
        self.posted = asyncio.Event()

    def post(self, work: Work, done: Done) -> None:
        self.jobs.append((work, done))
        self.posted.set()

    def run(self, index: int = 0) -> None:
        """Do a job and deliver its outcome."""
        work, done = self.jobs[index]
        del self.jobs[index]
        done(*call(work))

    async def run_all(self) -> None:
        """Run all there are, and those that follow from them."""
        await settle()
        while self.jobs:
            self.run()
            await settle()

    def close(self) -> None:
        """Nothing runs."""


class HandLease:
    """Held until the test says otherwise."""

    def __init__(self, term: int = 1) -> None:
        self.term, self.born, self.held = term, 0, True

    def check(self) -> None:
        if not self.held:
            raise NotOwnerError("the lease is over")


class NotedSegment:
    """Plans files as a segment does, and notes what group commit says to it."""

    def __init__(self) -> None:
        self.notes: list[tuple[Any, ...]] = []

    def plan_file(self, first_offset: int) -> LogFile:
        return plan(first_offset)

    def snapshot(self, below: int) -> bytes:
        return b""

    def file_created(self, file: LogFile) -> None:
        self.notes.append(("created", file.first_offset))

    def group_durable(self, group: Group) -> None:
        self.notes.append(("durable", group.first_offset, group.next_offset))

    def rolled_back(self, offset: int) -> None:
        self.notes.append(("rolled back", offset))

    def gap_made(self, end: int, restart: int) -> None:
        self.notes.append(("gap", end, restart))

    def file_failed(self, error: EngineError) -> None:
        self.notes.append(("failed", type(error).__name__))


def plan(first_offset: int, *, salt: int = 7, durability: str = "fsync") -> LogFile:
    """A file to be created."""
    return new_file(DIRECTORY, FileFacts(0, 0, salt, 0, durability, 0, 0), first_offset)


def make_context(disk: Disk, workers: HandWorkers, **config: Any) -> Context:
    """As a store makes it."""
    disk.make_directories(DIRECTORY)
    settings = StorageConfig(**config)
    pages = PageCache(disk, workers, settings.log_cache_bytes)
    return Context(
        disk, workers, SystemClock(), settings, Handles(disk, 16), TailCache(1 << 20), pages, random.Random(3)
    )


def created(disk: Disk, file: LogFile) -> LogFile:
    """The same file, on the disk."""
    file.create(disk).close()
    file.created = True
    return file


def image(sequence: int, size: int = 100) -> tuple[memoryview, list[log.Claim]]:
    """One entry of a message of so many bytes, and what the log reads from it."""
    data = memoryview(bytearray(entry(sequence, (b"x" * size,))))
    return data, log.entries(data)


async def settle() -> None:
    """Let what was scheduled for the next turns of the loop happen."""
    for _ in range(4):
        await asyncio.sleep(0)
