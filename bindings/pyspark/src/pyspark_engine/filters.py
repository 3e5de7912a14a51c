"""What Spark's filters say about segments, offsets, keys and times, so that less is read.

A filter is *taken* when reading by it is exact; otherwise it only prunes, and Spark looks at each row again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pyspark_engine.offsets import full_name
from pyspark_engine.schema import NEVER_NULL

_OFFSET_MAX = 2**62


@dataclass
class Scope:
    """What rows that pass all filters have in common. None: anything.

    `first`, `stop`: offsets, `stop` behind the last. `since`, `until`: publish times, both inclusive.
    """

    topics: frozenset[str] | None = None
    segments: frozenset[int] | None = None
    first: int = 0
    stop: int = _OFFSET_MAX
    keys: frozenset[bytes] | None = None
    since: datetime | None = None
    until: datetime | None = None

    def push(self, filters: Iterable[Any]) -> Iterator[Any]:
        """Narrow down by each filter; yields those that Spark must still apply."""
        for f in filters:
            if not self._take(f):
                yield f

    def _take(self, f: Any) -> bool:
        kind, column = type(f).__name__, ".".join(getattr(f, "attribute", ()))
        if kind == "IsNotNull":
            return column in NEVER_NULL
        values = _values(kind, f)
        if column == "topic" and values is not None:
            self.topics = _both(self.topics, frozenset(full_name(v) for v in values))
            return all(v == full_name(v) for v in values)  # a short name equals no row's
        if column == "segment" and values is not None:
            self.segments = _both(self.segments, values)
            return True
        if column == "key" and values is not None:
            self.keys = _both(self.keys, frozenset(v.encode() if isinstance(v, str) else bytes(v) for v in values))
            return False
        if column == "offset":
            return self._take_offset(kind, f, values)
        if column == "publish_time":
            self._prune_times(kind, f, values)
        return False

    def _take_offset(self, kind: str, f: Any, values: frozenset[Any] | None) -> bool:
        if values is not None:
            self.first, self.stop = max(self.first, min(values)), min(self.stop, max(values) + 1)
            return len(values) == 1
        bounds: dict[str, Callable[[int], tuple[int, int]]] = {
            "GreaterThan": lambda v: (v + 1, _OFFSET_MAX),
            "GreaterThanOrEqual": lambda v: (v, _OFFSET_MAX),
            "LessThan": lambda v: (0, v),
            "LessThanOrEqual": lambda v: (0, v + 1),
        }
        if kind not in bounds:
            return False
        first, stop = bounds[kind](f.value)
        self.first, self.stop = max(self.first, first), min(self.stop, stop)
        return True

    def _prune_times(self, kind: str, f: Any, values: frozenset[Any] | None) -> None:
        if values is not None:
            since, until = min(values), max(values)
        elif kind in ("GreaterThan", "GreaterThanOrEqual"):
            since, until = f.value, None
        elif kind in ("LessThan", "LessThanOrEqual"):
            since, until = None, f.value
        else:
            return
        if since is not None:
            self.since = since if self.since is None else max(self.since, since)
        if until is not None:
            self.until = until if self.until is None else min(self.until, until)

    def holds(self, topic: str) -> bool:
        """Whether anything of a topic may pass."""
        return self.topics is None or topic in self.topics

    @property
    def behind(self) -> datetime | None:
        """A time from which on nothing passes. Topics count whole milliseconds."""
        return None if self.until is None else self.until + timedelta(milliseconds=1)


def _values(kind: str, f: Any) -> frozenset[Any] | None:
    """Those that a column may have, None when the filter does not say."""
    if kind == "EqualTo" and f.value is not None:
        return frozenset((f.value,))
    if kind == "In" and f.value and None not in f.value:
        return frozenset(f.value)
    return None


def _both(before: frozenset[Any] | None, now: frozenset[Any]) -> frozenset[Any]:
    return now if before is None else before & now
