"""What `run()` was asked for: checked options, and whether the handler takes messages or batches."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from engine._native.consume.batch import MessageBatch
from engine.client.base.options import backoff_of, check_count, check_seconds
from engine.client.consume.receiving import BATCH_MESSAGES
from engine.errors import InvalidArgumentError
from engine.model.checks import check_number
from engine.model.names import TopicName
from engine.model.redelivery import Backoff

CONCURRENCY_MAX = 10_000
ATTEMPTS_MAX = 5
DRAIN_TIMEOUT_S = 30.0

# Gets a message or a batch; plain, or async.
Handler = Callable[[Any], object]
AsyncHandler = Callable[[Any], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class RunTerms:
    """The options of `run()`. `max_attempts`, `backoff` and `dead_letter` are those of stream consumers.

    Raises InvalidArgumentError.
    """

    concurrency: int = 1
    batch: bool = False
    max_messages: int = BATCH_MESSAGES
    max_attempts: int | None = ATTEMPTS_MAX
    backoff: Backoff = Backoff()  # noqa: RUF009 - frozen
    dead_letter: TopicName | None = None
    drain_timeout: float = DRAIN_TIMEOUT_S

    def __post_init__(self) -> None:
        check_number("concurrency", self.concurrency, 1, CONCURRENCY_MAX, whole=True)
        check_count("max_messages", self.max_messages)
        if self.max_attempts is not None:
            check_count("max_attempts", self.max_attempts)
        elif self.dead_letter is not None:
            raise InvalidArgumentError("dead_letter needs max_attempts, got None: attempts without end")
        check_seconds("drain_timeout", self.drain_timeout)

    @classmethod
    def of(
        cls,
        handler: object,
        *,
        batch: bool | None,
        backoff: Backoff | float | None = None,
        dead_letter: str | None = None,
        **more: Any,
    ) -> RunTerms:
        """From what run() was called with. `batch` None: as the handler's first parameter is annotated."""
        if not callable(handler):
            raise InvalidArgumentError(f"handler must be a function, got {type(handler).__name__}")
        if batch is not None and not isinstance(batch, bool):
            raise InvalidArgumentError(f"batch must be True, False or None, got {batch!r}")
        return cls(
            batch=takes_batches(handler) if batch is None else batch,
            backoff=backoff_of(backoff),
            dead_letter=None if dead_letter is None else TopicName.parse(dead_letter),
            **more,
        )


def takes_batches(handler: Callable[..., object]) -> bool:
    """Whether the first parameter is annotated as a MessageBatch."""
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):  # of a built-in function
        return False
    wanted = parameters[0].annotation if parameters else None
    if isinstance(wanted, str):  # `from __future__ import annotations`: as it is written
        return wanted.split("[")[0].strip("\"' ").rsplit(".", 1)[-1] == MessageBatch.__name__
    return getattr(wanted, "__origin__", wanted) is MessageBatch
