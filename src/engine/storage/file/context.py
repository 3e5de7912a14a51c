"""What all segments of a store share, and the statistics of a segment."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from engine._native.serve.tails import TailCache
from engine.aio.workers import Workers
from engine.clock import Clock
from engine.model.names import SegmentName
from engine.storage.disk.buffers import ReadBuffers
from engine.storage.disk.config import StorageConfig
from engine.storage.disk.disk import Disk
from engine.storage.disk.metrics import StorageMetrics
from engine.storage.file.handles import Handles
from engine.storage.file.page_cache import PageCache

BeforeChange = Callable[[SegmentName], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Context:
    """What all segments of a store share."""

    disk: Disk
    workers: Workers
    clock: Clock
    config: StorageConfig
    handles: Handles
    cache: TailCache
    pages: PageCache
    rng: random.Random
    store: int = 0  # the id of the metadata that know the segments; 0: unknown
    generation: int = 0  # how often these metadata were started; 0: unknown
    metrics: StorageMetrics = field(default_factory=StorageMetrics)
    buffers: ReadBuffers = field(default_factory=ReadBuffers)
    before_change: list[BeforeChange] = field(default_factory=list)  # awaited before files of a segment change or go

    async def will_change(self, name: SegmentName) -> None:
        """Wait for what has to be done before files that a segment has now are changed or removed."""
        for prepare in list(self.before_change):
            await prepare(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentStatistics:
    """Counted since the segment was opened, except where stated otherwise."""

    appended_messages: int
    appended_entries: int
    appended_bytes: int
    duplicate_entries: int
    read_blocks: int
    read_bytes: int
    read_from_memory: int
    commits: int
    commit_bytes: int
    syncs: int
    rolls: int
    write_failures: int
    sync_failures: int
    files: int  # now
    size_bytes: int  # now
    first_offset: int  # now
    durable_offset: int  # now
    last_publish_ms: int  # of the newest entry; 0 for none
