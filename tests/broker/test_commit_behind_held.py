"""A commit behind frames that are not let in at once: it is not answered before these are decided, and it is then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.broker.segment.hosted import HostedSegment
from engine.broker.server import Broker
from engine.broker.transactions.buffer import TransactionBuffer
from engine.errors import SegmentSealedError, StorageError
from engine.model.transactions import TransactionState
from tests.broker.behind import Sender, state
from tests.broker.transacting import hosted

FOREVER_S = 20.0


@pytest.fixture
async def sender(connect: Any, monkeypatch: pytest.MonkeyPatch) -> Sender:
    """Whose frames have to be let in."""
    sender = await Sender.ready(await connect())
    monkeypatch.setattr(TransactionBuffer, "admits", lambda *_: False)
    return sender


async def test_what_is_let_in_late_is_committed(broker: Broker, sender: Sender) -> None:
    sender.send(b"a", b"b", b"c")
    assert await asyncio.wait_for(sender.end(3), FOREVER_S) == TransactionState.COMMITTED


async def test_what_cannot_be_let_in_leaves_it_open(
    broker: Broker, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> Any:
        raise StorageError("not now")

    monkeypatch.setattr(HostedSegment, "begin_transactions", refuse)
    sender.send(b"a")
    assert await asyncio.wait_for(sender.end(1), FOREVER_S) == TransactionState.OPEN
    assert await state(broker, sender.transaction) is TransactionState.OPEN


async def test_what_waits_and_is_never_let_in_leaves_it_open(
    broker: Broker, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = asyncio.Event()

    async def wait(*_: object) -> Any:
        waits.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(HostedSegment, "begin_transactions", wait)
    sender.send(b"a")
    ending = sender.end(1)
    await waits.wait()
    hosted(broker, sender.segments[0]).close_producers(SegmentSealedError("it is sealed"))
    assert await asyncio.wait_for(ending, FOREVER_S) == TransactionState.OPEN
    assert await state(broker, sender.transaction) is TransactionState.OPEN


async def test_what_is_sent_again_behind_the_commit_leaves_it_open(
    broker: Broker, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame before it was refused, so the client sends it again, not knowing that it is in the log."""
    begun, goes_on, begin_transactions = asyncio.Event(), asyncio.Event(), HostedSegment.begin_transactions

    async def begin(hosted: HostedSegment) -> TransactionBuffer:
        begun.set()
        await goes_on.wait()
        return await begin_transactions(hosted)

    monkeypatch.setattr(HostedSegment, "begin_transactions", begin)
    sender.send(b"a")
    ending = sender.end(1)
    await begun.wait()
    sender.send_again(b"a")
    goes_on.set()
    assert await asyncio.wait_for(ending, FOREVER_S) == TransactionState.OPEN
    assert await asyncio.wait_for(sender.end(None), FOREVER_S) == TransactionState.COMMITTED
