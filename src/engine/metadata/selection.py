"""`Selection`: follows the records of an index that have chosen index keys, each by a watch of its own.

So what this process receives grows with what it has chosen, and not with the index. A watch begins with a snapshot of
its records; `known` tells, as for follow(), which keys the caller holds facts of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable
from functools import partial
from typing import Generic, TypeVar

from engine.aio.tasks import Supervisor
from engine.metadata.following import follow
from engine.metadata.store import Event, MetadataStore

T = TypeVar("T", bound=Hashable)


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
    ) -> None:
        self._metadata = metadata
        self._index = index
        self._range_of = range_of
        self._heard = heard
        self._known = known
        self._tasks = tasks
        self._chosen: dict[T, tuple[int, asyncio.Task[None] | None]] = {}  # how often, and what follows it

    def __len__(self) -> int:
        return len(self._chosen)

    def add(self, one: T) -> None:
        """Follow it until drop() was called as often."""
        times, task = self._chosen.get(one, (0, None))
        if not times:
            watch = partial(self._metadata.watch_index, self._index, *self._range_of(one))
            what = f"{one} in {self._index}"
            following = follow(self._metadata, watch, self._heard, partial(self._known, one), what=what)
            task = self._tasks.spawn(following, what)
        self._chosen[one] = times + 1, task

    def drop(self, one: T) -> None:
        """Undo one add()."""
        times, task = self._chosen[one]
        if times > 1:
            self._chosen[one] = times - 1, task
            return
        del self._chosen[one]
        if task is not None:
            task.cancel()
