"""`TransactionSends`: counts the frames of one transaction on one connection, for a commit right behind them.

A client need not wait for receipts before it ends a transaction: END_TXN has the number of frames that it has sent.
When as many are in the log, their operation record and the header are written together (session/commit_behind.py).
"""

from __future__ import annotations

import asyncio
import contextlib

from engine._native.serve.undecided import FrameCounts, runs_of
from engine.broker.transactions.operations import PARTS_MAX, Held
from engine.errors import CorruptionError, InvalidArgumentError
from engine.model.transactions import parse_id

TRANSACTIONS_MAX = 1024  # of one connection; the oldest are dropped, and their clients end them in the usual way


class TransactionSends(FrameCounts):
    """One transaction on one connection. Loop thread only.

    `frames`: received; `unlogged`: of them, not durable in the log yet; `open`: of them, not answered yet.
    """

    __slots__ = ()

    async def complete(self, frames: int, held: Held) -> bool:
        """Wait until all frames are in the log, and recorded or held. False: not so many came, or one failed.

        Nor may more come meanwhile: they are sent again, by a producer that was refused something before them, and
        such a frame is answered with the record of its original, which is held.
        """
        while self.frames == frames and not self.failed and (count := held.count(self)) <= PARTS_MAX:
            if not self.unlogged and self.open <= count:
                return True
            self.waiting = asyncio.get_running_loop().create_future()
            await self.waiting
        return False


class ConnectionSends:
    """The frames of one connection, by transaction. Loop thread only."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[int, TransactionSends] = {}

    def __len__(self) -> int:
        return len(self._of)

    def of(self, number: int) -> TransactionSends:
        """The frames of a transaction."""
        found = self._of.get(number)
        if found is None:
            if len(self._of) >= TRANSACTIONS_MAX:
                del self._of[next(iter(self._of))]
            found = self._of[number] = TransactionSends()
        return found

    def dropped(self, transaction: str | None, several: memoryview | None = None) -> None:
        """A frame was dropped: its transaction, if it has one, cannot be committed right behind it.

        `several`: the entries of a frame of several transactions. Where these are no entries, none is committed behind
        them: fewer frames came than its client has sent.
        """
        if transaction is not None:
            with contextlib.suppress(InvalidArgumentError):
                self.of(parse_id(transaction)).fail()
        elif several is not None:
            with contextlib.suppress(CorruptionError, InvalidArgumentError):
                for run in runs_of(several):
                    self.of(run.number).fail()

    def forget(self, number: int) -> None:
        """The transaction has ended. Idempotent."""
        self._of.pop(number, None)
