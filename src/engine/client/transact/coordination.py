"""Requests to the coordinator of transactions, which is any broker: all of them use the same records.

They go to the broker that the client uses for what any broker can answer. When it does not answer, or cannot reach the
metadata store, the next request goes to another broker, and those after it, too, as long as that one answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from engine.aio.staggered import Staggered
from engine.client.net.connection import Connection
from engine.client.net.pool import Pool, persist
from engine.errors import (
    ConnectError,
    EngineError,
    TimeoutError,
    TransactionNotFoundError,
    UnknownOutcomeError,
    UnsupportedError,
)
from engine.model.transactions import TransactionState, accepted_numbers
from engine.wire import commands
from engine.wire.commands import Request

Answer = asyncio.Future[commands.Ended]

_Answered = TypeVar("_Answered")

_ACTIONS = {TransactionState.COMMITTED: "commit", TransactionState.ABORTED: "abort"}


class Standing(NamedTuple):
    """The state of a transaction. `left_s`: seconds until it is aborted, None where the broker does not say.
    `accepted`: the numbers of the attempts that a commit has accepted; None: all. `mark`: the commit token of the
    commit that ended it, if it has one.
    """

    id: str
    state: TransactionState
    deadline_ms: int
    left_s: float | None
    accepted: tuple[int, ...] | None
    mark: int | None


async def begin(pool: Pool, timeout_s: float, name: str | None) -> Standing:
    """A new transaction, or the one of that name. Raises ConnectError, TimeoutError, InvalidArgumentError."""
    request = commands.NewTxn(timeout=timeout_s, name=name)

    async def once() -> Standing:
        begun = await _ask(pool, request)
        return _standing(begun.id, begun)

    return await persist(pool, once, pool.options.operation_timeout, "beginning a transaction")


async def begin_some(pool: Pool, timeout_s: float, count: int) -> list[Standing]:
    """At most `count` new transactions, with one request and no retry. Raises EngineError."""
    found = await _ask(pool, commands.NewTxn(timeout=timeout_s, count=count))
    first = _standing(found.id, found)
    return [first, *(first._replace(id=ident) for ident in found.more or ())]


async def state_of(pool: Pool, ident: str) -> Standing:
    """The present state. Raises TransactionNotFoundError, ConnectError, TimeoutError."""
    once = lambda: _state_of(pool, ident)  # noqa: E731
    return await persist(pool, once, pool.options.operation_timeout, f"asking for the state of the transaction {ident}")


async def _state_of(pool: Pool, ident: str) -> Standing:
    return _standing(ident, await _ask(pool, commands.TxnState(id=ident)))


async def is_committed(pool: Pool, ident: str, mark: int | None) -> bool:
    """Whether it was committed with that commit token. Raises ConnectError, TimeoutError, UnknownOutcomeError."""
    try:
        found = await state_of(pool, ident)
    except TransactionNotFoundError as e:
        raise _forgotten(ident, e) from e
    return found.state is TransactionState.COMMITTED and found.mark == mark


def send_commit(
    sends: tuple[Connection, int],
    ident: str,
    accepted: Sequence[str] | None,
    mark: int,
    timeout_s: float,
) -> Answer:
    """Request a commit behind `sends`, (connection, number of SEND frames sent over it): it is written together with
    what else is sent in this turn of the loop.

    The future ends within `timeout_s`, also when it is not awaited any more.
    """
    connection, frames = sends
    request = commands.EndTxn(id=ident, action="commit", accepted=_listed(accepted), sent=frames, mark=mark)
    return connection.start_request(request, timeout_s=timeout_s)


def _request(ident: str, state: TransactionState, accepted: Sequence[str] | None) -> commands.EndTxn:
    return commands.EndTxn(id=ident, action=_ACTIONS[state], accepted=_listed(accepted))


def _listed(accepted: Sequence[str] | None) -> list[str] | None:
    return None if accepted is None else list(accepted)


def is_committed_by(answer: Answer) -> bool:
    """Whether the answer to send_commit() is that it is committed."""
    if not answer.done() or answer.cancelled() or answer.exception() is not None:
        return False
    return answer.result().state == "COMMITTED"


async def committed_behind(answer: Answer, callers: Staggered) -> TransactionState | None:
    """The outcome of send_commit(). None: unknown. `callers`: those of all commits of the client.

    The transaction stays open when the broker has not taken everything that was sent. Raises TransactionConflictError,
    TransactionNotFoundError.
    """
    try:
        return TransactionState((await callers.shielded(answer)).state)
    except (ConnectError, TimeoutError, UnknownOutcomeError):
        return None
    except EngineError as e:
        if not e.layout_stale:
            raise
        return None


async def end(
    pool: Pool,
    ident: str,
    state: TransactionState,
    accepted: Sequence[str] | None,
    *,
    unsure: bool = False,
) -> TransactionState:
    """End it; its final state. Where an answer was lost, the state is requested, and it is ended again if it is open.

    `unsure`: an answer was lost before. Raises TransactionConflictError, TransactionNotFoundError; UnknownOutcomeError
    when no broker has answered.
    """
    request = _request(ident, state, accepted)
    numbers = accepted_numbers(accepted)
    loop, backoff = asyncio.get_running_loop(), pool.retry_delays()
    deadline = loop.time() + pool.options.operation_timeout
    while True:
        try:
            if unsure and (found := await _state_of(pool, ident)).state.final and found.accepted == numbers:
                return found.state  # else END_TXN is answered with the error
            return TransactionState((await _ask(pool, request)).state)
        except (ConnectError, TimeoutError, UnknownOutcomeError) as e:
            unsure, why = True, str(e)
        except TransactionNotFoundError as e:
            if not unsure:
                raise
            raise _forgotten(ident, e) from e
        except EngineError as e:
            if not e.layout_stale:
                raise
            why = str(e)
        delay = backoff.next()
        if pool.closed or loop.time() + delay >= deadline:
            raise UnknownOutcomeError(
                f"whether the transaction {ident} is {state} is unknown: {why}; "
                "it is, or it is aborted when its timeout is over"
            )
        await asyncio.sleep(delay)


def _forgotten(ident: str, error: TransactionNotFoundError) -> UnknownOutcomeError:
    return UnknownOutcomeError(f"the transaction {ident} has ended, and its outcome is not recorded any more: {error}")


async def _ask(pool: Pool, request: Request[_Answered]) -> _Answered:
    """One request to the broker in use. When it fails, another one is, if there is one.

    A request that has timed out may still take effect: end() looks at the state before it repeats it.
    """

    async def ask(timeout_s: float) -> _Answered:
        connection = await pool.get()
        if "transactions" not in connection.features:
            raise UnsupportedError(f"the broker at {connection.url} lacks the feature transactions")
        return await connection.request(request, timeout_s)

    return await pool.anywhere(ask)


def _standing(ident: str, found: commands.Standing) -> Standing:
    return Standing(
        id=ident,
        state=TransactionState(found.state),
        deadline_ms=found.deadline_ms,
        left_s=found.left,
        accepted=None if found.accepted is None else tuple(found.accepted),
        mark=found.mark,
    )
