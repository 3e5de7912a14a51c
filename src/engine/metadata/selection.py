"""`Selection`: follows the records of an index that have chosen index keys, each by a watch of its own.

So what this process receives grows with what it has chosen, and not with the index. A watch begins with a snapshot of
its records, whose end shown() awaits; `known` tells, as for follow(), which keys the caller holds facts of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from engine.aio.tasks import Supervisor
from engine.metadata.following import follow
from engine.metadata.store import Event, EventKind, MetadataStore

T = TypeVar("T", bound=Hashable)


@dataclass(slots=True, eq=False)
class _Chosen:
    """`times`: how often it was added. `shown`: set when the first snapshot has ended."""

    times: int = 0
    shown: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Selection(Generic[T]):
    """Loop thread only. `range_of(one)`: the index keys [start, end) of what is chosen. Watches end with `tasks`."""

    def __init__(
        self,
        metadata: MetadataStore,
        index: str,
        range_of: Callable[[T], tuple[str, str]],
        heard: Callable[[Event], None],
        known: Callable[[T], Collection[str]],
        tasks: Supervisor,
        began: Callable[[T], object] = lambda one: None,
    ) -> None:
        """`began`: told once of each that was added, when shown() has come."""
        self._metadata = metadata
        self._index = index
        self._range_of = range_of
        self._heard = heard
        self._known = known
        self._tasks = tasks
        self._began = began
        self._chosen: dict[T, _Chosen] = {}

    def __len__(self) -> int:
        return len(self._chosen)

    def add(self, one: T) -> None:
        """Follow it until drop() was called as often."""
        chosen = self._chosen.setdefault(one, _Chosen())
        chosen.times += 1
        if chosen.times == 1:
            watch = partial(self._metadata.watch_index, self._index, *self._range_of(one))
            what = f"{one} in {self._index}"
            heard = partial(self._hear, one, chosen)
            following = follow(self._metadata, watch, heard, partial(self._known, one), what=what)
            chosen.task = self._tasks.spawn(following, what)

    async def shown(self, one: T) -> None:
        """Wait until all records that it had when it was added were heard."""
        await self._chosen[one].shown.wait()

    def drop(self, one: T) -> None:
        """Undo one add()."""
        chosen = self._chosen[one]
        chosen.times -= 1
        if not chosen.times:
            del self._chosen[one]
            if chosen.task is not None:
                chosen.task.cancel()

    def _hear(self, one: T, chosen: _Chosen, event: Event) -> None:
        if self._chosen.get(one) is not chosen:
            return  # it was dropped, and its watch has not ended yet
        self._heard(event)
        if event.kind is EventKind.SNAPSHOT_END and not chosen.shown.is_set():
            chosen.shown.set()
            self._began(one)
