"""`shielded`: waits for work that several callers may await, and that continues when one of them is cancelled.

`finished`: the same for work that must have ended when its caller goes on, cancelled or not.
"""

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
        pass_on(work, waiter)

    work.add_done_callback(ended)
    waiter.add_done_callback(lambda _: work.remove_done_callback(ended))
    return waiter


def pass_on(work: asyncio.Future[T], waiter: asyncio.Future[T]) -> None:
    """Give `waiter` the outcome of `work`, which has ended."""
    if waiter.done():  # it was cancelled a moment ago; the error of the work counts as seen
        work.cancelled() or work.exception()
    elif work.cancelled():
        waiter.cancel()
    elif (error := work.exception()) is not None:
        waiter.set_exception(error)
    else:
        waiter.set_result(work.result())


async def finished(work: asyncio.Future[T]) -> T:
    """The outcome of `work`, which is waited for however often this is cancelled; CancelledError then, and its error
    counts as seen.
    """
    cancelled = False
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        work.cancelled() or work.exception()
        raise asyncio.CancelledError
    return work.result()
