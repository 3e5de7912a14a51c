"""`TransactionSends`: what one connection has sent in one transaction, so that its commit may come right behind it.

A client that has sent everything need not wait for receipts before it ends the transaction. It says with END_TXN how
many frames it has sent; when these are in the log, their operation record and the header are written at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from engine.broker.transactions.operations import PARTS_MAX, Held
from engine.errors import InvalidArgumentError
from engine.model.transactions import parse_id

TRANSACTIONS_MAX = 1024  # of one connection; of those that are forgotten, the end is asked for once more


class TransactionSends:
    """Of one transaction, over one connection. Loop thread only.

    `frames` that came; `unlogged`: those of them that are not in the log for good; `open`: those that are not answered.
    """

    __slots__ = ("_waiting", "failed", "frames", "open", "unlogged")

    def __init__(self) -> None:
        self.frames = self.unlogged = self.open = 0
        self.failed = False
        self._waiting: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """One came."""
        self.frames += 1
        self.unlogged += 1
        self.open += 1

    def logged(self) -> None:
        """One is in the log for good."""
        self.unlogged -= 1
        self._wake()

    def fail(self) -> None:
        """One will be refused."""
        self.failed = True
        self._wake()

    def answered(self, append: asyncio.Future[Any]) -> None:
        """One that came was appended, or refused."""
        self.open -= 1
        self.failed = self.failed or append.cancelled() or append.exception() is not None
        self._wake()

    def _wake(self) -> None:
        # Not before it is decided: each turn of who waits holds up the rest of the frames.
        if self._waiting is not None and (self.failed or not self.unlogged) and not self._waiting.done():
            self._waiting.set_result(None)

    async def complete(self, frames: int, held: Held) -> bool:
        """Wait until all that came is in the log, and recorded or held; whether that is so many frames."""
        if self.frames != frames:
            return False
        while not self.failed and (count := held.count(self)) <= PARTS_MAX:
            if not self.unlogged and self.open <= count:
                return True
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return False


class ConnectionSends:
    """Of one connection, by transaction. Loop thread only."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[int, TransactionSends] = {}

    def __len__(self) -> int:
        return len(self._of)

    def of(self, number: int) -> TransactionSends:
        """What was sent in a transaction."""
        found = self._of.get(number)
        if found is None:
            if len(self._of) >= TRANSACTIONS_MAX:
                del self._of[next(iter(self._of))]
            found = self._of[number] = TransactionSends()
        return found

    def dropped(self, transaction: str | None) -> None:
        """A frame was not taken: the transaction that it was in, if in any, is not committed as if all had come."""
        if transaction is not None:
            with contextlib.suppress(InvalidArgumentError):
                self.of(parse_id(transaction)).fail()

    def forget(self, number: int) -> None:
        """It has ended. Idempotent."""
        self._of.pop(number, None)
