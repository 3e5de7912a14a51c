"""A set that is iterated in the order things came: a simulation under one seed then runs the same way every time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Bag(Generic[T]):
    """Distinct things, compared as a set does. What a plain set of objects lacks is a repeatable order."""

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: dict[T, None] = dict.fromkeys(items)

    def add(self, item: T) -> None:
        """Put in at the end; what is there stays where it is."""
        self._items[item] = None

    def update(self, items: Iterable[T]) -> None:
        """Put in several."""
        self._items.update(dict.fromkeys(items))

    def discard(self, item: T) -> None:
        """Take out, if it is there."""
        self._items.pop(item, None)

    def clear(self) -> None:
        """Take out everything."""
        self._items.clear()

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
