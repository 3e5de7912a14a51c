"""`ListParts`: a cache of the parts of topic lists, each one frame of names, packed once for all clients.

A thousand clients that list a namespace are sent the same names in the same parts. A part stays valid until one of its
names is removed or a name between its first and its last is added.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING

from engine.aio.semaphore import PoolStatistics
from engine.limits import TOPIC_LIST_INITIAL_SIZE, TOPIC_LIST_PARTS_MAX
from engine.wire.packing import Packed, pack

if TYPE_CHECKING:
    from engine.control.topic.topic_lists import TopicList

HEADER_OVERHEAD = 256  # of a frame, beside its names
_NAME_OVERHEAD = 16  # of a name and its creation time, packed
_SIZE_MAX = TOPIC_LIST_INITIAL_SIZE - HEADER_OVERHEAD  # so that memory permits seldom grow
_PART_OVERHEAD = 512  # of a cached part
_CHANGES_MAX = 64  # to check a part; after more changes it is made anew


def size_of(names: list[str]) -> int:
    """The most bytes that names and creation times take on the wire."""
    return len("".join(names).encode()) + _NAME_OVERHEAD * len(names)


class ListPart:
    """The names of a list after the name `after`, as many as one frame holds; at least one if there is one.

    Packed when it is first sent. `last`: the name that the next part comes after; None: there is no next part.
    """

    __slots__ = ("_after", "_born", "_changes", "_names", "_packed", "last", "size")

    def __init__(self, topics: TopicList, after: str, most: int) -> None:
        """`most`: names."""
        start = bisect_right(topics.names, after)
        names = topics.names[start : start + most]
        while (size := size_of(names)) > _SIZE_MAX and len(names) > 1:
            del names[max(1, len(names) * _SIZE_MAX // size) :]
        self.size = size
        self.last = names[-1] if start + len(names) < len(topics.names) else None
        self._after = after
        self._changes = topics.changes
        self._names = names
        self._born = topics.births[start : start + len(names)]
        self._packed: tuple[Packed, Packed] | None = None

    @property
    def packed(self) -> tuple[Packed, Packed]:
        """The names, and the creation time of each."""
        if self._packed is None:
            self._packed = pack(self._names), pack(self._born)
            self._names, self._born = [], []
        return self._packed

    def is_valid(self, topics: TopicList) -> bool:
        """Whether a new part would be equal."""
        if self._changes == topics.changes:
            return True
        changes = topics.since(self._changes, _CHANGES_MAX)
        if changes is None or self._changes + len(changes) != topics.changes:
            return False
        if any(self._after < name and (self.last is None or name <= self.last) for name, _ in changes):
            return False
        self._changes = topics.changes
        return self.last is None or topics.names[-1] > self.last


class ListParts:
    """The most recently used parts, up to a fixed size. Loop thread only."""

    __slots__ = ("_parts", "_used", "limit")

    def __init__(self, limit: int = TOPIC_LIST_PARTS_MAX) -> None:
        self.limit = limit
        self._used = 0
        self._parts: OrderedDict[tuple[int, str, int], ListPart] = OrderedDict()

    def get(self, topics: TopicList, after: str, most: int) -> ListPart:
        """The part of a list after a name, of at most `most` names."""
        key = topics.ident, after, most
        part = self._parts.get(key)
        if part is not None and part.is_valid(topics):
            self._parts.move_to_end(key)
            return part
        if part is not None:
            self._drop(key)
        part = self._parts[key] = ListPart(topics, after, most)
        self._used += part.size + _PART_OVERHEAD
        while self._used > self.limit:
            self._drop(next(iter(self._parts)))
        return part

    def _drop(self, key: tuple[int, str, int]) -> None:
        self._used -= self._parts.pop(key).size + _PART_OVERHEAD

    def statistics(self) -> PoolStatistics:
        """Usage and limit."""
        return PoolStatistics("topic_list_parts", "bytes", self._used, self.limit)
