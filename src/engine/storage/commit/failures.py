"""What a failed job means: how much it undoes, and the typed error for it."""

from __future__ import annotations

from dataclasses import dataclass

from engine._native.serve.groups import Group
from engine.errors import CorruptionError, EngineError, NotOwnerError, StorageError
from engine.storage.disk.config import storage_error
from engine.storage.file.logfile import SyncFailed


class LogEndedError(Exception):
    """The log outside of this machine takes no more groups; whether it has the last one is not known."""


@dataclass(slots=True)
class Failure:
    """A failed job. `group`: the one that could not be written. None: a sync failed."""

    error: BaseException
    group: Group | None
    lost: list[Group]


def worse(one: Failure, other: Failure) -> Failure:
    """The failure that undoes more, with what both lose. A failed sync undoes most, then a write at a lower offset."""
    lost = sorted((*one.lost, *other.lost), key=lambda group: group.first_offset)
    first = min(one, other, key=lambda failure: failure.group.first_offset if failure.group is not None else -1)
    return Failure(first.error, first.group, lost)


def job_error(error: BaseException | None, path: str) -> EngineError:
    """The typed error for what a job raised."""
    if isinstance(error, CorruptionError | NotOwnerError):
        return error
    if isinstance(error, LogEndedError):
        return NotOwnerError(f"{path}: {error}; what was being appended may be in the log or not")
    if isinstance(error, SyncFailed):
        return storage_error(error.error, path)
    if isinstance(error, OSError):
        return storage_error(error, path)
    return StorageError(f"{path}: {error}")
