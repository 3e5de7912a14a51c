"""`Wal`: what storage needs of a write-ahead log that other machines can take over, and `ObjectWal`, one of objects."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from engine.errors import EngineError, InvalidArgumentError, NotFoundError
from engine.metadata.store import MetadataStore
from engine.storage.objects import fence, reader, records
from engine.storage.objects.footers import Footers
from engine.storage.objects.format import LogName, StoredGroup, WalGroup
from engine.storage.objects.ports import ObjectStore
from engine.storage.objects.trim import GRACE_S, Trimmer
from engine.storage.objects.writer import LogWriter, WalConfig

if TYPE_CHECKING:
    import random

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


class Wal(Protocol):
    """The log of one broker session, and those of others."""

    async def append(self, group: WalGroup) -> int:
        """The position n of a group, once it and all before it survive the loss of this machine.

        Raises FencedError, AlreadyClosedError: nothing was done; UnknownOutcomeError.
        """

    async def fence(self, session: str) -> int:
        """Let a session acknowledge nothing more; the first n that it did not. Idempotent."""

    def read(self, session: str, start: int, end: int, segment: str) -> AsyncIterator[tuple[StoredGroup, memoryview]]:
        """The groups of a segment at [start, end) of a session's log, in order. Raises HoleError, CorruptionError."""

    async def trim(self, session: str, upto: int) -> None:
        """Nothing below `upto` is needed any more. Only of the own session. Raises FencedError."""


class ObjectWal:
    """A `Wal` of objects. Loop thread only. `writer` is the own session's log."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataStore,
        log: LogName,
        writer: LogWriter,
        trimmer: Trimmer,
        rng: random.Random,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._log = log
        self._rng = rng
        self._trimmer = trimmer
        self._footers = Footers(store)
        self.writer = writer
        self._beginning: list[int] = []  # where references begin that are being written

    @staticmethod
    async def open(
        store: ObjectStore,
        metadata: MetadataStore,
        cluster: str,
        session: str,
        broker: str,
        *,
        rng: random.Random,
        config: WalConfig | None = None,
        grace_s: float = GRACE_S,
    ) -> ObjectWal:
        """Begin a session. `session`: a name that was never used. Raises AlreadyExistsError, InvalidArgumentError."""
        for what, name in (("cluster", cluster), ("session", session)):
            if not _NAME.fullmatch(name):
                raise InvalidArgumentError(f"{what} must be 1 to 64 of a-z, 0-9 and -, got {name!r}")
        log = LogName(cluster, session)
        await records.create(metadata, session, records.WalRecord(broker, rng.randbytes(8).hex()))
        writer = LogWriter(store, log, config or WalConfig(), rng)
        return ObjectWal(store, metadata, log, writer, Trimmer(store, metadata, log, grace_s), rng)

    @property
    def session(self) -> str:
        return self._log.session

    @property
    def next_n(self) -> int:
        """R2: where a reference to this session begins: the lowest n that the next append may be in."""
        return self.writer.next_n

    @property
    def unneeded(self) -> int:
        """R15: no reference that is written from now on needs an object below this one."""
        return min([self.writer.acknowledged, *self._beginning])

    @contextmanager
    def beginning(self) -> Iterator[int]:
        """R2, R15: the object where a reference begins, which is needed from now on; leave it when it is written."""
        start = self.next_n
        self._beginning.append(start)
        try:
            yield start
        finally:
            self._beginning.remove(start)

    @property
    def ended(self) -> asyncio.Future[EngineError]:
        """Done when nothing more is acknowledged: the broker opens another session then (R8)."""
        return self.writer.ended

    async def append(
        self, group: WalGroup, check: Callable[[], None] | None = None, flush_s: float | None = None
    ) -> int:
        """As Wal says. `check`, `flush_s`: see LogWriter.append()."""
        return await self.writer.append(group, check, flush_s)

    def new_name(self, folder: str) -> str:
        """A name for an object outside of the log, which no other has: `{folder}/{cluster}/{session}/{number}`."""
        return f"{folder}/{self._log.cluster}/{self.session}/{self._rng.randbytes(8).hex()}"

    async def drain(self) -> int:
        """R9, R10: wait until all that was appended is acknowledged; the first n that was not. UnknownOutcomeError."""
        return await self.writer.drain()

    async def fence(self, session: str) -> int:
        return await fence.fence(self._store, self._metadata, self._log._replace(session=session), self._rng)

    def read(self, session: str, start: int, end: int, segment: str) -> AsyncIterator[tuple[StoredGroup, memoryview]]:
        log = self._log._replace(session=session)
        return reader.groups(self._store, self._footers, log, start, end, segment)

    async def trim(self, session: str, upto: int) -> None:
        if session != self.session:  # R15
            raise InvalidArgumentError(f"session must be the own one, {self.session!r}, got {session!r}")
        await self._trimmer.trim(upto, self.writer.acknowledged)

    async def settle(self, upto: int) -> None:
        """R18: shared objects of lower numbers are named in no further record. FencedError, UnknownOutcomeError."""
        await records.set_settled(self._metadata, self.session, upto)

    async def delete_trimmed(self) -> int:
        """Delete what was trimmed a grace ago; how many objects."""
        return await self._trimmer.delete_due()

    async def close(self) -> None:
        """R14: end the session in order: when all is acknowledged, its end is recorded. Idempotent."""
        if self.writer.over is None:
            end = await self.writer.drain()
            await self.writer.close()
            with suppress(NotFoundError):
                await records.set_fenced(self._metadata, self.session, end)
        await self.writer.close()
