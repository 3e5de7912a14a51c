"""The part of one client in one transaction: what it has sent and acknowledged there, and the outcome of that.

Messages and acknowledgements enter when they are sent and leave when they are answered. The end of the transaction
waits until all have left, and raises the first failure. Consumers that acknowledged here are told how the transaction
ended: before that, nothing is acknowledged (semantics 12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from engine._native.produce.sealed import TransactionScope
from engine.aio.shielded import shielded
from engine.client.net.connection import Connection, ignore_outcome
from engine.client.net.pool import Pool
from engine.client.transact.coordination import Answer, is_committed_by
from engine.errors import AlreadyClosedError, InvalidArgumentError
from engine.model.transactions import TRANSACTION_OVER, attempt_number, parse_id

T = TypeVar("T")


class Publisher(Protocol):
    """A producer that has taken messages of the transaction."""

    def send_open(self) -> None:
        """Send everything that it has taken before this returns."""


class Acknowledger(Protocol):
    """A consumer that has acknowledged in the transaction."""

    def transaction_ended(self, scope: Scope, counted: bool) -> None:
        """The transaction has ended. `counted`: its acknowledgements have taken effect; else they never will."""


class Scope(TransactionScope):
    """Loop thread only, but for join(), and `refusal`, which any thread may read. Raises InvalidArgumentError.

    `error`: the first failure. `abandoned`: it is being aborted, and
    failures are ignored. `closed`: set when the client closes, which aborts it.
    """

    # Defaults on the class, since there is a scope for every transaction.
    error: Exception | None = None
    abandoned = False
    closed: AlreadyClosedError | None = None
    on_acknowledged: Callable[[], object] | None = None  # called when a consumer needs to know how it ends
    # The commit token: from the request of a commit behind the sends on, unless that was refused.
    mark: int | None = None
    answer: Answer | None = None  # to the commit behind everything that was sent
    _acknowledging = 0

    def __init__(self, pool: Pool, ident: str, attempt: str | None) -> None:
        super().__init__(parse_id(ident), attempt_number(attempt))
        self.pool = pool
        self.id = ident
        self.attempt = attempt
        self._publishers: dict[Publisher, None] = {}  # in order, so that a simulation repeats
        self._acknowledgers: dict[Acknowledger, None] = {}
        self._waiting: list[asyncio.Future[None]] = []

    def join(self, publisher: Publisher) -> None:
        """A producer begins to take messages of it. From any thread."""
        self._publishers[publisher] = None

    def check_open(self) -> None:
        """Raise the error that refuses everything new."""
        if self.refusal is not None:
            raise self.refusal

    # -- what is under way -----------------------------------------------------------------------------------

    @property
    def awaited(self) -> bool:
        """Whether the id of a message under way is awaited."""
        return self.waited_for > 0

    @property
    def stored(self) -> bool:
        """Whether it is known to be committed behind everything that was sent, whatever becomes of the receipts."""
        return self.answer is not None and is_committed_by(self.answer)

    def sends_behind_which_to_commit(self) -> tuple[Connection, int] | None:
        """Send everything that was taken. Returns (connection, number of frames) where it may be committed without
        waiting for the answers: all was sent once, over this connection, and nothing else is under way.
        """
        for publisher in list(self._publishers):
            publisher.send_open()
        wire: Connection | None = self.wire
        if (
            wire is None
            or wire.lost is not None
            or "commit-behind-sends" not in wire.features
            or self.error is not None
        ):
            return None
        once = not self.spread and self.entries == self.on_wire
        return (wire, self.frames) if once and self.under_way and not self._acknowledging else None

    def all_left(self) -> None:
        """Nothing is under way any more; fail() is called in this turn of the loop if the last of it has failed."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception) -> None:
        """Note the first failure."""
        self.error = self.error or self.explained(error)

    def explained(self, error: Exception) -> Exception:
        """The error to report: that the client was closed, where the transaction is over for that reason."""
        return self.closed if self.closed is not None and isinstance(error, TRANSACTION_OVER) else error

    def run(self, acknowledging: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Start an acknowledgement. It continues when its awaiter is cancelled, and is under way until its end."""
        self.under_way += 1
        self._acknowledging += 1
        task = asyncio.ensure_future(self._run(acknowledging))
        task.add_done_callback(ignore_outcome)
        return shielded(task)

    async def _run(self, acknowledging: Coroutine[Any, Any, T]) -> T:
        try:
            return await acknowledging
        except Exception as e:
            self.fail(e)
            raise self.explained(e) from e.__cause__
        finally:
            self._acknowledging -= 1
            self.left()

    async def flush(self) -> None:
        """Wait until nothing is under way. Raises the first failure."""
        for publisher in list(self._publishers):
            publisher.send_open()
        while self.under_way:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        if self.error is not None:
            raise self.error

    # -- how it ends -----------------------------------------------------------------------------------------

    def acknowledged_by(self, consumer: Acknowledger) -> None:
        """Tell the consumer how it ends."""
        self._acknowledgers[consumer] = None
        if self.on_acknowledged is not None:
            self.on_acknowledged()

    def settle(self, counted: bool) -> None:
        """It has ended: tell the consumers, once."""
        consumers, self._acknowledgers = self._acknowledgers, {}
        for consumer in consumers:
            consumer.transaction_ended(self, counted)


class InTransaction:
    """Base of what producers and consumers accept as a `transaction`."""

    scope: Scope


def scope_of(transaction: object, pool: Pool) -> Scope:
    """The scope of a transaction that this client has begun or joined. Raises InvalidArgumentError for anything else.

    From any thread.
    """
    if not isinstance(transaction, InTransaction):
        hint = "; await it first" if isinstance(transaction, Awaitable) else ""
        raise InvalidArgumentError(
            f"transaction must be one that client.transaction() has begun, got {type(transaction).__name__}{hint}"
        )
    scope = transaction.scope
    if scope.pool is not pool:
        raise InvalidArgumentError(
            f"the transaction {scope.id} is another client's; take part in it with this client's join_transaction(id)"
        )
    return scope
