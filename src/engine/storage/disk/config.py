"""The settings of storage, and the typed errors for what the disk reports."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from engine.errors import DiskFullError, InvalidConfigurationError, StorageError
from engine.limits import ENTRY_SIZE_MAX, LOG_COMMIT_BYTES_MAX, LOG_FILE_SIZE_MAX, MIB

FSYNC = "fsync"
INTERVAL = "interval"
OS = "os"
OBJECT = "object"  # a log of objects (storage/objects), and local files that are not synced
MODES = (FSYNC, INTERVAL, OS, OBJECT)  # on disk by their index: do not change the order

DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """Sizes in bytes, times in milliseconds."""

    file_size_max: int = LOG_FILE_SIZE_MAX  # a file rolls before it would grow beyond this
    commit_bytes_max: int = LOG_COMMIT_BYTES_MAX  # written ahead of the sync that is running, at most
    interval_ms: int = 100  # durability "interval": a sync this long after the first unsynced append
    cursor_save_ms: int = 0  # acknowledgements that nothing waits for are saved this long after the first of them
    cache_bytes: int = 64 * MIB  # the newest blocks of all segments together, kept in memory for tailing readers
    log_cache_bytes: int = 0  # of log files in the system's page cache, all segments together; 0: as the system likes
    open_files_max: int = 256  # descriptors kept open while unused
    retention_ms: int | None = 7 * DAY_MS  # None: unlimited
    retention_bytes: int | None = None  # of one segment. None: unlimited

    def __post_init__(self) -> None:
        if self.file_size_max < 4096:
            raise InvalidConfigurationError(f"file_size_max must be at least 4096, got {self.file_size_max}")
        if self.commit_bytes_max < ENTRY_SIZE_MAX:
            raise InvalidConfigurationError(
                f"commit_bytes_max must be at least {ENTRY_SIZE_MAX}, one entry, got {self.commit_bytes_max}"
            )
        for key in ("interval_ms", "open_files_max"):
            if getattr(self, key) < 1:
                raise InvalidConfigurationError(f"{key} must be at least 1, got {getattr(self, key)}")
        for key in ("cursor_save_ms", "cache_bytes", "log_cache_bytes", "retention_ms", "retention_bytes"):
            if (getattr(self, key) or 0) < 0:
                raise InvalidConfigurationError(f"{key} must not be negative, got {getattr(self, key)}")


def check_mode(durability: str) -> str:
    """Return the mode. Raises InvalidConfigurationError."""
    if durability not in MODES:
        raise InvalidConfigurationError(f"durability must be one of {', '.join(MODES)}, got {durability!r}")
    return durability


def storage_error(error: OSError, what: str) -> StorageError:
    """The typed error for what the disk refused. `what`: the file or directory."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{what}: no space left on the device; free some or move the data directory")
    return StorageError(f"{what}: {error.strerror or error}")
