"""The options of a queue consumer that say what becomes of messages that are not acknowledged."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.client.base.options import check_seconds
from engine.errors import InvalidArgumentError
from engine.model.redelivery import Backoff, DeadLetter

ACK_TIMEOUT_S_MIN = 0.01


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """The keyword arguments of `queue_consumer()` that no other consumer has."""

    ack_timeout: float | None = None
    nack_backoff: Backoff = field(default_factory=lambda: Backoff.constant(1.0))
    dead_letter: DeadLetter | None = None

    def __post_init__(self) -> None:
        if self.ack_timeout is not None:
            check_seconds("ack_timeout", self.ack_timeout, ACK_TIMEOUT_S_MIN)
        if self.dead_letter is not None and not isinstance(self.dead_letter, DeadLetter):
            raise InvalidArgumentError(
                f"dead_letter is {self.dead_letter!r}; engine.DeadLetter(max_redeliveries=3) is right"
            )


def backoff_of(option: Backoff | float | None) -> Backoff:
    """A back-off, or a plain number of seconds; one second when it is None. Raises InvalidArgumentError."""
    if isinstance(option, Backoff):
        return option
    seconds = 1.0 if option is None else option
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidArgumentError(f"nack_backoff is {option!r}; engine.Backoff(…) or a number of seconds is right")
    check_seconds("nack_backoff", seconds)
    return Backoff.constant(float(seconds))
