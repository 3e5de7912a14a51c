"""A commit behind what was sent whose answer is late or never comes, while its caller gives up or somebody aborts."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.client.transact import transaction as module
from engine.client.transact.transaction import AsyncTransaction
from engine.errors import AlreadyClosedError, TransactionConflictError
from engine.wire.commands import Command
from tests.kit.fake_broker import FakeBroker

FOREVER_S = 20.0  # a hang


class Program:
    """A client that commits a transaction behind one message; the broker answers neither."""

    def __init__(self, broker: FakeBroker, client: Any, transaction: AsyncTransaction) -> None:
        self.broker = broker
        self.client = client
        self.transaction = transaction
        self.committing = asyncio.ensure_future(transaction.commit())

    @property
    def ends(self) -> list[tuple[str, int | None]]:
        return [(header["action"], header.get("sent")) for header in self.broker.of(Command.END_TXN)]

    async def asked(self) -> None:
        """The broker has the commit, and says nothing."""
        await self.broker.until(lambda: bool(self.broker.transactions.held))

    async def give_up(self) -> None:
        self.committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.committing

    async def until_it_is(self, state: str) -> None:
        await self.broker.until(lambda: self.transaction.state == state)


@pytest.fixture
async def program(broker: FakeBroker, request: pytest.FixtureRequest) -> AsyncIterator[Program]:
    """With `operation_timeout`, if a test says one. Nothing is left that nobody has looked at."""
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    timeout_s = getattr(request, "param", FOREVER_S)
    async with broker.client(operation_timeout=timeout_s) as client, await client.producer("t") as producer:
        await producer.send(b"attached")
        transaction = await client.transaction()
        broker.holding = broker.transactions.holding = True
        producer.send_nowait(b"x", transaction=transaction)
        program = Program(broker, client, transaction)
        await program.asked()
        yield program
        broker.release()
    await asyncio.gather(program.committing, return_exceptions=True)
    gc.collect()
    assert unseen == []


async def test_what_nobody_waits_for_any_more_is_heard(program: Program):
    await program.give_up()
    assert program.transaction.state == "OPEN"
    program.broker.transactions.release()
    await program.until_it_is("COMMITTED")
    program.broker.release()
    await program.transaction.commit()
    assert program.ends == [("commit", 1)]


async def test_a_conflict_that_nobody_waits_for_any_more_is_heard(program: Program):
    await program.give_up()
    program.broker.transactions[program.transaction.id] = "ABORTED"
    program.broker.transactions.release()
    await program.until_it_is("ABORTED")
    with pytest.raises(TransactionConflictError):
        await program.transaction.commit()


@pytest.mark.parametrize("lost", [True, False])
async def test_what_nobody_waits_for_any_more_is_aborted_when_nothing_came_of_it(program: Program, lost: bool):
    """The answer is lost, or it was left open: something of what was sent was refused."""
    await program.give_up()
    if lost:
        program.broker.transactions.held.clear()
        program.broker.cut()
    else:
        program.broker.transactions.leave_open = True
        program.broker.transactions.release()
    await program.until_it_is("ABORTED")
    assert program.ends == [("commit", 1), ("abort", None)]


async def test_an_answer_that_is_lost_is_asked_for_by_whoever_ends_it_next(program: Program):
    await program.give_up()
    program.broker.transactions.held.clear()
    program.broker.cut()
    await program.transaction.abort()
    assert program.ends == [("commit", 1), ("abort", None)]


@pytest.mark.parametrize("given_up", [True, False])
async def test_an_abort_waits_for_the_answer(program: Program, given_up: bool):
    """It was a commit: there is nothing to abort, whoever still waits for that."""
    if given_up:
        await program.give_up()
    aborting = asyncio.ensure_future(program.transaction.abort())
    await program.broker.settle()
    assert program.ends == [("commit", 1)]
    program.broker.transactions.release()
    with pytest.raises(TransactionConflictError):
        await aborting
    assert program.transaction.state == "COMMITTED"
    assert program.ends == [("commit", 1)]


async def test_who_gives_up_when_an_abort_waits_leaves_the_answer_to_that(program: Program):
    aborting = asyncio.ensure_future(program.transaction.abort())
    await program.broker.settle()
    await program.give_up()
    program.broker.transactions.release()
    with pytest.raises(TransactionConflictError):
        await aborting
    assert program.transaction.state == "COMMITTED"


@pytest.mark.parametrize("program", [0.3], indirect=True)
async def test_an_answer_that_never_comes_holds_up_no_commit(program: Program):
    program.broker.release()
    await asyncio.wait_for(program.committing, FOREVER_S)
    assert program.transaction.state == "COMMITTED"
    assert program.ends == [("commit", 1), ("commit", None)]


@pytest.mark.parametrize("program", [0.3], indirect=True)
@pytest.mark.parametrize("given_up", [True, False])
async def test_an_answer_that_never_comes_holds_up_no_abort(program: Program, given_up: bool):
    if given_up:
        await program.give_up()
    await asyncio.wait_for(program.transaction.abort(), FOREVER_S)
    assert program.transaction.state == "ABORTED"
    assert program.ends == [("commit", 1), ("abort", None)]
    program.broker.transactions.release()  # far too late
    await program.broker.settle()
    assert program.transaction.state == "ABORTED"


async def test_an_answer_that_came_leaves_no_deadline(program: Program):
    deadlines = (await program.client.pool.get())._deadlines
    assert len(deadlines) == 1
    program.broker.transactions.release()
    program.broker.release()
    await program.committing
    assert len(deadlines) == 0


async def test_a_client_that_closes_ends_the_wait(program: Program, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "GOODBYE_S_MAX", 0.05)
    program.broker.release()
    await asyncio.wait_for(program.client.close(), FOREVER_S)
    with pytest.raises(AlreadyClosedError):
        await program.committing
