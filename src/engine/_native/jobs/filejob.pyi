"""Writes and syncs of open files, for JobThreads."""

from collections.abc import Sequence

from typing_extensions import Buffer

from engine._native.jobs.jobs import Job

ZEROS_MAX: int

def drop_cached(fd: int, start: int, end: int, writes: bool) -> None: ...

class FileJob(Job):
    @property
    def padded(self) -> bool: ...
    @property
    def write_error(self) -> int: ...
    @property
    def sync_error(self) -> int: ...
    def __init__(self, fd: int, buffers: Sequence[Buffer], position: int, zeros: int, syncs: bool) -> None: ...
