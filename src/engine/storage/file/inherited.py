"""What a segment knows of producers from its parents: a file beside the logs (SEMANTICS 24)."""

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

INHERITED = "inherited"  # the file's name; under a lease its owner's term follows


async def hand_over(context: Context, directory: str, snapshot: bytes, lease: Lease | None) -> None:
    """save_inherited() on a worker. Raises StorageError; NotOwnerError: another owner may not have seen it."""
    if lease is not None:
        lease.check()
    path = f"{directory}/{INHERITED}" if lease is None else f"{directory}/{INHERITED}-{lease.term}"
    try:
        await run(context.workers, lambda: save_inherited(context.disk, path, snapshot))
    except SyncFailed as e:
        raise storage_error(e.error, directory) from e
    except OSError as e:
        raise storage_error(e, directory) from e
    if lease is not None:
        lease.check()


def load_inherited(disk: Disk, directory: str, names: Iterable[str], born: int, dedup: Dedup) -> None:
    """Take over what parent segments knew, if it was handed over: to the last owner that was told of it.

    `names`: of the files there; `born`: as in Lease. Raises CorruptionError, OSError.
    """
    handed = [name for name in names if _is_inherited(name) and is_of(term_of(name), born)]
    if not handed:
        return
    path = f"{directory}/{max(handed, key=term_of)}"
    file = disk.open(path)
    try:
        image = bytearray(file.size())
        file.read_into(image, 0)
    finally:
        file.close()
    if len(image) < 4 or crc32c(image[4:]) != int.from_bytes(image[:4], "little"):
        raise CorruptionError(f"{path}, position 0: the file fails its checksum")
    dedup.load(bytes(image[4:]), from_parent=True)


def save_inherited(disk: Disk, path: str, snapshot: bytes) -> None:
    """Hand over what parent segments knew; durable when it returns. Raises OSError, SyncFailed."""
    file = disk.create(path + UNFINISHED)
    try:
        file.write([crc32c(snapshot).to_bytes(4, "little") + snapshot], 0)
        sync(file)
    finally:
        file.close()
    disk.rename(path + UNFINISHED, path)
    disk.sync_directory(path.rpartition("/")[0])


def _is_inherited(name: str) -> bool:
    return name == INHERITED or (name.startswith(f"{INHERITED}-") and name[len(INHERITED) + 1 :].isdecimal())
