"""Short ways to a store and a segment, for the tests of this room."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.aio.workers import InlineWorkers, Workers
from engine.clock import Clock, SystemClock
from engine.metadata.memory import MemoryMetadataStore
from engine.model.hashrange import HashRange
from engine.model.names import SegmentName, TopicName
from engine.storage.disk.config import StorageConfig
from engine.storage.disk.disk import Disk, OsDisk
from engine.storage.segment import Block, Segment
from engine.storage.store import SegmentStore

TOPIC = TopicName.parse("t")


def name(segment_id: int = 0, start: int = 0, end: int = 0xFFFF) -> SegmentName:
    """A segment's name."""
    return TOPIC.segment(HashRange(start, end), segment_id)


def make_store(
    root: Path | str,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    workers: Workers | None = None,
    **config: Any,
) -> SegmentStore:
    """A store that does its work inline."""
    clock = clock or SystemClock()
    return SegmentStore(
        disk or OsDisk(),
        str(root),
        clock=clock,
        metadata=MemoryMetadataStore(clock),
        executor=workers or InlineWorkers(),
        config=StorageConfig(**config),
        rng=random.Random(7),
    )


async def read_blocks(segment: Segment, offset: int = 0, max_bytes: int = 1 << 20) -> list[Block]:
    """Everything from an offset to the durable end."""
    blocks = []
    while (block := segment.read(offset, max_bytes)) is not None:
        if not isinstance(block, Block):
            block = await block
        blocks.append(block)
        offset = block.next_offset
    return blocks


def forget_tails(store: SegmentStore) -> None:
    """Let the next reads come from files."""
    limit = store.statistics().cache_limit
    store.resize_cache(0)
    store.resize_cache(limit)


def log_files(store: SegmentStore, of: SegmentName) -> list[Path]:
    """The files of a segment, oldest first."""
    return sorted(Path(store.directory(of)).glob("*.log"), key=lambda p: int(p.stem))


QUARTERS: Sequence[int] = (0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF)
