"""`Staggered`: where much work ends in one turn of the loop, its callers go on a few in each turn.

all at once    32 callers make the next 32 requests, and the other side waits; it answers, and they wait
a few          the requests of the first are on their way while the others make theirs: both sides work at once
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeVar

from engine.aio.shielded import pass_on

T = TypeVar("T")


class Staggered:
    """Loop thread only. `at_once`: callers that go on in one turn of the loop, in the order in which the work ends."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._left = at_once  # in this turn
        self._counting = False  # _turn_over() will be called
        # Work that has ended, and its caller.
        self._waiting: deque[tuple[asyncio.Future[Any], asyncio.Future[Any]]] = deque()

    def shielded(self, work: asyncio.Future[T]) -> asyncio.Future[T]:
        """A future with the outcome of `work`; cancelling it does not cancel `work`."""
        if work.done():
            return work
        waiter: asyncio.Future[T] = work.get_loop().create_future()

        def ended(work: asyncio.Future[T]) -> None:
            self._ended(work, waiter)

        work.add_done_callback(ended)
        waiter.add_done_callback(lambda _: work.remove_done_callback(ended))
        return waiter

    def _ended(self, work: asyncio.Future[Any], waiter: asyncio.Future[Any]) -> None:
        if not self._counting:
            self._counting = True
            work.get_loop().call_soon(self._turn_over)
        if self._left:
            self._left -= 1
            pass_on(work, waiter)
        else:
            self._waiting.append((work, waiter))

    def _turn_over(self) -> None:
        self._left, waiting = self._at_once, self._waiting
        self._counting = bool(waiting)
        if waiting:
            asyncio.get_running_loop().call_soon(self._turn_over)
        while waiting and self._left:
            work, waiter = waiting.popleft()
            self._left -= not waiter.done()
            pass_on(work, waiter)
