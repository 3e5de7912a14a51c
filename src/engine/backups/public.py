"""`backup`, `restore` and what else the package exports: the public forms."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.backups import generations, making, restoring, verifying
from engine.backups.destination import Destination, open_destination
from engine.backups.results import BackedUp, BackupGeneration, Progress, Restored, VerifiedBackup, generation_of
from engine.backups.source import Call
from engine.errors import InvalidArgumentError
from engine.storage.disk.disk import OsDisk

if TYPE_CHECKING:
    from engine.client import AsyncClient
    from engine.model.admin_requests import Operation
    from engine.sync import Client

Where = str | PathLike[str]


def backup(
    source: Client,
    destination: Where,
    *,
    keep: int | None = None,
    verify: bool = False,
    on_progress: Progress | None = None,
) -> BackedUp:
    """Back up all that an engine or a broker has, while it runs: a new generation at `destination`.

    It has all that was acknowledged when this was called, and shows one moment behind that, over all topics,
    subscriptions and transactions. Only what earlier generations at the destination lack is written. One that was cut
    short, by whatever, leaves earlier ones as they were; call it again.

    `source`: an engine, or a client of a broker, whose role is a superuser. `destination`: a directory, or
    s3://bucket/prefix, gs:// or az:// with the credentials of the environment. `keep`: delete all generations but the
    newest so many, behind the backup. `verify`: read it back and check it. `on_progress`: called with a step ("copy",
    "verify"), what is done, and of how much.

    Raises UnsupportedError (several servers share the directory, or it is in memory), LimitExceededError (another
    backup works there), AuthorizationError, InvalidArgumentError, CorruptionError, DiskFullError, StorageError, and
    what the admin API raises. Files of the source that fail their checks are backed up as they are, and named in the
    result.
    """

    def call(operation: Operation[Any], arguments: Mapping[str, Any]) -> Any:
        return source._portal.run(source._client.admin._call(operation, arguments))

    return _back_up(call, destination, keep, verify, on_progress)


async def backup_async(
    source: AsyncClient,
    destination: Where,
    *,
    keep: int | None = None,
    verify: bool = False,
    on_progress: Progress | None = None,
) -> BackedUp:
    """backup() for engines and clients of an event loop. `on_progress` is called on another thread."""
    loop = asyncio.get_running_loop()

    def call(operation: Operation[Any], arguments: Mapping[str, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(source.admin._call(operation, arguments), loop).result()

    return await asyncio.to_thread(_back_up, call, destination, keep, verify, on_progress)


def restore(
    destination: Where,
    data: Where,
    *,
    generation: str | None = None,
    on_progress: Progress | None = None,
) -> Restored:
    """Make a data directory of a backup; `engine.open(data)` opens it. Everything is checked while it is written.

    `data`: an empty directory, one that does not exist, or one whose restoration was cut short: then it goes on.
    `generation`: None for the newest. Raises NotFoundError (no such backup), InvalidArgumentError (the directory is
    used), CorruptionError (with the place of the damage), DiskFullError, StorageError.
    """
    rng = random.SystemRandom()
    with _opened(destination) as found:
        return restoring.restore(
            found,
            Path(data).absolute(),
            generation=generation,
            disk=OsDisk(),
            rng=rng,
            progress=on_progress or _silent,
        )


def list_backups(destination: Where) -> list[BackupGeneration]:
    """The generations at a destination, the oldest first. NotFoundError: it holds no backups. CorruptionError."""
    with _opened(destination) as found:
        return [generation_of(generations.load(found, name)) for name in generations.existing(found)]


def verify_backup(
    destination: Where, *, generation: str | None = None, on_progress: Progress | None = None
) -> VerifiedBackup:
    """Read all backups at a destination, or one, and check every byte. CorruptionError names each damage's place."""
    with _opened(destination) as found:
        return verifying.verify(found, generation, on_progress or _silent)


def prune_backups(destination: Where, keep: int) -> list[str]:
    """Delete all generations but the newest `keep`, and what only these needed; their names. LimitExceededError."""
    with _opened(destination) as found:
        lock = found.lock()
        try:
            return generations.prune(found, keep)
        finally:
            lock.release()


def _back_up(call: Call, destination: Where, keep: int | None, verify: bool, on_progress: Progress | None) -> BackedUp:
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise InvalidArgumentError(f"keep must be a whole number, 1 or more, got {keep!r:.80}")
    progress = on_progress or _silent
    with _opened(destination, create=True) as found:
        return making.make(call, found, keep=keep, verify=verify, rng=random.SystemRandom(), progress=progress)


@contextmanager
def _opened(destination: Where, *, create: bool = False) -> Iterator[Destination]:
    if not isinstance(destination, str | PathLike) or not os.fspath(destination):
        raise InvalidArgumentError(f"a destination must be a directory or a URL, got {destination!r:.80}")
    where = os.fspath(destination)
    with open_destination(where, OsDisk(), os.environ, random.SystemRandom(), create=create) as found:
        yield found


def _silent(step: str, done: int, total: int) -> None:
    """No progress is asked for."""
