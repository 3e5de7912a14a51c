"""The blocking `Transaction`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Self

from engine.aio.portal import Portal
from engine.client.transact.scope import InTransaction
from engine.client.transact.transaction import LOST, AsyncTransaction, TransactionStateName


class Transaction(InTransaction):
    """Sends and acknowledgements, over any topics, that take effect together or not at all.

    Made by `client.transaction()` and `client.join_transaction()`; usable with `with`: at the end of the block one that
    was begun is committed, or aborted when the block raises; of one that was joined everything is written by then, and
    it stays as it is. It takes part in `producer.send(…, transaction=)`, `consumer.acknowledge(…, transaction=)` and
    the like of the client that made it, on any thread.

    A transaction that is not ended is aborted when its timeout is over; one that was begun here, and is collected
    before, is aborted then, with a ResourceWarning.
    """

    def __init__(self, portal: Portal, transaction: AsyncTransaction) -> None:
        self.scope = transaction.scope
        self._portal = portal
        self._transaction = transaction.disown()

    def __del__(self) -> None:
        transaction = self.__dict__.get("_transaction")
        if transaction is None or transaction.forgotten or self._portal.closed:
            return
        try:
            warnings.warn(f"{self!r} was not closed, and is now: {LOST}", ResourceWarning, stacklevel=2)
        finally:  # warnings may be errors
            self._portal.finish(transaction.abort_quietly, lambda: False)

    @property
    def id(self) -> str:
        """16 hexadecimal digits, by which others join it."""
        return self._transaction.id

    @property
    def name(self) -> str | None:
        """The name given to `client.transaction()`, or None."""
        return self._transaction.name

    @property
    def attempt(self) -> str | None:
        """The attempt to which everything done with this object belongs."""
        return self._transaction.attempt

    @property
    def state(self) -> TransactionStateName:
        """ "OPEN", "COMMITTED" or "ABORTED", as far as this client knows: it does not ask."""
        return self._transaction.state

    def commit(self, accepted: Sequence[str] | None = None) -> None:
        """Commit. First waits for everything that was sent and acknowledged in it by this object; if any of that has
        failed, the transaction is aborted instead, and the failure is raised.

        `accepted`: of the attempts that have taken part, those whose writes and acknowledgements take effect; of all
        others, and of what was done without an attempt, nothing ever does. None: everything does. A second commit
        changes nothing.

        Raises TransactionConflictError when it was aborted, by its timeout or another client; InvalidArgumentError;
        TransactionNotFoundError; UnknownOutcomeError when no broker could be asked whether it is committed: it is, or
        it will be aborted when its timeout is over. Interrupted, it is aborted, unless that is too late.
        """
        self._portal.run(self._transaction.commit(accepted))

    def abort(self) -> None:
        """Abort: nothing in it ever takes effect. A second abort changes nothing.

        Queue messages that were acknowledged in it are due again; stream consumers go back to what is acknowledged.
        Raises TransactionConflictError when it is committed; TransactionNotFoundError; UnknownOutcomeError when no
        broker could be asked: it is aborted when its timeout is over at the latest.
        """
        self._portal.run(self._transaction.abort())

    def flush(self) -> None:
        """Wait until everything sent and acknowledged in it here is durable. Raises the first failure."""
        self._portal.run(self._transaction.flush())

    def leave(self) -> None:
        """Leave it to other participants: neither the end of the block nor that of this client ends it, as if it was
        joined. Any holder of its id or name may still commit or abort it, and so may this object.
        """
        self._transaction.leave()

    def __repr__(self) -> str:
        return repr(self._transaction).replace("<Async", "<", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._portal.run(self._transaction.__aexit__(*exc))
