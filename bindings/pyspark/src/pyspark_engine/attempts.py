"""Exactly once: all tasks of a job write in one transaction, each run of a task as an attempt of its own.

The tasks begin the transaction: a streaming query's driver does not know in advance which batch it is. Each task
requests it by name, which is the same for all tasks of a job and for every run of the job: the first request begins
it, later ones join it. A task that finds it committed has nothing to do: an earlier run wrote everything.

While a task writes it asks for the name now and then, which puts the end of the transaction's time off. So the timeout
does not limit how long a job may take, but how long it may be idle before it is aborted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

import engine
from pyspark_engine.connection import connect
from pyspark_engine.options import Connection

log = logging.getLogger(__name__)

BEATS = 4  # in the time of a timeout
TIMEOUT_S_MIN = 1.0

# What Spark hands to every task of a micro-batch.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """What a task hands to the driver: the transaction and the attempt it wrote in; nothing where it had no rows, no
    attempt where the transaction was committed before.
    """

    transaction: str | None = None
    attempt: str | None = None


def micro_batch_name(prefix: str | None) -> str:
    """The name of the transaction of the micro-batch that this task belongs to, the same in every run of it.

    The query's id is that of its checkpoint: a restart does not change it.
    """
    context = TaskContext.get()
    query = prefix or (context and context.getLocalProperty(_QUERY_ID))
    batch = context and context.getLocalProperty(_BATCH_ID)
    if not query or batch is None:
        raise RuntimeError("Spark does not say which query and batch this is: only exactlyOnce=false is possible here")
    return _name(prefix, query, batch)


def _name(prefix: str | None, query: str, batch: object) -> str:
    return f"{query}-{batch}" if prefix else f"spark-{query}-{batch}"


def name_in_driver(prefix: str | None, checkpoint: str | None, batch: int) -> str | None:
    """The same as the driver knows it, which Spark does not hand to the query: by the file in its checkpoint that
    does, where this process can read it; else None.
    """
    query = prefix or _query_of(checkpoint)
    return None if query is None else _name(prefix, query, batch)


def _query_of(checkpoint: str | None) -> str | None:
    place = urlsplit(checkpoint or "")
    if not place.path or place.scheme not in ("", "file"):
        return None
    try:
        return str(json.loads(Path(unquote(place.path), "metadata").read_text())["id"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


class Attempt:
    """One run of one task in the transaction of that name. `done`: there is nothing to do any more."""

    def __init__(self, client: engine.Client, name: str, timeout_s: float) -> None:
        self._client = client
        self._transaction_name = name
        self._timeout_s = timeout_s
        self._name = uuid.uuid4().hex
        self._over = threading.Event()
        self._beats = threading.Thread(target=self._beat, name=f"transaction {name}", daemon=True)
        self.done = False

    def __enter__(self) -> Self:
        found = self._ask()
        self._id, self.done = found.id, found.state == "COMMITTED"
        if not self.done:
            self.transaction = self._client.join_transaction(self._id, self._name)
            self._beats.start()
        return self

    def _ask(self) -> engine.Transaction:
        found = self._client.transaction(self._timeout_s, name=self._transaction_name)
        found.leave()
        return found

    def _beat(self) -> None:
        while not self._over.wait(self._timeout_s / BEATS):
            try:
                if self._client.join_transaction(self._id).state != "OPEN":
                    return  # asking for the name would begin another one
                self._ask()
            except engine.EngineError as e:
                log.warning("the time of transaction %s was not put off: %s", self._id, e)

    @property
    def written(self) -> Written:
        return Written(self._id, None if self.done else self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._over.set()
        if self._beats.ident is not None:
            self._beats.join()
        if not isinstance(error, engine.TransactionConflictError):
            return False
        self.done = is_committed(self._client, self._id)
        if self.done:
            return True  # an earlier run of the job did it meanwhile
        raise RuntimeError(
            f"the transaction {self._transaction_name!r} was aborted during the write: by another client, or "
            f"because it was idle for {self._timeout_s:g} s (the option transactionTimeout)"
        ) from error


def is_committed(client: engine.Client, transaction: str) -> bool:
    """As the broker knows it now."""
    return client.join_transaction(transaction).state == "COMMITTED"


def commit(connection: Connection, messages: Iterable[Any]) -> None:
    """Make what these tasks have written take effect, unless an earlier run has done it. Raises what prevents it."""
    written = _written(messages)
    if any(m.attempt is None for m in written):
        return
    transactions = {m.transaction for m in written}
    if len(transactions) > 1:
        raise RuntimeError("the transaction was aborted in the middle of the job: tasks have written in two of them")
    if not transactions:
        return
    with connect(connection) as client:
        found = client.join_transaction(transactions.pop())
        try:
            found.commit(accepted=[m.attempt for m in written])
        except engine.TransactionConflictError:
            if not is_committed(client, found.id):
                raise


def abort(connection: Connection, messages: Iterable[Any], name: str | None, *, for_good: bool = False) -> None:
    """Nothing of it ever takes effect, as far as that can be done; the timeout does the rest.

    `name`: of the transaction, where the driver knows it. `for_good`: no other run of the job will ever ask for it.
    Then it is committed with nothing in it: tasks that do not know yet that the job has failed find that it is
    done, and do not begin it anew.
    """
    transactions = {m.transaction for m in _written(messages)}
    ended = contextlib.suppress(engine.TransactionConflictError, engine.TransactionNotFoundError)
    try:
        with connect(connection) as client:
            if name is not None:
                named = client.transaction(TIMEOUT_S_MIN, name=name)
                transactions.add(named.id)
                if for_good:
                    with ended:
                        named.commit(accepted=[])
            for transaction in transactions:
                with ended:
                    client.join_transaction(transaction).abort()
    except engine.EngineError as e:
        log.warning("a transaction was not aborted; its timeout does it: %s", e)


def _written(messages: Iterable[Any]) -> list[Any]:
    return [m for m in messages if isinstance(m, Written) and m.transaction is not None]
