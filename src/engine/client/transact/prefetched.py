"""`Spares`: transactions that are begun ahead, for whoever runs many.

To begin a transaction takes a commit of the metadata store, and so does its end. Who runs one after the other, or many
at a time, need not wait for the first: some are begun with one request before they are asked for. Nothing takes part in
a spare until somebody has it, so it holds nobody up.
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

IN_A_ROW = 8  # begun soon after another one's end, before there are spares
LOW = 2  # more are begun when so many are left, and one more for each time that none was
SPARES_MAX = 64
TIMEOUTS_MAX = 8  # of which there are spares
PATIENCE_MAX = 1024  # in a row, where spares were left unused: the number doubles each time
KEPT_S_MAX = 1.0
_KEPT_SHARE = 64  # of its timeout
_USED_SHARE = 4  # spares are begun for this part of the time that they are kept


def kept_s(timeout_s: float) -> float:
    """How long a spare is kept. Its deadline is later by that: whoever gets it has all the time that was asked for."""
    kept = min(KEPT_S_MAX, timeout_s / _KEPT_SHARE)
    return max(0.0, min(kept, TRANSACTION_TIMEOUT_S_MAX - timeout_s))


class _Stock:
    """Those of one timeout."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.kept_s = kept_s(timeout_s)
        self.coming = 0
        self.waiting: deque[tuple[float, Standing]] = deque()  # and until when each is kept
        self.expiry: asyncio.TimerHandle | None = None
        self._low = LOW
        self._patience = IN_A_ROW
        self._in_a_row = 0
        self._begun_at: deque[float] = deque(maxlen=IN_A_ROW)  # of those

    def note(self, now: float, soon: bool) -> None:
        """One is begun; `soon` after another's end."""
        if not soon:
            self.end_row()
        self._in_a_row += 1
        self._begun_at.append(now)

    def end_row(self) -> None:
        """What comes next is the first."""
        self._in_a_row, self._low = 0, LOW
        self._begun_at.clear()

    def take(self, now: float) -> Standing | None:
        """The first of them, if its time is not over."""
        if self.waiting and self.waiting[0][0] > now:
            self._patience = IN_A_ROW
            return self.waiting.popleft()[1]
        if self._in_a_row > self._patience:
            self._low = min(self._low + 1, SPARES_MAX - BEGUN_MAX)
        return None

    def take_late(self, now: float) -> list[Standing]:
        """Those that nobody has needed in their time."""
        late: list[Standing] = []
        while self.waiting and self.waiting[0][0] <= now:
            late.append(self.waiting.popleft()[1])
        if late:
            self.end_row()
            self._patience = min(2 * self._patience, PATIENCE_MAX)
        return late

    def empty(self) -> list[Standing]:
        """What is left; there are none any more."""
        left, self.waiting = self.waiting, deque()
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None
        return [standing for _, standing in left]

    def wanted(self) -> int:
        """How many are to be begun now: what will be used soon if it goes on so, and one for each two that came."""
        if self._in_a_row <= self._patience:
            return 0
        took_s = (self._begun_at[-1] - self._begun_at[0]) / (IN_A_ROW - 1)
        soon = SPARES_MAX if not took_s else int(self.kept_s / _USED_SHARE / took_s)
        if len(self.waiting) + self.coming > min(self._low, soon):
            return 0
        return min(soon, self._in_a_row // 2, BEGUN_MAX)


class Spares:
    """Those of one client; they have no names. Loop thread only.

    There are some only when several transactions were begun soon after others had ended, and while that goes on.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._stocks: dict[float, _Stock] = {}  # the one that was used last comes last
        self._ended_at = float("-inf")
        self._tasks: Bag[asyncio.Task[None]] = Bag()  # that begin some, or abort some

    def take(self, timeout_s: float) -> Standing | None:
        """One is needed that has so long to live: a spare, if there is one."""
        stock, now = self._stock(timeout_s), asyncio.get_running_loop().time()
        stock.note(now, now - self._ended_at <= KEPT_S_MAX)
        spare = stock.take(now)
        if count := stock.wanted():
            stock.coming += count
            self._spawn(self._fill(stock, count), "begin spare transactions")
        return spare

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
            log.debug("no spare transactions: %s", e)
            stock.end_row()
        finally:
            stock.coming -= count
        if self._stocks.get(stock.timeout_s) is stock:
            stock.waiting.extend((until, standing) for standing in begun)
            self._expire(stock)
        else:  # nobody looks there any more
            await self._abort(begun)

    def ended(self) -> None:
        """A transaction has ended."""
        self._ended_at = asyncio.get_running_loop().time()

    def _expire(self, stock: _Stock) -> None:
        """Those that nobody has needed in their time are aborted; it comes back for the others."""
        loop = asyncio.get_running_loop()
        self._drop(stock.take_late(loop.time()))
        if stock.expiry is not None:
            stock.expiry.cancel()
        stock.expiry = loop.call_at(stock.waiting[0][0], self._expire, stock) if stock.waiting else None

    def _drop(self, unused: Sequence[Standing]) -> None:
        if unused:
            self._spawn(self._abort(unused), "abort spare transactions")

    async def _abort(self, unused: Iterable[Standing]) -> None:
        """As far as it can be done: their timeout does it too."""
        await asyncio.gather(*map(self._abort_one, unused))

    async def _abort_one(self, standing: Standing) -> None:
        with contextlib.suppress(EngineError):
            await end(self._pool, standing.id, TransactionState.ABORTED, None)

    def close(self) -> list[Awaitable[None]]:
        """No more of them. What has to be awaited for those that are there, or come, to be aborted."""
        stocks, self._stocks = self._stocks, {}
        left = [standing for stock in stocks.values() for standing in stock.empty()]
        return [*self._tasks, *([self._abort(left)] if left else [])]
