"""A commit goes out behind what was sent, before that is answered; and what becomes of it where answers are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.client.client import AsyncClient
from engine.errors import (
    EngineError,
    NotOwnerError,
    TransactionConflictError,
    TransactionNotFoundError,
    UnknownOutcomeError,
)
from engine.wire.commands import Command
from tests.client.committing import Program, running
from tests.kit.fake_broker import FakeBroker


@pytest.fixture
async def program(broker: FakeBroker) -> AsyncIterator[Program]:
    async with running(broker) as program:
        yield program


async def test_the_end_is_behind_what_is_sent(program: Program):
    broker, sent = program.broker, [program.send(), program.send()]
    await asyncio.sleep(0)
    committing = asyncio.ensure_future(program.transaction.commit())
    await broker.until(lambda: bool(program.ends))
    commands = [command for command, _ in broker.seen]
    assert commands.index(Command.END_TXN) > max(i for i, c in enumerate(commands) if c is Command.SEND)
    frames = [header for header in broker.of(Command.SEND) if header.get("transaction")]
    assert program.ends == [("commit", len(frames))]
    assert not committing.done()  # send() has no id yet
    broker.release()
    await committing
    assert program.transaction.state == "COMMITTED"
    assert [message_id.offset for message_id in await asyncio.gather(*sent)] == [1, 2]
    assert isinstance(broker.transactions.marks[program.transaction.id], int)
    assert len(program.ends) == 1


async def test_marks_differ(program: Program):
    broker = program.broker
    broker.holding = False
    for transaction in [await program.client.transaction() for _ in range(3)]:
        program.producer.send_nowait(b"x", transaction=transaction)
        await transaction.commit()
    assert len(set(broker.transactions.marks.values())) == 3


async def test_what_was_left_open_is_ended_once_it_is_answered(program: Program):
    program.broker.transactions.leave_open = True
    program.producer.send_nowait(b"x", transaction=program.transaction)
    committing = asyncio.ensure_future(program.transaction.commit())
    await program.broker.until(lambda: bool(program.ends))
    await program.broker.settle()
    assert program.ends == [("commit", 1)]
    program.broker.release()
    await committing
    assert program.ends == [("commit", 1), ("commit", None)]
    assert program.broker.of(Command.TXN_STATE) == []


async def test_what_failed_aborts_it_when_it_was_left_open(program: Program):
    program.broker.transactions.leave_open = True
    program.broker.refuse = lambda segment, sequence: TransactionConflictError("refused")
    sent = program.send()
    await asyncio.sleep(0)
    with pytest.raises(TransactionConflictError, match="refused"):
        await program.transaction.commit()
    with pytest.raises(TransactionConflictError, match="refused"):
        await sent
    assert program.transaction.state == "ABORTED"
    assert program.ends == [("commit", 1), ("abort", None)]


@pytest.mark.parametrize(
    ("found", "error"),
    [("ABORTED", TransactionConflictError), (None, TransactionNotFoundError), ("COMMITTED", None)],
)
async def test_an_end_that_is_heard_of_while_receipts_are_awaited_is_how_it_ended(
    program: Program, found: str | None, error: type[EngineError] | None
):
    """Its time was over, say; what was sent came in time for all that."""
    program.broker.transactions.leave_open = True
    program.producer.send_nowait(b"x", transaction=program.transaction)
    committing = asyncio.ensure_future(program.transaction.commit())
    await program.broker.until(lambda: bool(program.ends))
    await program.broker.settle()
    if found is None:
        del program.broker.transactions[program.transaction.id]
    else:
        program.broker.transactions[program.transaction.id] = found
    program.transaction.follow()
    await program.broker.until(lambda: program.transaction._over)
    program.broker.release()
    if error is None:
        await committing
    else:
        with pytest.raises(error):
            await committing
    assert program.ends == [("commit", 1)]


# -- lost answers --------------------------------------------------------------------------------------------------


async def test_what_was_committed_is_stored_though_nobody_said_so(program: Program):
    """Sent again, it is refused as too late: but it was this client's own commit that came behind it."""
    program.lose_the_answer()
    sent = [program.send(), program.send()]
    await asyncio.sleep(0)
    await program.transaction.commit()
    assert program.transaction.state == "COMMITTED"
    assert [message_id.offset for message_id in await asyncio.gather(*sent)] == [-1, -1]
    assert program.ends == [("commit", 1)]
    await program.transaction.commit()
    program.broker.refuse, program.broker.holding = lambda segment, sequence: None, False
    await program.producer.send(b"later")


@pytest.mark.parametrize("state", ["ABORTED", "COMMITTED"])
async def test_what_somebody_else_ended_is_a_conflict(program: Program, state: str):
    program.lose_the_answer(state, mark=-1)
    sent = program.send()
    await asyncio.sleep(0)
    with pytest.raises(TransactionConflictError):
        await program.transaction.commit()
    with pytest.raises(TransactionConflictError):
        await sent
    assert program.transaction.state == state


async def test_an_end_that_never_came_is_made_again(program: Program):
    program.broker.lose_requests.append(Command.END_TXN)
    sent = program.send()
    await asyncio.sleep(0)
    program.broker.holding = False
    await program.transaction.commit()
    await sent
    assert program.ends == [("commit", 1), ("commit", None)]


async def test_what_nobody_can_be_asked_about_is_unknown(broker: FakeBroker):
    async with (
        broker.client(operation_timeout=0.05) as client,
        await client.producer("t", send_timeout=0.05) as producer,
    ):
        await producer.send(b"attached")
        transaction = await client.transaction()
        broker.holding = True
        producer.send_nowait(b"x", transaction=transaction)
        broker.lose_answers.append(Command.END_TXN)
        broker.reachable = False  # from then on
        with pytest.raises(UnknownOutcomeError):
            await transaction.commit()
        assert transaction.state == "OPEN"
        broker.reachable = True
        await transaction.commit()  # all that is missing are the answers
        assert transaction.state == "COMMITTED"
        assert [header["action"] for header in broker.of(Command.END_TXN)] == ["commit"]


# -- when it is done in the old way --------------------------------------------------------------------------------


async def test_a_broker_that_cannot_is_not_asked(broker: FakeBroker):
    broker.features.remove("commit-behind-sends")
    async with broker.client() as client, await client.producer("t") as producer:
        await producer.send(b"attached")
        transaction = await client.transaction()
        producer.send_nowait(b"x", transaction=transaction)
        await transaction.commit()
    assert [header.get("sent") for header in broker.of(Command.END_TXN)] == [None]


async def test_what_is_answered_needs_no_count(program: Program):
    program.broker.holding = False
    await program.producer.send(b"x", transaction=program.transaction)
    await program.transaction.commit()
    assert program.ends == [("commit", None)]


async def test_what_went_out_again_is_waited_for(program: Program):
    """How many there are on the wire says nothing any more."""
    sent = program.send()
    await program.broker.until(lambda: len(program.broker.of(Command.SEND)) == 2)
    program.broker.cut()
    await program.broker.until(lambda: len(program.broker.of(Command.SEND)) == 3)
    committing = asyncio.ensure_future(program.transaction.commit())
    await program.broker.settle()
    assert program.ends == []
    program.broker.release()
    await committing
    await sent
    assert program.ends == [("commit", None)]


async def test_what_went_out_again_does_not_stand_for_what_did_not(program: Program):
    """Over the same connection: the segment was elsewhere for a moment."""
    broker, refusals = program.broker, [NotOwnerError("not yet")]
    broker.refuse = lambda segment, sequence: refusals.pop() if refusals else None
    sent = program.send()
    await broker.until(lambda: len(broker.of(Command.SEND)) == 3)
    scope = program.transaction.scope
    scope.entry_entered(False)  # as if another one waited for its sender: so many went out as came under way
    assert scope.sends_behind_which_to_commit() is None
    scope.entries -= 1
    scope.under_way -= 1
    broker.release()
    await program.transaction.commit()
    await sent
    assert program.ends == [("commit", None)]


async def test_receipts_that_come_in_one_frame_reach_everybody(broker: FakeBroker, client: AsyncClient):
    async with await client.producer("t") as one, await client.producer("t") as other:
        for producer in (one, other):
            await producer.send(b"attached")
        broker.holding = True
        sent = [asyncio.ensure_future(producer.send(b"x")) for producer in (one, other)]
        await broker.until(lambda: len(broker.last.held) == 2)
        first, second = broker.last.held
        broker.last.held.clear()
        broker.last.stream.send(Command.SEND_RECEIPT, {**first, "more": [second]})
        assert len(await asyncio.gather(*sent)) == 2


@pytest.mark.parametrize("wrong", ["no map", {"producer_id": 1}])
async def test_receipts_that_are_none_end_the_connection(broker: FakeBroker, wrong: object, client: AsyncClient):
    async with await client.producer("t") as producer:
        await producer.send(b"attached")
        broker.holding = True
        sent = asyncio.ensure_future(producer.send(b"x"))
        await broker.until(lambda: bool(broker.last.held))
        connection = broker.last
        connection.stream.send(Command.SEND_RECEIPT, {**connection.held[0], "more": [wrong]})
        broker.holding = False
        await sent
        await broker.until(lambda: connection.lost)
