"""A set that is iterated in insertion order, so that a simulation under one seed runs the same way every time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Bag(Generic[T]):
    """Distinct items, compared as a set does, in a repeatable order, which a plain set of objects lacks."""

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: dict[T, None] = dict.fromkeys(items)

    def add(self, item: T) -> None:
        """Add at the end; a member keeps its place."""
        self._items[item] = None

    def update(self, items: Iterable[T]) -> None:
        self._items.update(dict.fromkeys(items))

    def discard(self, item: T) -> None:
        """Remove if present."""
        self._items.pop(item, None)

    def clear(self) -> None:
        self._items.clear()

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
