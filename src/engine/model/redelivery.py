"""When a message that was handed back is delivered again."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.errors import InvalidArgumentError

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
