"""`Selection`: follows the records of an index that have chosen index keys, each by a watch of its own.

So what this process receives grows with what it has chosen, and not with the index. A watch begins with a snapshot of
its records, whose end shown() awaits; `known` tells, as for follow(), which keys the caller holds facts of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import TypeVar

from engine.aio.tasks import Supervisor
from engine.metadata.following import Choice
from engine.metadata.store import Event, MetadataStore

T = TypeVar("T", bound=Hashable)


class Selection(Choice[T]):
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
        """`began`: as of Choice."""

        async def among(one: T) -> list[str]:
            return [record.key for _, record in await metadata.newest.list_index(index, *range_of(one))]

        super().__init__(
            metadata, lambda one: metadata.watch_index(index, *range_of(one)), heard, known, tasks,
            lambda one: f"{one} in {index}", began, among,
        )  # fmt: skip
