"""Cutting what is to be read into tasks. Pure: facts in, plan out.

Two ways. *Even*: everything is laid end to end in the order of the hash ring, parents before children, and cut into as
many equal parts as are wanted; several small segments come together, a large one is cut by offsets. *Aligned*: segments
whose hash ranges overlap (a parent and its children) stay together, so all messages of a key are in one task, in the
order of their sends; more tasks than there are such families are made by sharing out buckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

CUT_MESSAGES_MIN = 50_000  # a task for fewer messages costs more than it saves
RING_LAST = 0xFFFF

Buckets = tuple[int, int]


@dataclass(frozen=True)
class Piece:
    """Offsets `start` to `stop` of one segment, and where that is on the ring."""

    topic: str
    segment: int
    start: int
    stop: int
    hash_start: int = 0
    hash_end: int = RING_LAST
    bucket_ends: tuple[int, ...] = (RING_LAST,)

    @property
    def count(self) -> int:
        """Messages, if none is hidden."""
        return self.stop - self.start

    def between(self, start: int, stop: int) -> Piece:
        """A part of it, counted from its start."""
        return Piece(
            self.topic,
            self.segment,
            self.start + start,
            self.start + stop,
            self.hash_start,
            self.hash_end,
            self.bucket_ends,
        )


@dataclass(frozen=True)
class Work:
    """What a task reads of one topic. `buckets`: only entries of these, None for all."""

    topic: str
    ranges: Mapping[int, tuple[int, int]]
    buckets: Buckets | None = None


class TopicPartition(InputPartition):
    """A task's work, one topic after the other."""

    def __init__(self, work: Sequence[Work]) -> None:
        super().__init__(tuple(work))
        self.work = tuple(work)

    def __repr__(self) -> str:
        return f"TopicPartition({list(self.work)!r})"


@dataclass(frozen=True)
class Wish:
    """How many tasks. `least`: asked for by the user. `usual`: as many as are sensible. `most_messages`: of a task."""

    least: int | None = None
    usual: int = 1
    most_messages: int | None = None

    def tasks(self, messages: int) -> int:
        wanted = min(self.usual, messages // CUT_MESSAGES_MIN) if self.least is None else min(self.least, messages)
        if self.most_messages is not None:
            wanted = max(wanted, -(-messages // self.most_messages))
        return max(wanted, 1)


def plan(pieces: Iterable[Piece], wish: Wish, *, aligned: bool) -> list[TopicPartition]:
    """The tasks; none for nothing."""
    found = [p for p in pieces if p.count > 0]
    if not found:
        return []
    return _aligned(found, wish) if aligned else _even(found, wish)


# -- even ---------------------------------------------------------------------------------------------------------


def _even(pieces: Sequence[Piece], wish: Wish) -> list[TopicPartition]:
    line = [piece for family in families(pieces) for piece in family]
    total = sum(p.count for p in line)
    tasks = wish.tasks(total)
    exact = wish.least is not None or wish.most_messages is not None
    cuts = _cuts(line, total, tasks, 0 if exact else total // tasks // 8)
    parts: list[list[Piece]] = [[] for _ in range(tasks)]
    at = 0
    for piece in line:
        for rank in range(tasks):
            start, stop = max(cuts[rank], at), min(cuts[rank + 1], at + piece.count)
            if start < stop:
                parts[rank].append(piece.between(start - at, stop - at))
        at += piece.count
    return [_task(part) for part in parts if part]


def _cuts(line: Sequence[Piece], total: int, tasks: int, snap: int) -> list[int]:
    """Equal parts; a cut that is close to the end of a piece is moved there."""
    ends, at = [0], 0
    for piece in line:
        at += piece.count
        ends.append(at)
    cuts = []
    for rank in range(tasks + 1):
        cut = total * rank // tasks
        nearest = min(ends, key=lambda end: abs(end - cut))
        cuts.append(nearest if abs(nearest - cut) <= snap else cut)
    return cuts


def _task(pieces: Sequence[Piece], buckets: Buckets | None = None) -> TopicPartition:
    topics: dict[str, dict[int, tuple[int, int]]] = {}
    for piece in pieces:
        topics.setdefault(piece.topic, {})[piece.segment] = (piece.start, piece.stop)
    return TopicPartition([Work(topic, ranges, buckets) for topic, ranges in topics.items()])


# -- aligned ------------------------------------------------------------------------------------------------------


def families(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """Pieces whose hash ranges overlap, directly or through others, in the order of the ring; parents first in each."""
    found: list[list[Piece]] = []
    end = -1
    for piece in sorted(pieces, key=lambda p: (p.topic, p.hash_start, p.segment)):
        if found and found[-1][0].topic == piece.topic and piece.hash_start <= end:
            found[-1].append(piece)
            end = max(end, piece.hash_end)
        else:
            found.append([piece])
            end = piece.hash_end
    return [sorted(family, key=lambda p: p.segment) for family in found]


def _aligned(pieces: Sequence[Piece], wish: Wish) -> list[TopicPartition]:
    total = sum(p.count for p in pieces)
    tasks = wish.tasks(total)
    share = total / tasks
    found: list[TopicPartition] = []
    together: list[Piece] = []
    for family in families(pieces):
        size = sum(p.count for p in family)
        parts = _bucket_parts(family, min(round(size / share), tasks))
        if len(parts) > 1:
            found += [_task(together)] if together else []
            found += [_task(family, part) for part in parts]
            together = []
            continue
        if together and sum(p.count for p in together) + size / 2 > share:
            found.append(_task(together))
            together = []
        together += family
    return [*found, _task(together)] if together else found


def _bucket_parts(family: Sequence[Piece], parts: int) -> list[Buckets]:
    """At most so many ranges of buckets, cut where every segment of the family is cut."""
    common = sorted(frozenset.intersection(*(frozenset(p.bucket_ends) for p in family)))
    parts = max(1, min(parts, len(common)))
    ends = [common[len(common) * (rank + 1) // parts - 1] for rank in range(parts)]
    starts = [0, *(end + 1 for end in ends[:-1])]
    return list(zip(starts, ends, strict=True))
