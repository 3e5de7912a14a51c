"""Backups of a server of several processes: the parent makes them, and all children stand still at the moment.

    settle        each child waits until no segment is being opened, closed or deleted, and holds off such work
    stand still   each child writes what it has open, and leaves this turn of its event loop only when `moment` is
                  there. The parent waits until all have written, reads the records of the metadata, and writes `moment`
    go on         children that change a segment keep it first, until the parent has kept all of them

While all stand still, none of them acknowledges, delivers or writes metadata. So there is an instant at which all that
was noted held together, as it does of one process. A process that ends or begins before all is kept might have changed
files that it has not kept: then the attempt is given up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from engine.aio.workers import ThreadWorkers
from engine.broker.upkeep.backups import Backups, BackupStatistics, InterruptedMomentError
from engine.clock import Clock
from engine.errors import ConnectError, EngineError, StorageError
from engine.metadata.sqlite import SqliteMetadataStore
from engine.processes.channel import Channel
from engine.storage.disk.disk import OsDisk
from engine.storage.shared_moment import SharedMoment
from engine.storage.store import Freeze, SegmentStore

SETTLE_S_MAX = 3.0
STILL_S_MAX = 2.0  # below the leases of brokers, by far
_ANSWER_S_MAX = 5.0
_LOOK_S = 0.001
_MOMENT = "moment"  # the file: all go on
_KEEPING_THREADS = 4


class KeptInChild:
    """A child's part. Loop thread only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._store: SegmentStore | None = None
        self._number = 0
        self._wanted = ""  # the directory of the attempt under way
        self._settled: AsyncExitStack | None = None
        self._freeze: Freeze | None = None

    def serves(self, store: SegmentStore, index: int) -> None:
        """The child's broker has started."""
        self._store, self._number = store, number_of(index)

    async def settle(self, directory: str) -> None:
        """Hold off what opens, closes or deletes segments. Raises StorageError."""
        await self.go_on()
        if self._store is None:
            raise StorageError("the process is starting")
        self._wanted, stack = directory, AsyncExitStack()
        try:
            async with asyncio.timeout(SETTLE_S_MAX):
                await stack.enter_async_context(self._store.settled())
        except TimeoutError:
            raise StorageError(f"segments were being opened or closed for {SETTLE_S_MAX:g} s") from None
        if self._wanted != directory:  # it was given up meanwhile
            await stack.aclose()
            raise StorageError("the attempt was given up")
        self._settled = stack

    async def stand_still(self, directory: str) -> None:
        """Behind settle(). Write what is open; no other line of this process's loop runs before the moment is over."""
        if self._settled is None or self._store is None or self._wanted != directory:
            raise StorageError("the attempt was given up")
        shared = SharedMoment(self._store.disk, directory, self._number)
        try:
            self._freeze = self._store.freeze(directory, shared)
        except OSError as e:
            raise StorageError(f"{directory}: {e.strerror or e}") from e
        self._wait(Path(directory, _MOMENT))
        settled, self._settled = self._settled, None
        await settled.aclose()

    def _wait(self, over: Path) -> None:
        deadline = self._clock.monotonic() + STILL_S_MAX
        while not over.exists():
            if self._clock.monotonic() > deadline:
                raise StorageError(f"the others did not stand still within {STILL_S_MAX:g} s")
            time.sleep(_LOOK_S)

    async def go_on(self) -> None:
        """Keep nothing any more. Idempotent."""
        self._wanted = ""
        freeze, self._freeze = self._freeze, None
        settled, self._settled = self._settled, None
        if freeze is not None:
            freeze.end()
        if settled is not None:
            await settled.aclose()


class Standing:
    """The parent's view of its children: `Together` of their backups. `serving`: all channels, or none."""

    def __init__(self, serving: Callable[[], Mapping[int, Channel]], clock: Clock) -> None:
        self._serving = serving
        self._clock = clock
        self._channels: Mapping[int, Channel] = {}

    @asynccontextmanager
    async def still(self, directory: str) -> AsyncIterator[None]:
        """See Together."""
        channels = self._channels = self._serving()
        if not channels:
            raise InterruptedMomentError("a process is being started")
        calls: list[asyncio.Task[Any]] = []
        try:
            async with asyncio.timeout(_ANSWER_S_MAX):
                await asyncio.gather(*(each.call("settle", directory=directory) for each in channels.values()))
                loop = asyncio.get_running_loop()
                calls = [loop.create_task(each.call("stand_still", directory=directory)) for each in channels.values()]
                await self._all_still(directory, calls)
                self.check()
                yield
                let_go(directory)
                await asyncio.gather(*calls)  # each stood still until now
        except (EngineError, TimeoutError) as e:
            raise InterruptedMomentError(str(e) or "a process did not answer in time") from e
        finally:
            for call in calls:
                call.cancel()

    async def _all_still(self, directory: str, calls: list[asyncio.Task[Any]]) -> None:
        waited = [Path(directory, f"{number_of(index)}.held") for index in self._channels]
        while not all(path.exists() for path in waited):
            for call in calls:
                if call.done():
                    call.result()
            await asyncio.sleep(_LOOK_S)

    def check(self) -> None:
        """See Together."""
        if self._serving() != self._channels or any(each.ended.done() for each in self._channels.values()):
            raise InterruptedMomentError("a process has ended")

    async def go_on(self) -> None:
        """See Together."""
        await asyncio.gather(*map(_go_on, self._channels.values()))


def let_go(directory: str) -> None:
    """All that stand still go on."""
    Path(directory, _MOMENT).touch()


async def _go_on(channel: Channel) -> None:
    with suppress(EngineError, TimeoutError):
        async with asyncio.timeout(_ANSWER_S_MAX):
            await channel.call("go_on")


class BackupCalls:
    """What children ask of the parent's backups."""

    def __init__(self, backups: Backups) -> None:
        self._calls = {"begin": backups.begin, "read": backups.read, "renew": backups.renew, "end": backups.end}
        self.statistics: Callable[[], BackupStatistics] = backups.statistics

    async def call(self, operation: str, given: Mapping[str, Any]) -> Any:
        """One of the operations, by its name."""
        if operation not in self._calls:
            raise ConnectError(f"a process asked for the operation {operation!r}, which there is not")
        return await self._calls[operation](**given)  # type: ignore[operator]


def backups_of(metadata: SqliteMetadataStore, data: Path, clock: Clock, together: Standing) -> Backups:
    """Of a server of several processes, in the parent, which has no segment open itself."""
    segments = SegmentStore(
        OsDisk(), str(data), clock=clock, metadata=metadata, executor=ThreadWorkers(_KEEPING_THREADS, "engine-keep")
    )
    return Backups(segments, metadata, clock, shared=False, together=together)


def number_of(index: int) -> int:
    """A child's among the processes; the parent's is 0."""
    return index + 1
