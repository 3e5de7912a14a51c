"""Turning places into offsets, and offsets into pieces of segments, by what the topics' owners say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import engine
from pyspark_engine.errors import DataLossError
from pyspark_engine.offsets import EARLIEST, LATEST, Target, TopicOffsets, full_name
from pyspark_engine.options import Topics
from pyspark_engine.partitions import Piece

if TYPE_CHECKING:
    from pyspark_engine.filters import Scope


def find_topics(client: engine.Client, topics: Topics) -> list[str]:
    """Their full names, in order."""
    if topics.namespace is None:
        return named_topics(topics)
    return client.list_topics(topics.namespace, pattern=topics.pattern, properties=dict(topics.properties) or None)


def named_topics(topics: Topics) -> list[str]:
    """The same where they have names."""
    return sorted({full_name(name) for name in topics.names})


class Resolver(Protocol):
    """A topic's view."""

    def resolve(self, place: engine.Checkpoint) -> engine.Checkpoint:
        """As positions."""


def resolve(view: Resolver, facts: engine.TopicSegments, target: Target, *, ending: bool) -> TopicOffsets:
    """A place in a topic as a position in each of its segments.

    A segment that a target does not mention was born after it: as a start it is read from its start, as an end not at
    all. Raises ValueError for segments that the topic never had.
    """
    if isinstance(target, engine.Checkpoint):
        if target.form in ("earliest", "latest"):
            return TopicOffsets.of(facts.earliest if target.form == "earliest" else facts.latest)
        if target.form == "positions":
            return TopicOffsets.of(view.resolve(target))
        return _visible(facts, view.resolve(target).positions)
    if isinstance(target, TopicOffsets):
        return _from_numbers(facts, target, ending)
    times = {place: view.resolve(place).positions for place in target.values()}
    named = _visible(facts, {i: times[place].get(i, 0) for i, place in target.items()})
    return _from_numbers(facts, named, ending)


def _visible(facts: engine.TopicSegments, positions: Mapping[int, int]) -> TopicOffsets:
    """What an open transaction holds back has a time already, and cannot be read yet."""
    ends = {i: segment.end for i, segment in facts.segments.items()}
    seen = {i: min(position, ends.get(i, position)) for i, position in positions.items()}
    return TopicOffsets(seen, facts.epoch, facts.created_ms)


def _from_numbers(facts: engine.TopicSegments, target: TopicOffsets, ending: bool) -> TopicOffsets:
    never = [i for i in target.positions if i > max(facts.segments, default=-1) and target.epoch <= facts.epoch]
    if never:
        raise ValueError(f"{facts.topic} has no segment {never[0]}; there are {', '.join(map(str, facts.segments))}")
    found = dict(target.positions)
    for i, segment in facts.segments.items():
        position = found.get(i, 0)
        if position in (EARLIEST, LATEST):
            position = segment.first if position == EARLIEST else segment.end
        elif i not in found and not ending:
            position = segment.first
        found[i] = position
    return TopicOffsets(found, target.epoch or facts.epoch, target.created_ms, target.finished)


def pieces_between(
    facts: engine.TopicSegments, start: TopicOffsets, end: TopicOffsets, *, fail_on_data_loss: bool
) -> list[Piece]:
    """What lies between two offsets and is still there. Raises DataLossError for what is not, where that matters."""
    lost = _Lost(facts.topic, fail_on_data_loss)
    if not _same_topic(facts, start):
        lost.add("the query stands in an earlier topic of that name, which was deleted")
        start = TopicOffsets({})
    if not _same_topic(facts, end):
        lost.add("the query was to read an earlier topic of that name, which was deleted")
        return []
    found = []
    for i, stop in end.positions.items():
        segment, begin = facts.segments.get(i), start.positions.get(i, 0)
        if i in start.finished or begin >= stop:
            continue
        if segment is None:
            lost.add(f"retention has deleted segment {i}, of which {begin} to {stop} were to be read")
            continue
        if begin < segment.first:
            lost.add(f"retention has deleted messages {begin} to {segment.first - 1} of segment {i}")
        if stop > segment.end:
            lost.add(f"segment {i} ends at {segment.end}, before {stop}")
        begin, stop = max(begin, segment.first), min(stop, segment.end)
        found.append(
            Piece(facts.topic, i, begin, stop, segment.hash_start, segment.hash_end, tuple(segment.bucket_ends))
        )
    return found


class _Lost:
    def __init__(self, topic: str, fail: bool) -> None:
        self._topic, self._fail = topic, fail

    def add(self, what: str) -> None:
        if self._fail:
            raise DataLossError(f"{self._topic}: {what}")


def _same_topic(facts: engine.TopicSegments, offsets: TopicOffsets) -> bool:
    return None in (facts.created_ms, offsets.created_ms) or facts.created_ms == offsets.created_ms


def within(pieces: Iterable[Piece], facts: engine.TopicSegments, scope: Scope) -> list[Piece]:
    """Of the pieces, what may pass the filters, by segment, key and offset."""
    holding = None if scope.keys is None else {i for key in scope.keys for i in facts.holding(key)}
    found = []
    for piece in pieces:
        if scope.segments is not None and piece.segment not in scope.segments:
            continue
        if holding is not None and piece.segment not in holding:
            continue
        start, stop = max(piece.start, scope.first), min(piece.stop, scope.stop)
        if start < stop:
            found.append(piece.between(start - piece.start, stop - piece.start))
    return found


def after(pieces: Iterable[Piece], positions: Mapping[int, int]) -> list[Piece]:
    """Of the pieces, what is at these positions or behind them."""
    found = [p.between(max(positions.get(p.segment, 0) - p.start, 0), p.count) for p in pieces]
    return [p for p in found if p.count > 0]


def before(pieces: Iterable[Piece], positions: Mapping[int, int]) -> list[Piece]:
    """Of the pieces, what is before these positions."""
    found = [p.between(0, min(positions.get(p.segment, p.stop) - p.start, p.count)) for p in pieces]
    return [p for p in found if p.count > 0]
