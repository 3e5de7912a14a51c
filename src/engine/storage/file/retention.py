"""Retention: which files of a segment may be deleted, when the newest one ends, and deleting them.

Files go whole, the oldest first. A file goes if every subscription has acknowledged all of it (`min_offset`), and if it
is past one of the limits:

    oldest ──► newest    │ 0.log │ 900.log │ 1800.log │ 2700.log (last) │
    by time                its newest entry is older than retention_ms
    by size                the files behind it still hold retention_bytes without it

The first file that has to stay keeps all behind it, so that the log never has a hole. Each file is removed durably
before the next one, for the same reason.

The last file never goes: it says where the log goes on, and at its head what duplicate detection knew. So a slow
segment, whose last file would hold its messages for years, gets a new one: an empty file at the next offset. Then the
old one goes as any other. A file ends when its oldest message is as old as the *span*, so that no message stays for
longer than retention_ms and the span; and when it alone holds retention_bytes.

    retention_ms             span, of messages in one file
    up to 32 minutes         1 minute
    more                     1/32 of it: 5 hours of 7 days
    nothing acknowledged     at least 1 hour: while a subscription does not read, files need not be small

An empty file never ends, and neither does any where there is no limit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from engine.aio.workers import run
from engine.clock import Ages
from engine.limits import RETENTION_PARTS, RETENTION_SPAN_S_MIN, RETENTION_UNREAD_SPAN_S_MIN
from engine.storage.disk.config import storage_error
from engine.storage.file.context import Context
from engine.storage.file.logfile import LogFile
from engine.storage.file.owners import Lease

if TYPE_CHECKING:
    from engine.storage.objects.references import RolledFile

_log = logging.getLogger("engine.storage")

OLDEST = -1  # the key, among ages by first offset, of the oldest message in the last file


class Limits(NamedTuple):
    """What is kept of acknowledged messages, and for how long others are due. None: no such limit."""

    retention_ms: int | None
    retention_bytes: int | None
    round_s: float = 0.0  # between two looks: a file ends, and goes, up to so much later than it might
    ttl_ms: int | None = None  # messages that are older count as acknowledged

    @property
    def none(self) -> bool:
        """Whether everything is kept, and due, for ever."""
        return self.retention_ms is None and self.retention_bytes is None and self.ttl_ms is None

    def span_s(self, *, unread: bool = False) -> float:
        """The age of its oldest message at which a file ends. `unread`: nothing of it is acknowledged."""
        part_s = 0.0 if self.retention_ms is None else self.retention_ms / 1000 / RETENTION_PARTS
        span_s = max(RETENTION_UNREAD_SPAN_S_MIN if unread else RETENTION_SPAN_S_MIN, part_s)
        return max(0.0, span_s - 2 * self.round_s)

    def due_s(self, newest_s: float | None, oldest_s: float | None) -> float | None:
        """Seconds until the oldest file may go, the last one has to end, or its oldest message is not due any more;
        below 0: since when. None: never.

        `newest_s`: the age of the newest message in the oldest file, if others follow it. `oldest_s`: of the oldest
        message in the last file, if it has any. What is limited by size may be due at any time.
        """
        if self.none or (newest_s is None and oldest_s is None):
            return None
        expires_s = math.inf if self.ttl_ms is None or oldest_s is None else self.ttl_ms / 1000 - oldest_s
        if self.retention_bytes is not None:
            return -math.inf
        if self.retention_ms is None:
            return None if expires_s == math.inf else expires_s
        gone_s = math.inf if newest_s is None else self.retention_ms / 1000 - newest_s
        return min(gone_s, math.inf if oldest_s is None else self.span_s() - oldest_s, expires_s)


class Span(Protocol):
    """What retention has to know of a file."""

    @property
    def first_offset(self) -> int:
        """Of its first entry."""

    @property
    def end_offset(self) -> int:
        """Behind its last entry."""

    @property
    def size_bytes(self) -> int:
        """Of the file."""

    @property
    def last_time_ms(self) -> int:
        """The publish time of its last entry."""


class NamedSpan(NamedTuple):
    """A file that is an object."""

    first_offset: int
    end_offset: int
    size_bytes: int
    last_time_ms: int

    @staticmethod
    def of(file: RolledFile) -> NamedSpan:
        return NamedSpan(file.first, file.end, file.size, file.last_ms)


def ages_of(files: Sequence[Span], last: LogFile, now_ms: int, ages: Ages[int] | None) -> dict[int, float]:
    """Seconds since the newest entry of each file, by first offset; under OLDEST, since the oldest of the last file.

    `last`: the last one; nothing of it if it is empty. `ages`: kept between calls.
    """
    began_ms = {file.first_offset: file.last_time_ms for file in files[:-1]}
    oldest_ms = None if last.index is None or last.is_empty else last.index.first_time_ms
    if oldest_ms is not None:
        began_ms |= {last.first_offset: last.last_time_ms, OLDEST: oldest_ms}
    if ages is not None:
        return ages.update(began_ms)
    return {key: (now_ms - time_ms) / 1000 for key, time_ms in began_ms.items()}


S = TypeVar("S", bound=Span)


def ends(last: LogFile, ages_s: Mapping[int, float], min_offset: int, limits: Limits) -> bool:
    """Whether the log has to go on in a new file, so that the last one can go in time."""
    age_s = ages_s.get(OLDEST)
    if age_s is None or limits.none:
        return False
    unread = min_offset <= last.first_offset
    surplus = limits.retention_bytes is not None and last.size_bytes >= limits.retention_bytes and not unread
    return (limits.retention_ms is not None or surplus) and age_s >= limits.span_s(unread=unread)


def files_to_delete(
    files: Sequence[S], *, min_offset: int, ages_s: Mapping[int, float], limits: Limits, last: bool = False
) -> list[S]:
    """The oldest files that hold only messages below `min_offset` and are past a limit.

    `ages_s`: see ages_of(). `last`: the last file may be one of them; a new one will follow it.
    """
    size = sum(f.size_bytes for f in files)
    doomed: list[S] = []
    for file in files if last else files[:-1]:
        size -= file.size_bytes
        old = limits.retention_ms is not None and ages_s[file.first_offset] * 1000 > limits.retention_ms
        surplus = limits.retention_bytes is not None and size >= limits.retention_bytes
        if file.end_offset > min_offset or not (old or surplus):
            break
        doomed.append(file)
    return doomed


async def delete_files(
    context: Context, files: list[LogFile], doomed: Sequence[LogFile], lease: Lease | None = None
) -> None:
    """Remove files from the list `files`, then from the disk, the oldest first. Raises StorageError, NotOwnerError.

    A file that could not be deleted stays in the list, and so do all behind it.
    """
    for file in doomed:
        if lease is not None:
            lease.check()
        files.remove(file)
        context.handles.retire(file)
        context.pages.forget(file)
        try:
            await run(context.workers, lambda f=file: f.delete(context.disk))  # type: ignore[misc]
        except OSError as e:
            files.insert(0, file)
            raise storage_error(e, file.path) from e


def unlink(context: Context, file: LogFile) -> None:
    """Remove a file that nothing needs any more from the disk, at some time."""
    context.handles.retire(file)
    context.pages.forget(file)
    context.workers.post(partial(context.handles.disk.unlink, file.path), _unlinked)


def _unlinked(_: object, error: BaseException | None) -> None:
    if error is not None:
        _log.warning("a file whose object is read could not be removed: %s", error)
