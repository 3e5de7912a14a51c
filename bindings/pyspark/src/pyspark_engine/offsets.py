"""Where a query stands: for each topic a position in every segment of its layout, and the JSON of that.

    {"topic://public/default/orders": {"0": 1200, "1": 340, "epoch": 3, "created": 1790000000000, "finished": "0"}}

The numbers are segments. `epoch` and `created` are the layout's and the topic's, as in an engine.Checkpoint; `finished`
names segments of which nothing is missing and nothing can follow. What users write in startingOffsets has the same
form, where the words may be left out, a topic may be given by its short name, and -2 is earliest, -1 latest.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import engine
from pyspark_engine.options import Place

EARLIEST, LATEST = -2, -1
_WORDS = ("epoch", "created", "finished")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Json = dict[str, Any]


@dataclass(frozen=True)
class TopicOffsets:
    """A position for every segment of one topic; one that is missing was born later, and is read from its start."""

    positions: Mapping[int, int]
    epoch: int = 0
    created_ms: int | None = None
    finished: frozenset[int] = field(default_factory=frozenset)

    @classmethod
    def of(cls, checkpoint: engine.Checkpoint) -> TopicOffsets:
        return cls(dict(checkpoint.positions), checkpoint.epoch, checkpoint.topic_created_ms)

    def to_json(self) -> Json:
        """Plain values, always in the same order: Spark compares the text."""
        found: Json = {str(i): position for i, position in sorted(self.positions.items())}
        found["epoch"] = self.epoch
        if self.created_ms is not None:
            found["created"] = self.created_ms
        if self.finished:
            found["finished"] = " ".join(map(str, sorted(self.finished)))
        return found

    @classmethod
    def from_json(cls, found: Json) -> TopicOffsets:
        """Undo to_json(). Raises ValueError."""
        segments = {name: value for name, value in found.items() if name not in _WORDS}
        try:
            positions = {int(name): _whole(value) for name, value in segments.items()}
            finished = frozenset(map(int, str(found.get("finished", "")).split()))
            created = found.get("created")
            return cls(positions, _whole(found.get("epoch", 0)), None if created is None else _whole(created), finished)
        except (TypeError, ValueError) as e:
            raise ValueError(f'offsets of a topic must be by segment, as {{"0": 120, "1": 7}}, got {found!r}') from e

    def checkpoint(self, topic: str) -> engine.Checkpoint:
        """The same for a checkpoint consumer."""
        return engine.Checkpoint(self.positions, epoch=self.epoch, topic=topic, topic_created_ms=self.created_ms)


Offsets = dict[str, TopicOffsets]  # by the topic's full name


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def to_json(offsets: Offsets) -> Json:
    return {topic: offsets[topic].to_json() for topic in sorted(offsets)}


def from_json(found: Json) -> Offsets:
    """Undo to_json(). Raises ValueError."""
    if not isinstance(found, dict) or not all(isinstance(value, dict) for value in found.values()):
        raise ValueError(f'offsets must be by topic and segment, as {{"topic": {{"0": 120}}}}, got {found!r}')
    return {full_name(topic): TopicOffsets.from_json(value) for topic, value in found.items()}


def full_name(topic: str) -> str:
    """topic://tenant/namespace/name of any of the three ways to write a topic; persistent://… of a classic one."""
    if topic.startswith("persistent://"):
        return topic
    bare = topic.removeprefix("topic://")
    return f"topic://{bare}" if "/" in bare else f"topic://public/default/{bare}"


# -- what users write ---------------------------------------------------------------------------------------------

Target = engine.Checkpoint | TopicOffsets | dict[int, engine.Checkpoint]


@dataclass(frozen=True)
class Wanted:
    """A place as it was given: one for all topics, or by topic. `times`: by topic and segment."""

    everywhere: engine.Checkpoint | None = None
    by_topic: Mapping[str, Target] = field(default_factory=dict)

    def of(self, topic: str, option: str) -> Target:
        """Where in a topic. Raises ValueError for one that is not mentioned."""
        if self.everywhere is not None:
            return self.everywhere
        if topic not in self.by_topic:
            raise ValueError(f"{option} must name the topic {topic}, got {', '.join(self.by_topic) or 'none'}")
        return self.by_topic[topic]


def read_place(place: Place) -> Wanted:
    """Earliest, latest, a time, a serialised checkpoint, or JSON. Raises ValueError naming the option."""
    text = place.text
    try:
        if text.startswith("{"):
            return Wanted(by_topic=_times(json.loads(text)) if place.times else dict(from_json(json.loads(text))))
        if place.times:
            return Wanted(everywhere=engine.Checkpoint.at_timestamp(read_time(text)))
        if text.lower() in ("earliest", "latest"):
            word = text.lower()
            return Wanted(everywhere=engine.Checkpoint.earliest() if word == "earliest" else engine.Checkpoint.latest())
        checkpoint = _read_checkpoint(text)
        if checkpoint is None:
            return Wanted(everywhere=engine.Checkpoint.at_timestamp(read_time(text)))
        if checkpoint.form != "positions":
            return Wanted(everywhere=checkpoint)
        if checkpoint.topic is None:
            raise ValueError("a checkpoint must name its topic, got one without")
        return Wanted(by_topic={checkpoint.topic: TopicOffsets.of(checkpoint)})
    except (ValueError, engine.InvalidArgumentError) as e:
        raise ValueError(
            f"{place.option} must be earliest, latest, a time (milliseconds, or ISO 8601 with its zone), a checkpoint "
            '(hexadecimal or base64 of its bytes) or JSON such as {"orders": {"0": 120}}, '
            f"got {text!r:.200} ({e})"
        ) from e


def read_time(text: str) -> datetime:
    """Milliseconds since 1970, or ISO 8601 with a time zone. Raises ValueError."""
    if text.lstrip("-").isdecimal():
        return _EPOCH + timedelta(milliseconds=int(text))
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        raise ValueError(f"a time must have a time zone, got {text!r}")
    return when


def _read_checkpoint(text: str) -> engine.Checkpoint | None:
    """The bytes of Checkpoint.to_bytes(), as hexadecimal digits or base64."""
    for decode in (bytes.fromhex, lambda t: base64.b64decode(t, validate=True)):
        try:
            return engine.Checkpoint.from_bytes(decode(text))
        except (ValueError, binascii.Error, engine.InvalidArgumentError):
            continue
    return None


def _times(found: Json) -> dict[str, Target]:
    """{topic: {segment: milliseconds}}."""
    if not isinstance(found, dict) or not all(isinstance(value, dict) for value in found.values()):
        raise ValueError('times must be by topic and segment, as {"topic": {"0": 1790000000000}}')
    at = engine.Checkpoint.at_timestamp
    return {
        full_name(topic): {int(i): at(_EPOCH + timedelta(milliseconds=_whole(ms))) for i, ms in segments.items()}
        for topic, segments in found.items()
    }
