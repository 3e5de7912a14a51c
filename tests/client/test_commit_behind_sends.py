"""A commit goes out behind what was sent, before that is answered; and what becomes of it where answers are lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fake_broker import FakeBroker

from engine.client import transaction as module
from engine.client.transaction import AsyncTransaction
from engine.errors import (
    ConnectError,
    EngineError,
    FencedError,
    NotOwnerError,
    TransactionConflictError,
    TransactionNotFoundError,
    UnknownOutcomeError,
)
from engine.wire.commands import Command


class Program:
    """One client with a producer whose lanes are attached, and a transaction."""

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


@pytest.fixture
async def program(broker: FakeBroker) -> AsyncIterator[Program]:
    async with broker.client(operation_timeout=5.0) as client, await client.producer("t") as producer:
        await producer.send(b"attached")
        broker.holding = True
        yield Program(broker, client, producer, await client.transaction())
        broker.holding = False


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


async def test_a_commit_is_done_before_receipts_that_nobody_waits_for(program: Program):
    program.producer.send_nowait(b"x", transaction=program.transaction)
    await program.transaction.commit()
    assert program.transaction.state == "COMMITTED"
    flushing = asyncio.ensure_future(program.producer.flush())
    await program.broker.settle()
    assert not flushing.done()
    assert program.producer.statistics().pending_messages == 1
    program.broker.release()
    await flushing
    assert program.producer.statistics().pending_messages == 0
    assert program.ends == [("commit", 1)]


async def test_a_commit_waits_for_receipts_where_somebody_wants_an_id(program: Program):
    """Known to be committed or not."""
    first = program.send()
    await asyncio.sleep(0)
    program.producer.send_nowait(b"y", transaction=program.transaction)
    committing = asyncio.ensure_future(program.transaction.commit())
    await program.broker.until(lambda: program.transaction.state == "COMMITTED")
    await program.broker.settle()
    assert not committing.done()
    program.broker.release()
    await committing
    assert (await first).offset == 1


async def test_who_has_his_id_is_not_waited_for_again(program: Program):
    """Once somebody has waited, and has been answered, the others are not in the way."""
    program.broker.holding = False
    await program.producer.send(b"x", transaction=program.transaction)
    program.broker.holding = True
    program.producer.send_nowait(b"y", transaction=program.transaction)
    await asyncio.wait_for(program.transaction.commit(), 20)
    assert program.transaction.state == "COMMITTED"
    program.broker.release()


async def test_what_was_committed_has_not_failed_when_its_receipt_is_lost(broker: FakeBroker):
    """Nor is it sent again; its id is not known any more."""
    failures: list[Exception] = []
    async with broker.client() as client, await client.producer("t", on_error=failures.append) as producer:
        await producer.send(b"attached")
        broker.holding = True
        transaction = await client.transaction()
        sent = asyncio.ensure_future(producer.send(b"x", transaction=transaction))
        await asyncio.sleep(0)
        producer.send_nowait(b"y", transaction=transaction)
        committing = asyncio.ensure_future(transaction.commit())
        await broker.until(lambda: transaction.state == "COMMITTED")
        count = len(broker.of(Command.SEND))
        broker.holding = False
        broker.cut()
        await committing
        assert (await sent).offset == -1
        await producer.flush()
        assert failures == []
        assert len(broker.of(Command.SEND)) == count
        found = producer.statistics()
        assert (found.messages_acknowledged, found.messages_failed, found.pending_messages) == (3, 0, 0)
        assert (await producer.send(b"later")).offset == 3


@pytest.mark.parametrize("awaited", [False, True])
async def test_what_was_committed_has_not_failed_when_its_producer_ends_right_behind(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, awaited: bool
):
    """The answer and the refusal are read together; nobody can be asked any more."""
    failures: list[Exception] = []

    async def nobody(*_: Any) -> bool:
        raise ConnectError("out of reach")

    monkeypatch.setattr(module, "is_committed", nobody)
    async with broker.client() as client:
        producer = await client.producer("t", on_error=failures.append)
        await producer.send(b"attached")
        broker.holding = broker.transactions.holding = True
        transaction = await client.transaction()
        sent = asyncio.ensure_future(producer.send(b"x", transaction=transaction)) if awaited else None
        await asyncio.sleep(0)
        producer.send_nowait(b"y", transaction=transaction)
        committing = asyncio.ensure_future(transaction.commit())
        await broker.until(lambda: bool(broker.transactions.held))
        broker.transactions.release()
        (ident,) = broker.last.producers
        fenced = {"producer_id": ident, "code": FencedError.code, "message": "fenced"}
        broker.last.stream.send(Command.CLOSE_PRODUCER, fenced)
        await committing
        assert transaction.state == "COMMITTED"
        if sent is not None:
            assert (await sent).offset == -1
        assert failures == []
        assert producer.statistics().messages_failed == 0
        with contextlib.suppress(FencedError):
            await producer.close()


async def test_what_was_committed_has_not_failed_when_no_receipt_comes(broker: FakeBroker):
    failures: list[Exception] = []
    async with (
        broker.client() as client,
        await client.producer("t", send_timeout=0.1, on_error=failures.append) as producer,
    ):
        await producer.send(b"attached")
        broker.holding = True
        transaction = await client.transaction()
        sent = asyncio.ensure_future(producer.send(b"x", transaction=transaction))
        await asyncio.sleep(0)
        producer.send_nowait(b"y", transaction=transaction)
        await transaction.commit()
        assert (await sent).offset == -1
        await producer.flush()
        assert failures == []
        assert producer.statistics().messages_acknowledged == 3
        broker.release()


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
    program.transaction._follow()
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
    scope.entry_entered(False)  # as if another one waited for its lane: so many went out as came under way
    assert scope.sends_behind_which_to_commit() is None
    scope._entries -= 1
    scope._under_way -= 1
    broker.release()
    await program.transaction.commit()
    await sent
    assert program.ends == [("commit", None)]


async def test_receipts_that_come_in_one_frame_reach_everybody(broker: FakeBroker):
    async with broker.client() as client, await client.producer("t") as one, await client.producer("t") as other:
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
async def test_receipts_that_are_none_end_the_connection(broker: FakeBroker, wrong: object):
    async with broker.client() as client, await client.producer("t") as producer:
        await producer.send(b"attached")
        broker.holding = True
        sent = asyncio.ensure_future(producer.send(b"x"))
        await broker.until(lambda: bool(broker.last.held))
        connection = broker.last
        connection.stream.send(Command.SEND_RECEIPT, {**connection.held[0], "more": [wrong]})
        broker.holding = False
        await sent
        await broker.until(lambda: connection.lost)
