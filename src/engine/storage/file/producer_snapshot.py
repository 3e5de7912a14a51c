"""The producer snapshot of a segment: what its parents knew of producers, in a file beside the logs (semantics 24).

It is written before the first append, when a split, merge or rebucket creates the segment. See dedup/dedup.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine._native.format.crc32c import crc32c
from engine.aio.workers import run
from engine.errors import CorruptionError
from engine.storage.dedup.dedup import Dedup
from engine.storage.disk.config import storage_error
from engine.storage.disk.disk import Disk
from engine.storage.file.context import Context
from engine.storage.file.logfile import UNFINISHED, SyncFailed, sync
from engine.storage.file.owners import Lease, is_of
from engine.storage.file.removal import term_of

INHERITED = "inherited"  # the file's name, on disk: do not change; under a lease "-" and its owner's term follow


async def save_producer_snapshot(context: Context, directory: str, snapshot: bytes, lease: Lease | None) -> None:
    """write_producer_snapshot() on a worker. Raises StorageError; NotOwnerError: a later owner may not have read it."""
    if lease is not None:
        lease.check()
    path = f"{directory}/{INHERITED}" if lease is None else f"{directory}/{INHERITED}-{lease.term}"
    try:
        await run(context.workers, lambda: write_producer_snapshot(context.disk, path, snapshot))
    except SyncFailed as e:
        raise storage_error(e.error, directory) from e
    except OSError as e:
        raise storage_error(e, directory) from e
    if lease is not None:
        lease.check()


def load_producer_snapshot(disk: Disk, directory: str, names: Iterable[str], born: int, dedup: Dedup) -> None:
    """Load the snapshot, if there is one; of several, which former owners wrote, that of the largest term.

    `names`: of the files there; `born`: as in Lease. Raises CorruptionError, OSError.
    """
    written = [name for name in names if is_producer_snapshot(name) and is_of(term_of(name), born)]
    if not written:
        return
    path = f"{directory}/{max(written, key=term_of)}"
    file = disk.open(path)
    try:
        image = bytearray(file.size())
        file.read_into(image, 0)
    finally:
        file.close()
    if len(image) < 4 or crc32c(image[4:]) != int.from_bytes(image[:4], "little"):
        raise CorruptionError(f"{path}, position 0: the file fails its checksum")
    dedup.load(bytes(image[4:]), from_parent=True)


def write_producer_snapshot(disk: Disk, path: str, snapshot: bytes) -> None:
    """Write the file; durable when it returns. Blocking. Raises OSError, SyncFailed."""
    file = disk.create(path + UNFINISHED)
    try:
        file.write([crc32c(snapshot).to_bytes(4, "little") + snapshot], 0)
        sync(file)
    finally:
        file.close()
    disk.rename(path + UNFINISHED, path)
    disk.sync_directory(path.rpartition("/")[0])


def is_producer_snapshot(name: str) -> bool:
    """Whether a file beside the logs has this name."""
    return name == INHERITED or (name.startswith(f"{INHERITED}-") and name[len(INHERITED) + 1 :].isdecimal())
