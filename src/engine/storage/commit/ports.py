"""What group commit needs of the segment whose appends it commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from engine._native.serve.groups import Appended, Group
from engine.aio.workers import Workers
from engine.errors import EngineError
from engine.storage.disk.disk import Disk
from engine.storage.file.logfile import LogFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

Ended = Callable[[BaseException | None], None]


class SegmentLog(Protocol):
    """What group commit needs of the segment whose appends it commits."""

    def plan_file(self, first_offset: int) -> LogFile:
        """A file to be created, with a new salt and the producers' state below the offset."""

    def snapshot(self, below: int) -> bytes:
        """The producers' state below an offset."""

    def file_created(self, file: LogFile) -> None:
        """The file is durable, and the active one from now on."""

    def group_durable(self, group: Group) -> None:
        """The group may be read."""

    def rolled_back(self, offset: int) -> None:
        """Nothing at or above the offset is in the log any more."""

    def gap_made(self, end: int, restart: int) -> None:
        """The log goes on at `restart` in a new file; messages between `end` and that were readable, and are lost."""

    def file_failed(self, error: EngineError) -> None:
        """What was durable is damaged; the segment cannot go on."""


class Backing(Protocol):
    """What makes one segment survive the loss of its machine (durability "object"), while one owner has it.

    What is appended is what the local files have: whole entries; the header of a file, the first time; the footer with
    which the segment is sealed. The last two have no entry.
    `flush_s`: how long a group may wait for others to be stored with it; None: as the broker does.
    """

    flush_s: float | None

    @property
    def gather_s(self) -> float:
        """How long a small group waits for others while groups before it are on their way."""

    def append(self, first_offset: int, next_offset: int, buffers: Sequence[Buffer], done: Ended) -> None:
        """Append one group; the buffers do not change any more. LogEndedError: it is not known whether it is there.

        Groups keep the order of the calls. `done` is called in a later turn of the loop.
        """

    async def restore(self, disk: Disk, workers: Workers, directory: str) -> None:
        """Replace what the directory has by the files of former owners.

        Raises NotOwnerError: there is another owner by now; CorruptionError, StorageError, OSError.
        """

    async def serve(self) -> None:
        """Make this owner's log a part of the segment: before the first append. Raises NotOwnerError, StorageError."""

    async def keep_inherited(self, snapshot: bytes) -> None:
        """Keep the producer snapshot of the parents. Raises NotOwnerError, StorageError."""


class Waiter(Protocol):
    """What gets the outcome of an append: a future, or what stands for one."""

    def done(self) -> bool:
        """Whether an outcome is of no use any more."""

    def set_result(self, places: list[Appended], /) -> None:
        """The entries are durable."""

    def set_exception(self, error: EngineError, /) -> None:
        """They are not, or it is not known."""
