"""`AsyncTransaction`: sends and acknowledgements that take effect together, or not at all.

The way of a commit:

    behind the sends   If everything was sent once over one connection, and nothing else is under way, END_TXN follows
                       the SEND frames at once, with their number and a random commit token. The broker commits only if
                       it took all of these frames; else it answers that the transaction is open.
    flush, then end    Otherwise, and after that answer, everything sent and acknowledged here is awaited. A failure
                       aborts the transaction. Then END_TXN.
    lost answers       After a lost answer the outcome is unknown: the state is requested, and the commit token tells
                       whether it was this commit that ended the transaction. Entries whose receipts were lost count as
                       stored when the commit that followed them counts.
    settle             The outcome is passed on once: to the consumers that acknowledged in it, which go on or go back
                       to the cursor, and to everything that is added later, which is refused.

An end (commit, abort) runs alone: another one waits for it, and finds the outcome. A transaction that is ended
elsewhere, or by its timeout, is found out by asking with growing pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Literal, Self, cast

from engine.aio.backoff import RetryDelay
from engine.aio.bag import Bag
from engine.aio.staggered import Staggered
from engine.aio.turns import Turns
from engine.client.base.entering import Entering
from engine.client.net.children import Children
from engine.client.net.deadlines import Deadlines
from engine.client.net.pool import CLOSED, Pool, call_threadsafe
from engine.client.transact.coordination import (
    Answer,
    Standing,
    begin,
    committed_behind,
    end,
    is_committed,
    send_commit,
    state_of,
)
from engine.client.transact.prefetched import Prefetched
from engine.client.transact.scope import InTransaction, Scope
from engine.errors import (
    AlreadyClosedError,
    ConnectError,
    EngineError,
    TimeoutError,
    TransactionConflictError,
    TransactionNotFoundError,
    UnknownOutcomeError,
)
from engine.limits import TRANSACTION_TIMEOUT_S_MAX, TRANSACTION_TIMEOUT_S_MIN
from engine.model.checks import check_number
from engine.model.names import check_name
from engine.model.transactions import (
    MARK_BITS,
    TransactionState,
    accepted_numbers,
    attempt_number,
    parse_id,
)

log = logging.getLogger(__name__)

# Callers of commits that go on in one turn of the loop: what they send next is on its way while the others make theirs.
COMMITTED_AT_ONCE = 16
GOODBYE_S_MAX = 2.0  # a closing client waits this long for its open transactions to be aborted
LOST = "it is aborted; use `with`, or commit() or abort()"
OWN_MAX = 4  # open at once for what the client does by itself: a role may have few
POLL_S_FIRST = 0.05  # between two requests for the state of a transaction that is ended elsewhere
POLL_S_MAX = 2.0

TransactionStateName = Literal["OPEN", "COMMITTED", "ABORTED"]


class AsyncTransaction(InTransaction):
    """Sends and acknowledgements, over any topics, that take effect together or not at all.

    Made by `client.transaction()` and `client.join_transaction()`; both are awaited, or entered with `async with`. At
    the end of the block one that was begun is committed, or aborted when the block raises; one that was joined is
    flushed, and stays open. Pass it to `producer.send(…, transaction=)`, `consumer.acknowledge(…, transaction=)` and
    the like of the client that made it.

    A transaction that is not ended is aborted when its timeout is over; one that this client has begun, and that is
    collected before, is aborted then, with a ResourceWarning.
    """

    # The one that the client holds; a program has a twin of it, with the same `__dict__`, which can be collected.
    _working: AsyncTransaction | None = None  # None: it has ended, or is not the program's alone
    _lost: Callable[[AsyncTransaction], None]

    def __init__(
        self,
        pool: Pool,
        standing: Standing,
        *,
        name: str | None,
        attempt: str | None,
        joined: bool,
        ended: Callable[[Any], object],
        marks: Callable[[], int],
        callers: Staggered,
    ) -> None:
        """`ended`: called once it has. `marks`: another commit token each time. `callers`: those of all commits."""
        self.scope = Scope(pool, standing.id, attempt)
        self._pool = pool
        self._marks = marks
        self._callers = callers
        self._name = name
        self._ended = ended
        self.joined = joined  # it is ended elsewhere: leaving the block does not end it
        self._state = TransactionState.OPEN
        self._accepted: tuple[int, ...] | None = None
        self._endings = Turns()
        self._following = self._over = False
        if joined:
            self.scope.on_acknowledged = self.follow  # consumers need to know
        if standing.state.final:
            self._learn(standing.state, standing.accepted)

    # -- whose it is ---------------------------------------------------------------------------------------------

    def handle(self, lost: Callable[[AsyncTransaction], None]) -> AsyncTransaction:
        """The program's. `lost`: called with the one that it works with, on any thread, if it is collected before the
        transaction has ended.
        """
        self._working, self._lost = self, lost
        twin = object.__new__(type(self))
        twin.__dict__ = self.__dict__
        return twin

    def disown(self) -> AsyncTransaction:
        """The one that the client holds. What has this handle aborts it itself."""
        working, self._working = self._working, None
        return working or self

    @property
    def forgotten(self) -> bool:
        """Whether a program may lose it without a word."""
        return self.joined or self._over or self.scope.abandoned

    def __del__(self) -> None:
        working = self.__dict__.get("_working")
        if working is not None and working is not self and not self.forgotten:
            self._lost(working)

    # -- what it is ------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """16 hexadecimal digits, by which others join it."""
        return self.scope.id

    @property
    def name(self) -> str | None:
        """The name that was given to client.transaction()."""
        return self._name

    @property
    def attempt(self) -> str | None:
        """The attempt to which everything done with this object belongs."""
        return self.scope.attempt

    @property
    def state(self) -> TransactionStateName:
        """ "OPEN", "COMMITTED" or "ABORTED", as far as this client knows, without a request."""
        return cast(TransactionStateName, self._state.value)

    # -- ending it -------------------------------------------------------------------------------------------

    async def commit(self, accepted: Sequence[str] | None = None) -> None:
        """Make everything in it take effect. First everything sent and acknowledged in it here is awaited; if some of
        that has failed, it is aborted instead, and the failure is raised.

        `accepted`: the attempts whose writes and acknowledgements take effect; those of other attempts, and what was
        done without an attempt, never do. None: everything does. To commit once more changes nothing.

        Raises TransactionConflictError when it was aborted, by its timeout or elsewhere; InvalidArgumentError;
        TransactionNotFoundError; UnknownOutcomeError when no broker has answered whether it is committed: it is, or it
        will be aborted when its timeout is over. A cancelled commit aborts it, unless it is too late for that.
        """
        numbers = accepted_numbers(accepted)
        if self._state.final or self.scope.abandoned:
            self._check_end(TransactionState.COMMITTED, numbers)
            return
        self._refuse("is being committed")
        names = None if accepted is None else list(accepted)
        if not await self._commit_behind_sends(names, numbers) or self.scope.awaited:
            await self._flush()
        if not self._over:
            unsure = self.scope.mark is not None
            ask = lambda: end(  # noqa: E731
                self._pool, self.id, TransactionState.COMMITTED, names, unsure=unsure
            )
            await self._endings.take(lambda: self._end(TransactionState.COMMITTED, numbers, ask))
        elif self._state.final:
            self._check_end(TransactionState.COMMITTED, numbers)  # it may have been ended elsewhere meanwhile
        elif self.scope.refusal is not None:
            raise self.scope.refusal

    async def _commit_behind_sends(self, names: list[str] | None, numbers: tuple[int, ...] | None) -> bool:
        """Commit without waiting for the answers to what was sent, where that is possible, once. Whether it is
        committed, with everything that was sent. Raises as commit().
        """
        try:
            await asyncio.sleep(0)  # what other transactions send in this turn goes together with it
        except asyncio.CancelledError:
            if not self._over:
                self._pool.tasks.spawn(self.abort_quietly(), name=f"abort {self.id}")
            raise
        asked = self.scope.mark is not None or not self._endings.idle
        sends = None if asked else self.scope.sends_behind_which_to_commit()
        if sends is None:
            return False
        mark = self.scope.mark = self._marks()
        timeout_s = self._pool.options.operation_timeout
        answer = send_commit(sends, self.id, names, mark, timeout_s)  # at once, so that it arrives together with them
        self.scope.answer = answer
        self._endings.wait_for(answer)
        try:
            return await self._hear_behind(answer, numbers)
        except asyncio.CancelledError:
            self._endings.begin(lambda: self._go_on(answer, numbers))
            raise

    async def _hear_behind(self, answer: Answer, numbers: tuple[int, ...] | None) -> bool:
        found = await self._hear(TransactionState.COMMITTED, numbers, committed_behind(answer, self._callers))
        if found is TransactionState.OPEN:
            self.scope.mark = None  # it was refused
        return found is TransactionState.COMMITTED

    async def _go_on(self, answer: Answer, numbers: tuple[int, ...] | None) -> None:
        """The caller of commit() was cancelled while it was under way: abort unless it was committed."""
        with contextlib.suppress(EngineError):
            await self._hear_behind(answer, numbers)
        if not self._over and not self.scope.abandoned:
            self._pool.tasks.spawn(self.abort_quietly(), name=f"abort {self.id}")

    async def _flush(self) -> None:
        """A failure aborts it, unless it was committed behind the sends, and only their answers are missing."""
        try:
            await self.scope.flush()
        except asyncio.CancelledError:
            if not self._over:
                self._pool.tasks.spawn(self.abort_quietly(), name=f"abort {self.id}")
            raise
        except Exception:
            if self.scope.mark is None or not await self._is_mine():
                await self.abort_quietly()
                raise

    async def _is_mine(self) -> bool:
        """Whether this commit has ended it. Raises UnknownOutcomeError."""
        try:
            return await is_committed(self._pool, self.id, self.scope.mark)
        except (ConnectError, TimeoutError) as e:
            raise UnknownOutcomeError(f"whether the transaction {self.id} is committed is unknown: {e}") from e

    async def abort(self) -> None:
        """Abort: nothing in it ever takes effect. A second abort changes nothing.

        Queue messages that were acknowledged in it are due again; stream consumers go back to what is acknowledged.
        Raises TransactionConflictError when it is committed; TransactionNotFoundError; UnknownOutcomeError when no
        broker has answered: it is aborted when its timeout is over at the latest.
        """
        self.scope.abandoned = True
        self._refuse("is being aborted")
        ask = lambda: end(self._pool, self.id, TransactionState.ABORTED, None)  # noqa: E731
        await self._endings.take(lambda: self._end(TransactionState.ABORTED, None, ask))

    async def flush(self) -> None:
        """Wait until everything sent and acknowledged in it here is durable. Raises the first failure."""
        await self.scope.flush()

    def leave(self) -> None:
        """Leave it open for others: neither the end of the block nor that of this client ends it any more, as if it
        was joined. It can still be committed or aborted, by its id, by its name, or with this object.
        """
        self.joined = True

    async def _end(
        self,
        state: TransactionState,
        numbers: tuple[int, ...] | None,
        ask: Callable[[], Awaitable[TransactionState]],
    ) -> None:
        """End it, unless it has ended. One end at a time."""
        if self._state.final or (self.scope.abandoned and state is TransactionState.COMMITTED):
            self._check_end(state, numbers)
        else:
            await self._hear(state, numbers, ask())

    async def _hear(
        self,
        state: TransactionState,
        numbers: tuple[int, ...] | None,
        answer: Awaitable[TransactionState | None],
    ) -> TransactionState | None:
        """Await the answer to an end, and learn from it: the final state; OPEN; None: unknown."""
        try:
            found = await answer
        except TransactionConflictError as e:
            with contextlib.suppress(EngineError):
                standing = await state_of(self._pool, self.id)
                self._learn(standing.state, standing.accepted)
            raise self.scope.explained(e) from None
        except TransactionNotFoundError as e:
            self._is_forgotten(e)
            raise
        if found is not None and found.final:
            self._learn(found, numbers)
            self._check_end(state, numbers)
        return found

    def _check_end(self, state: TransactionState, accepted: tuple[int, ...] | None) -> None:
        """Raise TransactionConflictError unless it has ended that way."""
        if self._state is not state:
            how = self._state if self._state.final else "being aborted"
            raise self.scope.explained(TransactionConflictError(f"the transaction {self.id} is {how}, and stays so"))
        if accepted != self._accepted:
            raise TransactionConflictError(f"the transaction {self.id} was committed with other attempts accepted")

    async def abort_quietly(self) -> None:
        """abort() that logs instead of raising."""
        try:
            await self.abort()
        except EngineError as e:
            log.info("transaction %s was not aborted; its timeout does it: %s", self.id, e)

    # -- how it has ended ------------------------------------------------------------------------------------

    def _refuse(self, why: str) -> None:
        if not self._over:
            refusal = TransactionConflictError(f"the transaction {self.id} {why}: it takes nothing more")
            self.scope.refusal = self.scope.explained(refusal)

    def _learn(self, state: TransactionState, accepted: tuple[int, ...] | None) -> None:
        """The coordinator reports this state. The first time that it is final, it is passed on."""
        if self._over or not state.final:
            return
        self._state, self._accepted = state, accepted
        counted = accepted is None or self.scope.attempt_number in accepted
        self._settle(
            TransactionConflictError(f"the transaction {self.id} is {state}: it takes nothing more"),
            state is TransactionState.COMMITTED and counted,
        )

    def _is_forgotten(self, error: TransactionNotFoundError) -> None:
        """It ended long ago, and the outcome is not recorded any more. Consumers go back to their cursors."""
        if not self._over:
            self._settle(error, False)

    def _settle(self, refusal: EngineError, counted: bool) -> None:
        self._over = True
        self.scope.refusal = self.scope.explained(refusal)
        self.scope.settle(counted)
        working, self._working = self._working, None
        self._ended(working or self)

    def follow(self) -> None:
        """Find out how it ends, in the background: by its timeout, or elsewhere."""
        if not self._following and not self._over:
            self._following = True
            self._pool.tasks.spawn(self._poll(), name=f"poll transaction {self.id}")

    async def _poll(self) -> None:
        delays = RetryDelay(self._pool.options.rng, initial=POLL_S_FIRST, maximum=POLL_S_MAX)
        while not self._over:
            try:
                standing = await state_of(self._pool, self.id)
                self._learn(standing.state, standing.accepted)
            except TransactionNotFoundError as e:
                self._is_forgotten(e)
            except AlreadyClosedError:
                return
            except EngineError as e:
                log.debug("polling transaction %s: %s", self.id, e)
            await asyncio.sleep(delays.next())

    def close(self) -> None:
        """The client closes: it refuses everything, and failures in it are reported as that."""
        self.scope.refusal = self.scope.closed = AlreadyClosedError(CLOSED)

    def forget(self) -> None:
        """The client has closed."""
        self.close()
        self._over = True
        self._working = None

    # -- as a context ----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self.joined:
            if error is None:
                await self.flush()
        elif error is not None:
            if not self._state.final:
                await self.abort_quietly()
        elif not self.scope.abandoned and self._state is not TransactionState.COMMITTED:  # the block may have ended it
            await self.commit()

    def __repr__(self) -> str:
        attempt = "" if self.attempt is None else f" attempt {self.attempt!r}"
        return f"<{type(self).__name__} {self.id}{attempt} {self._state}>"


class Transactions:
    """The open transactions of one client. Loop thread only."""

    def __init__(self, pool: Pool, children: Children) -> None:
        self._pool = pool
        self._children = children
        self._check_open = children.check_open  # raises from the beginning of the client's close() on
        self._open: Bag[AsyncTransaction] = Bag()
        self._deadlines = Deadlines[AsyncTransaction](AsyncTransaction.follow)  # of the open ones
        self._prefetched = Prefetched(pool)
        self._own = asyncio.Semaphore(OWN_MAX)
        # Commit tokens: each client counts on from a random number of its own.
        self._marks = count(pool.options.rng.getrandbits(MARK_BITS - 1)).__next__
        self._committing = Staggered(COMMITTED_AT_ONCE)

    def begin(self, timeout: float, name: str | None) -> Entering[AsyncTransaction]:
        """A new transaction, or the one of that name."""
        return Entering("transaction(…)", lambda: self._begin(timeout, name))

    async def _begin(self, timeout: float, name: str | None) -> AsyncTransaction:
        check_number("timeout", timeout, TRANSACTION_TIMEOUT_S_MIN, TRANSACTION_TIMEOUT_S_MAX)
        self._check_open()
        if name is None:
            standing = self._prefetched.take(timeout)
            if standing is not None:
                return self._opened(self._of(standing, None, None, False), standing)
            return await self._make(await begin(self._pool, timeout, None), None, None, False)
        check_name(name, "transaction name")
        return await self._make(await begin(self._pool, timeout, name), name, None, False)

    @contextlib.asynccontextmanager
    async def own(self, timeout: float) -> AsyncIterator[AsyncTransaction]:
        """One for what the client does by itself, of few at a time, and none is prefetched. Raises as begin() and
        commit().
        """
        async with self._own:
            self._check_open()
            transaction = await self._make(await begin(self._pool, timeout, None), None, None, False)
            async with transaction:
                yield transaction

    def join(self, ident: str, attempt: str | None) -> Entering[AsyncTransaction]:
        """A transaction that was begun elsewhere."""
        return Entering("join_transaction(…)", lambda: self._join(ident, attempt))

    async def _join(self, ident: str, attempt: str | None) -> AsyncTransaction:
        parse_id(ident)
        attempt_number(attempt)
        self._check_open()
        return await self._make(await state_of(self._pool, ident), None, attempt, True)

    async def _make(self, standing: Standing, name: str | None, attempt: str | None, joined: bool) -> AsyncTransaction:
        """Raises AlreadyClosedError when the client closes meanwhile; one that was begun is aborted then."""
        made = self._of(standing, name, attempt, joined)
        try:
            self._check_open()
        except AlreadyClosedError:
            if not joined:
                await made.abort_quietly()
            made.forget()
            raise
        return self._opened(made, standing)

    def _of(self, standing: Standing, name: str | None, attempt: str | None, joined: bool) -> AsyncTransaction:
        return AsyncTransaction(
            self._pool,
            standing,
            name=name,
            attempt=attempt,
            joined=joined,
            ended=self._has_ended,
            marks=self._marks,
            callers=self._committing,
        )

    def _opened(self, made: AsyncTransaction, standing: Standing) -> AsyncTransaction:
        """The program's, of one that was just made."""
        if standing.state.final:
            return made
        loop = asyncio.get_running_loop()
        self._open.add(made)
        self._deadlines.add(made, loop.time() + self._left_s(standing) + POLL_S_FIRST)
        return made if made.joined else made.handle(partial(self._lost, loop))

    def _lost(self, loop: asyncio.AbstractEventLoop, working: AsyncTransaction) -> None:
        """The program has lost it unended: abort it soon. From any thread."""
        if not self._children.current:
            return
        try:
            warnings.warn(f"{working!r} was not closed, and is now: {LOST}", ResourceWarning, stacklevel=3)
        finally:  # warnings may be errors
            call_threadsafe(loop, partial(self._abort, working))

    def _abort(self, working: AsyncTransaction) -> None:
        if not working.forgotten:
            self._pool.tasks.spawn(working.abort_quietly(), name=f"abort {working.id}")

    def _left_s(self, standing: Standing) -> float:
        """Seconds left, from the broker; if it does not say, by the wall clocks, which may differ."""
        if standing.left_s is not None:
            return standing.left_s
        left_s = (standing.deadline_ms - self._pool.options.clock.time_ms()) / 1000
        return min(max(0.0, left_s), TRANSACTION_TIMEOUT_S_MAX)

    def _has_ended(self, one: AsyncTransaction) -> None:
        self._open.discard(one)
        self._deadlines.discard(one)
        self._prefetched.ended()

    async def close(self) -> None:
        """Abort what this client has begun, as far as that succeeds soon; the timeout aborts the rest."""
        for one in self._open:
            one.close()
        begun = [one.abort_quietly() for one in self._open if not one.joined]
        aborts = [asyncio.ensure_future(abort) for abort in (*begun, *self._prefetched.close())]
        if aborts:
            _, late = await asyncio.wait(aborts, timeout=GOODBYE_S_MAX)
            for task in late:
                task.cancel()
        for one in list(self._open):
            one.forget()
        self._open.clear()
        self._deadlines.clear()
