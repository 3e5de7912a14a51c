"""`shielded`: waits for work that several callers may await, and that continues when one of them is cancelled."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


def shielded(work: asyncio.Future[T]) -> asyncio.Future[T]:
    """A future with the outcome of `work`; cancelling it does not cancel `work`.

    `asyncio.shield` does the same, but from Python 3.14 on it logs what `work` raises after that. Here that is the
    matter of `work`, which may have other callers or none.
    """
    if work.done():
        return work
    waiter: asyncio.Future[T] = work.get_loop().create_future()

    def ended(work: asyncio.Future[T]) -> None:
        if waiter.done():  # it was cancelled a moment ago; the error of the work counts as seen
            work.cancelled() or work.exception()
        elif work.cancelled():
            waiter.cancel()
        elif (error := work.exception()) is not None:
            waiter.set_exception(error)
        else:
            waiter.set_result(work.result())

    work.add_done_callback(ended)
    waiter.add_done_callback(lambda _: work.remove_done_callback(ended))
    return waiter
