"""Delays before a failed operation is tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import InvalidArgumentError

if TYPE_CHECKING:
    import random


class RetryDelay:
    """Exponential delays with full upper-half jitter: the n-th is in [d/2, d], d = min(initial * 2**n, maximum).

    Randomness comes from the caller, so that a simulation replays under its seed.
    """

    __slots__ = ("_initial", "_maximum", "_rng", "attempts")

    def __init__(self, rng: random.Random, *, initial: float = 0.1, maximum: float = 10.0) -> None:
        if not 0 < initial <= maximum:
            raise InvalidArgumentError(f"backoff must have 0 < initial <= maximum, got {initial} to {maximum} s")
        self._rng = rng
        self._initial = initial
        self._maximum = maximum
        self.attempts = 0

    def next(self) -> float:
        """The delay in seconds before the next attempt; each call returns a longer one."""
        delay = min(self._initial * 2.0 ** min(self.attempts, 60), self._maximum)
        self.attempts += 1
        return delay * (0.5 + 0.5 * self._rng.random())

    def reset(self) -> None:
        """Begin with the initial delay again, after a success."""
        self.attempts = 0
