"""Opens the metadata store of a data directory: not where it would hide that the right one is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine.broker.upkeep.unexplained import check_explained
from engine.clock import Clock
from engine.metadata.lockfile import LockFile, not_writable
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.store import MetadataStore
from engine.storage.disk.metadata_commits import NativeCommits
from engine.storage.store import SegmentStore

METADATA_FILE = "metadata.db"


async def open_metadata(
    data: Path,
    segments_with: Callable[[MetadataStore], SegmentStore],
    clock: Clock,
    lock: LockFile | None = None,
) -> SqliteMetadataStore:
    """`segments_with`: the segments of the directory, with a metadata store. `lock`: where the caller has taken it.

    Raises DataDirectoryError, and what SqliteMetadataStore.open() and check_explained() raise.
    """
    path = data / METADATA_FILE
    try:
        found = path.exists()
    except PermissionError as e:
        raise not_writable(data, e) from e
    if not found:  # checked before a new one is made, which would block restoring the correct one
        nothing = MemoryMetadataStore(clock)
        await check_explained(segments_with(nothing), nothing, str(data))
    return await SqliteMetadataStore.open(path, clock=clock, native=NativeCommits, lock=lock)
