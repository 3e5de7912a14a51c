"""The part that one client has in one transaction: what it has sent and acknowledged there, and what became of it.

Messages and acknowledgements enter when they go out and leave when they are answered. Whoever ends the transaction
waits until all have left, and hears of the first one that has failed. Consumers that acknowledged here are told how the
transaction ended: before that, nothing is acknowledged (semantics 12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from engine._native.produce.sealed import TransactionScope
from engine.client.net.connection import Connection, ignore_outcome
from engine.client.net.pool import Pool
from engine.client.transact.coordination import Answer, is_committed_by
from engine.errors import AlreadyClosedError, InvalidArgumentError
from engine.model.transactions import TRANSACTION_OVER, attempt_number, parse_id

T = TypeVar("T")


class Sender(Protocol):
    """A producer that has taken messages in it."""

    def send_open(self) -> None:
        """Everything that it has taken is on its way when this returns."""


class Acknowledger(Protocol):
    """A consumer that has acknowledged in it."""

    def transaction_ended(self, scope: Scope, counted: bool) -> None:
        """Its acknowledgements have taken effect, or never will."""


class Scope(TransactionScope):
    """Loop thread only, but for join(), and `refusal`, which any thread may read. Raises InvalidArgumentError.

    `error`: the first failure. `abandoned`: it is being aborted,
    and failures are ignored. `closed`: the client closes, which aborts it.
    """

    # What each has of its own as soon as it is another: there is one for every transaction.
    error: Exception | None = None
    abandoned = False
    closed: AlreadyClosedError | None = None
    on_acknowledged: Callable[[], object] | None = None  # called when a consumer wants to know how it ends
    # By which it is known who has committed it: since it was asked for behind the sends, unless that was refused.
    mark: int | None = None
    answer: Answer | None = None  # to the commit behind everything that was sent
    _under_way = _acknowledging = 0
    # What was sent: each entry once and over one connection only, if it is not spread; entries that came under way, and
    # on the wire.
    _wire: Connection | None = None
    _spread = False
    _frames = _entries = _on_wire = 0
    _awaited = 0  # of what is under way, entries with messages for whose ids somebody waits

    def __init__(self, pool: Pool, ident: str, attempt: str | None) -> None:
        super().__init__(parse_id(ident), attempt_number(attempt))
        self.pool = pool
        self.id = ident
        self.attempt = attempt
        self._senders: dict[Sender, None] = {}  # in order, so that a simulation repeats
        self._acknowledgers: dict[Acknowledger, None] = {}
        self._waiting: list[asyncio.Future[None]] = []

    def join(self, sender: Sender) -> None:
        """A producer begins to take messages in it. From any thread."""
        self._senders[sender] = None

    def check_open(self) -> None:
        """Raise what refuses everything new."""
        if self.refusal is not None:
            raise self.refusal

    # -- what is under way -----------------------------------------------------------------------------------

    def entry_entered(self, awaited: bool) -> None:
        """An entry is under way. `awaited`: somebody waits for the id of a message in it."""
        self._under_way += 1
        self._entries += 1
        self._awaited += awaited

    def entry_left(self, awaited: bool) -> None:
        """It is not any more, as left()."""
        self._awaited -= awaited
        self.left()

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for the id of a message that is under way."""
        return self._awaited > 0

    @property
    def stored(self) -> bool:
        """Whether it is known to be committed behind everything that was sent: whatever becomes of the receipts."""
        return self.answer is not None and is_committed_by(self.answer)

    def frame_sent(self, connection: Connection, entries: int) -> None:
        """Entries of it went out in one frame."""
        self._wire = self._wire or connection
        self._spread = self._spread or self._wire is not connection
        self._frames += 1
        self._on_wire += entries

    def scattered(self) -> None:
        """Something goes out again, or in pieces: what is on the wire tells no more whether all of it is."""
        self._spread = True

    def sends_behind_which_to_commit(self) -> tuple[Connection, int] | None:
        """Send everything that was taken. The connection over which all of it went, and in how many frames, where
        it may be committed without waiting for the answers: nothing was sent again, and nothing else is under way.
        """
        for sender in list(self._senders):
            sender.send_open()
        wire = self._wire
        if (
            wire is None
            or wire.lost is not None
            or "commit-behind-sends" not in wire.features
            or self.error is not None
        ):
            return None
        once = not self._spread and self._entries == self._on_wire
        return (wire, self._frames) if once and self._under_way and not self._acknowledging else None

    def left(self) -> None:
        """It is not any more, one way or the other. What has failed says so in the same turn of the loop."""
        self._under_way -= 1
        if not self._under_way:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def fail(self, error: Exception) -> None:
        """Something has failed."""
        self.error = self.error or self.explained(error)

    def explained(self, error: Exception) -> Exception:
        """What befell something in it: that the transaction is over, the closing of the client explains."""
        return self.closed if self.closed is not None and isinstance(error, TRANSACTION_OVER) else error

    async def run(self, acknowledging: Coroutine[Any, Any, T]) -> T:
        """Await an acknowledgement. It goes on to its end when the caller is cancelled, and counts until then."""
        self._under_way += 1
        self._acknowledging += 1
        task = asyncio.ensure_future(self._run(acknowledging))
        task.add_done_callback(ignore_outcome)
        return await asyncio.shield(task)

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
        for sender in list(self._senders):
            sender.send_open()
        while self._under_way:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        if self.error is not None:
            raise self.error

    # -- how it ends -----------------------------------------------------------------------------------------

    def acknowledged_by(self, consumer: Acknowledger) -> None:
        """The consumer is told how it ends."""
        self._acknowledgers[consumer] = None
        if self.on_acknowledged is not None:
            self.on_acknowledged()

    def settle(self, counted: bool) -> None:
        """It has ended; tell the consumers, once."""
        consumers, self._acknowledgers = self._acknowledgers, {}
        for consumer in consumers:
            consumer.transaction_ended(self, counted)


class InTransaction:
    """What producers and consumers take as a `transaction`."""

    scope: Scope


def scope_of(transaction: object, pool: Pool) -> Scope:
    """The scope of a transaction that this client has begun or joined. Raises InvalidArgumentError for anything else.

    From any thread.
    """
    if not isinstance(transaction, InTransaction):
        hint = "; await it, and it is" if isinstance(transaction, Awaitable) else ""
        raise InvalidArgumentError(
            f"transaction is {type(transaction).__name__}; what client.transaction() has begun is right{hint}"
        )
    scope = transaction.scope
    if scope.pool is not pool:
        raise InvalidArgumentError(
            f"the transaction {scope.id} was begun by another client; this one's join_transaction(id) takes part in it"
        )
    return scope
