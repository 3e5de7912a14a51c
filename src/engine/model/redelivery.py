"""When a message that was handed back is delivered again, and when it is not any more."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.errors import InvalidArgumentError
from engine.model.names import TopicName

DEAD_LETTER_SUFFIX = "-DLQ"
SECONDS_MAX = 1e9  # 31 years
_COUNT_MAX = 64  # a delay that has not reached its maximum by then does not grow


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a message that was negatively acknowledged is kept back, by how often it came back before.

    The first time `min` seconds, then `multiplier` times as long each time, `max` seconds at most. Raises
    InvalidArgumentError unless 0 <= min <= max and multiplier >= 1.
    """

    min: float = 1.0
    max: float = 60.0
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        for name, low, high in (("min", 0, self.max), ("max", 0, SECONDS_MAX), ("multiplier", 1, SECONDS_MAX)):
            value = getattr(self, name)
            if type(value) not in (int, float) or not math.isfinite(value):
                raise InvalidArgumentError(f"Backoff: {name} is {value!r}; a number is right")
            if not low <= value <= high:
                raise InvalidArgumentError(f"Backoff: {name} is {value}; {low} to {high} is right")

    @classmethod
    def constant(cls, seconds: float) -> Backoff:
        """The same each time."""
        return cls(min=seconds, max=seconds, multiplier=1.0)

    def delay(self, redeliveries: int) -> float:
        """Seconds, for a message that had come back so often when it was handed back."""
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
    """After how many redeliveries a message is put aside, and where.

    `max_redeliveries`: 0 or more; a message is received at most once more than that (semantics 21). `topic`: by
    default the source's own name with "-DLQ" behind it. Raises InvalidArgumentError.
    """

    max_redeliveries: int
    topic: str | None = None

    def __post_init__(self) -> None:
        if type(self.max_redeliveries) is not int or self.max_redeliveries < 0:
            raise InvalidArgumentError(f"max_redeliveries is {self.max_redeliveries!r}; an int of at least 0 is right")
        if self.topic is not None:
            TopicName.parse(self.topic)

    def topic_of(self, source: TopicName) -> TopicName:
        """Where what `source` gives up goes. Raises InvalidArgumentError when that is no other topic."""
        target = TopicName.parse(self.topic or f"{source}{DEAD_LETTER_SUFFIX}")
        if target == source:
            raise InvalidArgumentError(f"the dead letters of {source} cannot go to the same topic")
        return target
