"""`Prefetched`: transactions that are begun ahead, for programs that run many.

To begin a transaction takes a commit of the metadata store, and so does its end. A program that runs one after the
other, or many at a time, need not wait for the first: some are begun with one request before they are needed. Nothing
takes part in a prefetched transaction before it is used, so it blocks nothing.

For each timeout there is a stock. Several transactions begun in a row, each soon after the end of another, start
prefetching; a pause, or prefetched ones that were not used in their time, stop it, the latter for twice as long each
time. The number to fetch follows from the rate at which they are used, and from how long one is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from typing import Any

from engine.aio.bag import Bag
from engine.client.net.pool import Pool
from engine.client.transact.coordination import Standing, begin_some, end
from engine.errors import EngineError
from engine.limits import TRANSACTION_TIMEOUT_S_MAX
from engine.model.transactions import BEGUN_MAX, TransactionState

log = logging.getLogger(__name__)

IN_A_ROW = 8  # begun soon after another one's end, before prefetching starts
LOW = 2  # more are fetched when this many are left; one more for each time that none was left
PREFETCHED_MAX = 64
TIMEOUTS_MAX = 8  # stocks at most
PATIENCE_MAX = 1024  # of IN_A_ROW, which doubles each time that prefetched ones were left unused
KEPT_S_MAX = 1.0
_KEPT_SHARE = 64  # of its timeout
_USED_SHARE = 4  # they are fetched for this part of the time that they are kept


def kept_s(timeout_s: float) -> float:
    """How long one is kept. Its deadline is later by that, so its user has the whole timeout that was requested."""
    kept = min(KEPT_S_MAX, timeout_s / _KEPT_SHARE)
    return max(0.0, min(kept, TRANSACTION_TIMEOUT_S_MAX - timeout_s))


class _Stock:
    """The prefetched transactions of one timeout."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.kept_s = kept_s(timeout_s)
        self.coming = 0
        self.waiting: deque[tuple[float, Standing]] = deque()  # (until when it is kept, transaction)
        self.expiry: asyncio.TimerHandle | None = None
        self._low = LOW
        self._patience = IN_A_ROW
        self._in_a_row = 0
        self._begun_at: deque[float] = deque(maxlen=IN_A_ROW)  # times of the last ones in a row

    def note(self, now: float, soon: bool) -> None:
        """A transaction begins. `soon`: after another's end."""
        if not soon:
            self.end_row()
        self._in_a_row += 1
        self._begun_at.append(now)

    def end_row(self) -> None:
        """The next one is the first in a row."""
        self._in_a_row, self._low = 0, LOW
        self._begun_at.clear()

    def take(self, now: float) -> Standing | None:
        """The oldest one, if it is still kept."""
        if self.waiting and self.waiting[0][0] > now:
            self._patience = IN_A_ROW
            return self.waiting.popleft()[1]
        if self._in_a_row > self._patience:
            self._low = min(self._low + 1, PREFETCHED_MAX - BEGUN_MAX)
        return None

    def take_late(self, now: float) -> list[Standing]:
        """Remove and return those that were not used in their time."""
        late: list[Standing] = []
        while self.waiting and self.waiting[0][0] <= now:
            late.append(self.waiting.popleft()[1])
        if late:
            self.end_row()
            self._patience = min(2 * self._patience, PATIENCE_MAX)
        return late

    def empty(self) -> list[Standing]:
        """Remove and return all."""
        left, self.waiting = self.waiting, deque()
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None
        return [standing for _, standing in left]

    def wanted(self) -> int:
        """How many to fetch now: as many as will be used soon at the present rate, at most one for two in a row."""
        if self._in_a_row <= self._patience:
            return 0
        took_s = (self._begun_at[-1] - self._begun_at[0]) / (IN_A_ROW - 1)
        soon = PREFETCHED_MAX if not took_s else int(self.kept_s / _USED_SHARE / took_s)
        if len(self.waiting) + self.coming > min(self._low, soon):
            return 0
        return min(soon, self._in_a_row // 2, BEGUN_MAX)


class Prefetched:
    """The prefetched transactions of one client, which have no names. Loop thread only."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._stocks: dict[float, _Stock] = {}  # the last used one is last
        self._ended_at = float("-inf")
        self._tasks: Bag[asyncio.Task[None]] = Bag()  # that fetch or abort

    def take(self, timeout_s: float) -> Standing | None:
        """A prefetched transaction of that timeout, None if there is none."""
        stock, now = self._stock(timeout_s), asyncio.get_running_loop().time()
        stock.note(now, now - self._ended_at <= KEPT_S_MAX)
        found = stock.take(now)
        if count := stock.wanted():
            stock.coming += count
            self._spawn(self._fill(stock, count), "prefetch transactions")
        return found

    def _stock(self, timeout_s: float) -> _Stock:
        stock = self._stocks.pop(timeout_s, None) or _Stock(timeout_s)
        self._stocks[timeout_s] = stock
        if len(self._stocks) > TIMEOUTS_MAX:
            self._drop(self._stocks.pop(next(iter(self._stocks))).empty())
        return stock

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._pool.tasks.spawn(work, name=name)
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fill(self, stock: _Stock, count: int) -> None:
        until, begun = asyncio.get_running_loop().time() + stock.kept_s, list[Standing]()
        try:
            begun = await begin_some(self._pool, stock.timeout_s + stock.kept_s, count)
        except EngineError as e:
            log.debug("no transactions are prefetched: %s", e)
            stock.end_row()
        finally:
            stock.coming -= count
        if self._stocks.get(stock.timeout_s) is stock:
            stock.waiting.extend((until, standing) for standing in begun)
            self._expire(stock)
        else:  # the stock was dropped
            await self._abort(begun)

    def ended(self) -> None:
        """A transaction has ended."""
        self._ended_at = asyncio.get_running_loop().time()

    def _expire(self, stock: _Stock) -> None:
        """Abort those that were not used in their time, and set the timer for the others."""
        loop = asyncio.get_running_loop()
        self._drop(stock.take_late(loop.time()))
        if stock.expiry is not None:
            stock.expiry.cancel()
        stock.expiry = loop.call_at(stock.waiting[0][0], self._expire, stock) if stock.waiting else None

    def _drop(self, unused: Sequence[Standing]) -> None:
        if unused:
            self._spawn(self._abort(unused), "abort prefetched transactions")

    async def _abort(self, unused: Iterable[Standing]) -> None:
        """Abort them as far as possible: their timeout does it otherwise."""
        await asyncio.gather(*map(self._abort_one, unused))

    async def _abort_one(self, standing: Standing) -> None:
        with contextlib.suppress(EngineError):
            await end(self._pool, standing.id, TransactionState.ABORTED, None)

    def close(self) -> list[Awaitable[None]]:
        """Fetch no more. The result has to be awaited: it aborts those that are kept, or arrive."""
        stocks, self._stocks = self._stocks, {}
        left = [standing for stock in stocks.values() for standing in stock.empty()]
        return [*self._tasks, *([self._abort(left)] if left else [])]
