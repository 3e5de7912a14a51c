"""`Unconfirmed`: acknowledgements that are not awaited one by one.

The first few go out at once, each by itself. While those are under way, what comes is merged into one that goes out
when one of them is confirmed: what is kept does not grow with how much faster a program acknowledges than the broker
confirms. As nothing waits for them, they are *lazy*: the broker may save them later, with others, until flushed()
hurries it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from engine.client.base.starting import Starting

UNDER_WAY_MAX = 8

A = TypeVar("A")
Begun = Coroutine[Any, Any, None] | asyncio.Future[None]


class Unconfirmed(Generic[A]):
    """Loop thread only. `begin(asked, lazy)` sends what is asked, and returns what is left to do; `merge` makes one of
    two; `hurry` has the broker save what was sent lazily.
    """

    def __init__(
        self,
        starting: Starting,
        begin: Callable[[A, bool], Begun],
        merge: Callable[[A, A], A],
        hurry: Callable[[], None],
    ) -> None:
        self._starting = starting
        self._begin = begin
        self._merge = merge
        self._hurry = hurry
        self._awaited = 0  # by flushed()
        self._next: list[A] = []  # none or one
        self._tasks: set[asyncio.Future[None]] = set()
        self._error: Exception | None = None

    def __bool__(self) -> bool:
        return bool(self._tasks or self._error)

    def add(self, asked: A) -> None:
        """Acknowledge it."""
        if len(self._tasks) < UNDER_WAY_MAX:
            self._send(asked)
        else:
            self._next = [self._merge(self._next[0], asked) if self._next else asked]

    def _send(self, asked: A) -> None:
        try:
            begun = self._begin(asked, not self._awaited)
            task = begun if isinstance(begun, asyncio.Future) else self._starting.keep(begun)
        except Exception as e:
            self._error = self._error or e
        else:
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._error = self._error or error
        waiting, self._next = self._next, []
        for asked in waiting:
            self._send(asked)

    async def flushed(self) -> None:
        """Wait until all of them are durable. Raises the first failure that was not raised yet."""
        if self._tasks:
            self._hurry()
        self._awaited += 1
        try:
            while self._tasks:
                await asyncio.wait(set(self._tasks))
        finally:
            self._awaited -= 1
        error, self._error = self._error, None
        if error is not None:
            raise error
