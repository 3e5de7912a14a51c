"""When a message that was negatively acknowledged is delivered again, and when it becomes a dead letter."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.errors import InvalidArgumentError
from engine.model.names import TopicName

DEAD_LETTER_SUFFIX = "-DLQ"
SECONDS_MAX = 1e9  # 31 years
_COUNT_MAX = 64  # redeliveries after which a delay stops growing


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay of a negatively acknowledged message, by the number of its redeliveries.

    `min` seconds the first time, then `multiplier` times as long each time, at most `max` seconds. Raises
    InvalidArgumentError unless 0 <= min <= max and multiplier >= 1.
    """

    min: float = 1.0
    max: float = 60.0
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        for name, low, high in (("min", 0, self.max), ("max", 0, SECONDS_MAX), ("multiplier", 1, SECONDS_MAX)):
            value = getattr(self, name)
            if type(value) not in (int, float) or not math.isfinite(value):
                raise InvalidArgumentError(f"Backoff: {name} must be a number, got {value!r}")
            if not low <= value <= high:
                raise InvalidArgumentError(f"Backoff: {name} must be {low} to {high}, got {value}")

    @classmethod
    def constant(cls, seconds: float) -> Backoff:
        """A delay of as many seconds each time."""
        return cls(min=seconds, max=seconds, multiplier=1.0)

    def delay(self, redeliveries: int) -> float:
        """The delay in seconds of a message that was redelivered so many times before."""
        if self.min == 0 or self.multiplier == 1:
            return self.min
        delay = self.min
        for _ in range(redeliveries if redeliveries < _COUNT_MAX else _COUNT_MAX):
            if delay >= self.max:
                break
            delay *= self.multiplier
        return min(delay, self.max)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """After how many redeliveries a message becomes a dead letter, and in which topic.

    `max_redeliveries`: 0 or more; a message is received at most once more than that (semantics 21). `topic`: by default
    the source's own name with "-DLQ" appended. Raises InvalidArgumentError.
    """

    max_redeliveries: int
    topic: str | None = None

    def __post_init__(self) -> None:
        if type(self.max_redeliveries) is not int or self.max_redeliveries < 0:
            raise InvalidArgumentError(f"max_redeliveries must be an int >= 0, got {self.max_redeliveries!r}")
        if self.topic is not None:
            TopicName.parse(self.topic)

    def topic_of(self, source: TopicName) -> TopicName:
        """The dead-letter topic of `source`. Raises InvalidArgumentError when that is the same topic."""
        target = TopicName.parse(self.topic or f"{source}{DEAD_LETTER_SUFFIX}")
        if target == source:
            raise InvalidArgumentError(f"the dead-letter topic must be another one, got the same topic {source}")
        return target
