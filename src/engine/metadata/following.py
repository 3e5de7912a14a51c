"""Follows the store until it is closed: a watch that fails is restarted, and no change is missed.

follow() does so with one watch; `Choice` with one for each thing that was chosen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from engine.aio.tasks import Supervisor
from engine.errors import AlreadyClosedError, EngineError
from engine.metadata.store import Event, EventKind, MetadataStore, OutcomeUnknownError, Watch

log = logging.getLogger(__name__)

RESTART_S = 0.5

T = TypeVar("T", bound=Hashable)


async def follow(
    metadata: MetadataStore,
    watch: Callable[[], Watch],
    heard: Callable[[Event], None],
    known: Callable[[], Collection[str]],
    *,
    what: str,
    among: Callable[[], Awaitable[Iterable[str]]] | None = None,
) -> None:
    """Call `heard` with every event of `watch()`, a watch that starts with a snapshot, until the store is closed.

    A failed watch misses the changes up to the start of the next one. Their effect shows in the next snapshot: it
    repeats existing records, and each key of `known()` (the keys that the caller holds facts of) that is there no more
    is reported as a DELETE before the SNAPSHOT_END. `among`: of a watch of an index, reads the keys that are in it: a
    record may have left the index, and exist. None: it is there as long as it exists.
    """
    while True:
        try:
            await _follow_one(metadata, watch(), heard, known, among)
            return  # the store was closed
        except AlreadyClosedError:
            return
        except (EngineError, OutcomeUnknownError) as e:
            log.warning("the watch of %s failed, restarting it: %s", what, e)
            await asyncio.sleep(RESTART_S)


async def _follow_one(
    metadata: MetadataStore,
    watch: Watch,
    heard: Callable[[Event], None],
    known: Callable[[], Collection[str]],
    among: Callable[[], Awaitable[Iterable[str]]] | None,
) -> None:
    shown: set[str] | None = set()
    try:
        async for event in watch:
            if event.kind is EventKind.SNAPSHOT_END:
                missing = [key for key in known() if key not in (shown or ())]
                if missing and among is not None:
                    await _report_others(metadata, missing, among, heard)
                else:
                    await _report_gone(metadata, missing, heard)
                shown = None
            elif shown is not None:
                shown.add(event.key)
            heard(event)
    finally:
        watch.close()


async def _report_gone(metadata: MetadataStore, missing: list[str], heard: Callable[[Event], None]) -> None:
    """Report those as deleted that do not exist. One that was created after the snapshot is left to the watch.

    The version is above any that this process has seen of the key, and below that of a later record of the same key.
    """
    for key in missing:
        version = metadata.version
        if await metadata.newest.get(key) is None:
            heard(Event(EventKind.DELETE, key, version))


async def _report_others(
    metadata: MetadataStore,
    missing: list[str],
    among: Callable[[], Awaitable[Iterable[str]]],
    heard: Callable[[Event], None],
) -> None:
    """Likewise those that are not among the keys of an index."""
    version, there = metadata.version, set(await among())
    for key in missing:
        if key not in there:
            heard(Event(EventKind.DELETE, key, version))


@dataclass(slots=True, eq=False)
class _Chosen:
    """`times`: how often it was added. `shown`: set when the first snapshot has ended, or it is not chosen any more."""

    times: int = 0
    shown: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Choice(Generic[T]):
    """Follows what is chosen, each by a watch of its own. Loop thread only. Watches end with `tasks`.

    So what this process receives grows with what it has chosen, and not with what there is. A watch begins with a
    snapshot of its records, whose end shown() awaits; `known` tells, as for follow(), which keys the caller holds facts
    of. `what`: of what is chosen, for the log.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        watch: Callable[[T], Watch],
        heard: Callable[[Event], None],
        known: Callable[[T], Collection[str]],
        tasks: Supervisor,
        what: Callable[[T], str] = str,
        began: Callable[[T], object] = lambda one: None,
        among: Callable[[T], Awaitable[Iterable[str]]] | None = None,
    ) -> None:
        """`began`: told once of each that was added, when shown() has come. `among`: as for follow()."""
        self._metadata = metadata
        self._watch = watch
        self._heard = heard
        self._known = known
        self._tasks = tasks
        self._what = what
        self._began = began
        self._among = among
        self._chosen: dict[T, _Chosen] = {}

    def __len__(self) -> int:
        return len(self._chosen)

    def __contains__(self, one: T) -> bool:
        return one in self._chosen

    def add(self, one: T) -> None:
        """Follow it until drop() was called as often."""
        chosen = self._chosen.setdefault(one, _Chosen())
        chosen.times += 1
        if chosen.times == 1:
            what, heard = self._what(one), partial(self._hear, one, chosen)
            among = None if self._among is None else partial(self._among, one)
            following = follow(
                self._metadata, partial(self._watch, one), heard, partial(self._known, one), what=what, among=among
            )
            chosen.task = self._tasks.spawn(following, what)

    async def shown(self, one: T) -> None:
        """Wait until all records that it had when it was added were heard."""
        await self._chosen[one].shown.wait()

    async def all_shown(self) -> None:
        """Likewise of all that is chosen."""
        for chosen in list(self._chosen.values()):
            await chosen.shown.wait()

    def drop(self, one: T) -> None:
        """Undo one add()."""
        chosen = self._chosen[one]
        chosen.times -= 1
        if not chosen.times:
            del self._chosen[one]
            if chosen.task is not None:
                chosen.task.cancel()
            chosen.shown.set()

    def _hear(self, one: T, chosen: _Chosen, event: Event) -> None:
        if not chosen.times:
            return  # it was dropped, and its watch has not ended yet
        self._heard(event)
        if event.kind is EventKind.SNAPSHOT_END and not chosen.shown.is_set():
            chosen.shown.set()
            self._began(one)
