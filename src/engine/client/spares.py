"""`Spares`: transactions that are begun with the end of others, for whoever runs one after the other.

To begin a transaction takes a commit of the metadata store, and so does its end. Who goes from one to the next need not
wait for both: one request, and one commit, ends this one and begins the next. Nothing takes part in a spare until
somebody has it, so it holds nobody up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from typing import Any

from engine.client.coordination import Standing, begin, end
from engine.client.pool import Pool
from engine.errors import EngineError
from engine.limits import TRANSACTION_TIMEOUT_S_MAX
from engine.model.transactions import TransactionState

IN_A_ROW = 8  # begun soon after another one's end, before there are spares
SPARES_MAX = 64
KEPT_S_MAX = 1.0
_KEPT_SHARE = 64  # of its timeout


def kept_s(timeout_s: float) -> float:
    """How long a spare is kept. Its deadline is later by that: whoever gets it has all the time that was asked for."""
    kept = min(KEPT_S_MAX, timeout_s / _KEPT_SHARE)
    return max(0.0, min(kept, TRANSACTION_TIMEOUT_S_MAX - timeout_s))


class _Spare:
    """One of them. `expiry`: then it is not needed."""

    __slots__ = ("expiry", "standing", "timeout_s")

    def __init__(self, standing: Standing, timeout_s: float) -> None:
        self.standing = standing
        self.timeout_s = timeout_s
        self.expiry: asyncio.TimerHandle | None = None

    def let_be(self) -> None:
        """It does not wait any more."""
        if self.expiry is not None:
            self.expiry.cancel()


class Wanted:
    """A spare that is asked for. `timeout_s`: what the coordinator is told."""

    __slots__ = ("_asked_at", "_for_s", "_spares", "timeout_s")

    def __init__(self, spares: Spares, for_s: float) -> None:
        self.timeout_s = for_s + kept_s(for_s)
        self._spares = spares
        self._for_s = for_s
        self._asked_at = asyncio.get_running_loop().time()

    def come(self, standing: Standing) -> None:
        """It was begun."""
        self._spares.add(standing, self._for_s, self._asked_at + kept_s(self._for_s))


class Spares:
    """Those of one client; they have no names. Loop thread only.

    There are some only when several transactions were begun soon after others had ended, and while that goes on.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: deque[_Spare] = deque()
        self._in_a_row = 0
        self._ended_at = float("-inf")
        self._closed = False

    async def begin(self, timeout_s: float) -> Standing:
        """A transaction that has so long to live: a spare, if there is one. Raises as coordination.begin()."""
        soon = asyncio.get_running_loop().time() - self._ended_at <= KEPT_S_MAX
        self._in_a_row = self._in_a_row + 1 if soon else 0
        while self._waiting:
            spare = self._waiting.popleft()
            spare.let_be()
            if spare.timeout_s == timeout_s:
                return spare.standing
            self._drop(spare)
        return await begin(self._pool, timeout_s, None)

    def wanted(self, timeout_s: float) -> Wanted | None:
        """A transaction with that timeout is about to be committed; what is to be begun with it, if anything."""
        if self._closed or self._in_a_row < IN_A_ROW or len(self._waiting) >= SPARES_MAX or not kept_s(timeout_s):
            return None
        return Wanted(self, timeout_s)

    def add(self, standing: Standing, timeout_s: float, until: float) -> None:
        """There is one, for whoever asks for a transaction with that timeout by then."""
        spare, loop = _Spare(standing, timeout_s), asyncio.get_running_loop()
        if self._closed or loop.time() >= until:
            self._in_a_row = 0
            self._drop(spare)
            return
        spare.expiry = loop.call_at(until, self._expired, spare)
        self._waiting.append(spare)

    def ended(self) -> None:
        """A transaction has ended."""
        self._ended_at = asyncio.get_running_loop().time()

    def _expired(self, spare: _Spare) -> None:
        """Nobody needed it."""
        self._in_a_row = 0
        self._waiting.remove(spare)
        self._drop(spare)

    def _drop(self, spare: _Spare) -> None:
        self._pool.tasks.spawn(self._abort(spare), name="abort a spare transaction")

    async def _abort(self, spare: _Spare) -> None:
        """As far as it can be done: its timeout does it too."""
        with contextlib.suppress(EngineError):
            await end(self._pool, spare.standing.id, TransactionState.ABORTED, None)

    def close(self) -> list[Coroutine[Any, Any, None]]:
        """No more of them. What has to be awaited for those that are left to be aborted."""
        self._closed = True
        left, self._waiting = self._waiting, deque()
        for spare in left:
            spare.let_be()
        return [self._abort(spare) for spare in left]
