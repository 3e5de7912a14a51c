"""How far the next micro-batch goes. Pure: facts in, offsets out.

A segment is begun when all of its parents are read to their ends, within the same micro-batch at the earliest: its task
then reads the parents first. So a key's messages come in the order of their sends through every split and merge.
"""

from __future__ import annotations

from collections.abc import Mapping

import engine
from pyspark_engine.errors import DataLossError
from pyspark_engine.offsets import Offsets, TopicOffsets

Facts = Mapping[str, engine.TopicSegments]


def ends(facts: Facts, target: Offsets | None = None) -> Offsets:
    """Everything there is, but not beyond a target."""
    return {t: _reach(f, TopicOffsets({}), None if target is None else target.get(t)) for t, f in facts.items()}


def begin(start: Offsets, facts: Facts, *, fail_on_data_loss: bool) -> Offsets:
    """Where the query stands in the topics there are now: new ones from their start, and what retention has deleted
    left behind. Raises DataLossError for what was not read before it was deleted.
    """
    found: Offsets = {}
    for topic, segments in facts.items():
        offsets = start.get(topic)
        if offsets is None:
            found[topic] = TopicOffsets.of(segments.earliest)
            continue
        lost = _lost(offsets, segments)
        if lost and fail_on_data_loss:
            raise DataLossError(f"{topic}: {lost}")
        found[topic] = TopicOffsets.of(segments.earliest) if _replaced(offsets, segments) else offsets
    return found


def _replaced(offsets: TopicOffsets, segments: engine.TopicSegments) -> bool:
    return None not in (offsets.created_ms, segments.created_ms) and offsets.created_ms != segments.created_ms


def _lost(offsets: TopicOffsets, segments: engine.TopicSegments) -> str:
    """What of it is gone that was not read; empty for nothing."""
    if _replaced(offsets, segments):
        return "the query stands in an earlier topic of that name, which was deleted"
    for i, position in offsets.positions.items():
        if i in offsets.finished:
            continue
        segment = segments.segments.get(i)
        if segment is None:
            return f"retention has deleted segment {i}, of which the query had read to {position}"
        if position < segment.first:
            return f"retention has deleted messages {position} to {segment.first - 1} of segment {i}"
        if position > segment.end and segment.settled:
            return f"segment {i} ends at {segment.end}, before {position}, where the query stands"
    return ""


def available(start: Offsets, end: Offsets) -> int:
    return sum(
        max(stop - start[topic].positions.get(i, 0), 0)
        for topic, offsets in end.items()
        if topic in start
        for i, stop in offsets.positions.items()
    )


def advance(start: Offsets, facts: Facts, *, most: int | None = None, target: Offsets | None = None) -> Offsets:
    """From `start` as far as there is something to read; at most so many messages, and not beyond a target."""
    whole = {t: _reach(f, start[t], None if target is None else target.get(t)) for t, f in facts.items()}
    if most is None or available(start, whole) <= most:
        return whole
    held: dict[tuple[str, int], int] = {
        (topic, i): min(start[topic].positions.get(i, segment.first), segment.end)
        for topic, f in facts.items()
        for i, segment in f.segments.items()
    }
    while most > 0:
        due = _due(facts, whole, held)
        if not due:
            break
        most -= _share(held, due, most)
    return {topic: _offsets(f, {i: held[topic, i] for i in f.segments}, start[topic]) for topic, f in facts.items()}


def _share(held: dict[tuple[str, int], int], due: Mapping[tuple[str, int], int], most: int) -> int:
    """Move each on by its part of `most`, or all that is due; returns by how much in total."""
    total = sum(due.values())
    moved = 0
    for place, count in sorted(due.items()):
        step = count if total <= most else min(max(count * most // total, 1), most - moved)
        held[place] += step
        moved += step
    return moved


def _due(facts: Facts, whole: Offsets, held: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """What may be read next: of the segments whose parents are done."""
    found = {}
    for topic, f in facts.items():
        stops = whole[topic].positions
        for i, segment in f.segments.items():
            done = all(_is_done(f, p, held[topic, p]) for p in segment.parents if p in f.segments)
            if done and held[topic, i] < stops.get(i, 0):
                found[topic, i] = stops[i] - held[topic, i]
    return found


def _is_done(facts: engine.TopicSegments, i: int, position: int) -> bool:
    segment = facts.segments[i]
    return segment.settled and position >= segment.end


def _reach(facts: engine.TopicSegments, start: TopicOffsets, target: TopicOffsets | None) -> TopicOffsets:
    """How far it goes from `start` without a limit. Ids rise along every path, so parents come first."""
    reached: dict[int, int] = {}
    for i, segment in sorted(facts.segments.items()):
        position = start.positions.get(i, 0)
        stop = segment.end if target is None else min(segment.end, target.positions.get(i, 0))
        free = all(_is_done(facts, p, reached[p]) for p in segment.parents if p in reached)
        reached[i] = max(position, stop) if free else position
    return _offsets(facts, reached, start)


def _offsets(facts: engine.TopicSegments, positions: Mapping[int, int], start: TopicOffsets) -> TopicOffsets:
    """`start` itself where nothing is new: Spark makes no micro-batch then."""
    moved = any(position != start.positions.get(i, 0) for i, position in positions.items())
    if not moved and start.positions:
        return start
    finished = frozenset(i for i, position in positions.items() if _is_done(facts, i, position))
    return TopicOffsets(dict(positions), facts.epoch, facts.created_ms, finished)
