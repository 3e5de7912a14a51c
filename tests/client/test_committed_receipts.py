"""What becomes of messages that are committed before their receipts are there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.client.produce.producer import AsyncProducer
from engine.client.transact import transaction as module
from engine.client.transact.transaction import AsyncTransaction
from engine.errors import ConnectError, FencedError
from engine.model.positions import MessageId
from engine.wire.commands import Command
from tests.client.committing import Program, running
from tests.kit.fake_broker import FakeBroker


@pytest.fixture
async def program(broker: FakeBroker) -> AsyncIterator[Program]:
    async with running(broker) as program:
        yield program


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


async def send_two(producer: AsyncProducer, transaction: AsyncTransaction) -> asyncio.Task[MessageId]:
    """Messages: the first one's id is waited for, and nobody waits for that of the other."""
    sent = asyncio.ensure_future(producer.send(b"x", transaction=transaction))
    await asyncio.sleep(0)
    producer.send_nowait(b"y", transaction=transaction)
    return sent


async def test_what_was_committed_has_not_failed_when_its_receipt_is_lost(broker: FakeBroker):
    """Nor is it sent again; its id is not known any more."""
    failures: list[Exception] = []
    async with broker.client() as client, await client.producer("t", on_error=failures.append) as producer:
        await producer.send(b"attached")
        broker.holding = True
        transaction = await client.transaction()
        sent = await send_two(producer, transaction)
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
        sent = await send_two(producer, transaction)
        await transaction.commit()
        assert (await sent).offset == -1
        await producer.flush()
        assert failures == []
        assert producer.statistics().messages_acknowledged == 3
        broker.release()
