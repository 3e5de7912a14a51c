"""A program that commits behind what it has sent, for tests of what its broker answers, and in which order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from engine.client.transact.transaction import AsyncTransaction
from engine.errors import EngineError, TransactionConflictError
from engine.wire.commands import Command
from tests.kit.fake_broker import FakeBroker


class Program:
    """One client with a producer whose senders are attached, and a transaction."""

    def __init__(self, broker: FakeBroker, client: Any, producer: Any, transaction: AsyncTransaction) -> None:
        self.broker = broker
        self.client = client
        self.producer = producer
        self.transaction = transaction

    def send(self) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.producer.send(b"x", transaction=self.transaction))

    def lose_the_answer(self, state: str | None = None, mark: int | None = None) -> None:
        """To the end; the transaction is over then, in that state, and takes nothing. None: as it was asked for."""
        if state is None:
            self.broker.lose_answers.append(Command.END_TXN)
        else:
            self.broker.lose_requests.append(Command.END_TXN)
            self.broker.transactions[self.transaction.id] = state
            self.broker.transactions.marks[self.transaction.id] = mark
        self.broker.refuse = lambda segment, sequence: self._refusal() if len(self.broker.connections) > 1 else None

    def _refusal(self) -> EngineError | None:
        over = self.broker.transactions[self.transaction.id] != "OPEN"
        return TransactionConflictError("it is over") if over else None

    @property
    def ends(self) -> list[tuple[str, int | None]]:
        return [(header["action"], header.get("sent")) for header in self.broker.of(Command.END_TXN)]


@contextlib.asynccontextmanager
async def running(broker: FakeBroker) -> AsyncIterator[Program]:
    """One; the broker keeps receipts back."""
    async with broker.client(operation_timeout=5.0) as client, await client.producer("t") as producer:
        await producer.send(b"attached")
        broker.holding = True
        yield Program(broker, client, producer, await client.transaction())
        broker.holding = False
