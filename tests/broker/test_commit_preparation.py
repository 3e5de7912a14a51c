"""A commit behind what was sent is prepared while the log is written: what goes wrong there, and what is told."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from engine.broker.server import Broker
from engine.broker.transactions.headers import TransactionHeaders
from engine.errors import EngineError, InvalidArgumentError
from engine.model.transactions import TransactionState, parse_id
from tests.broker.behind import Sender, Writes, records, state
from tests.broker.transacting import hosted
from tests.kit.peer import Peer, until

COMMITTED, OPEN = TransactionState.COMMITTED, TransactionState.OPEN


class Gets:
    """Those of a transaction's header wait, or fail; it is not known without them."""

    def __init__(self, broker: Broker, transaction: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        self.error: Exception | None = None
        store: Any = broker.metadata
        get = store.get

        async def through(key: str) -> Any:
            if key == f"/txn/{transaction}":
                self.begun.set()
                await self.gate.wait()
                if self.error is not None:
                    raise self.error
            return await get(key)

        monkeypatch.setattr(store, "get", through)
        monkeypatch.setattr(broker.segments.transactions.headers, "known", lambda _: None)


async def is_recorded(broker: Broker, sender: Sender, count: int) -> None:
    """What was sent has records of its own, and nothing is held."""
    assert sum([len(await sender.receipts()) for _ in range(count)]) == count
    assert await records(broker, sender.transaction) == count
    assert await state(broker, sender.transaction) is OPEN
    assert not broker.segments.operations.gathered


@pytest.mark.parametrize("accepted", [["a/b"], [1], [""]])
async def test_attempts_that_cannot_be_leave_it_open(broker: Broker, connect: Any, accepted: Any) -> None:
    sender = await Sender.ready(await connect())
    sender.send(b"a", b"b")
    with pytest.raises(EngineError) as found:
        await sender.end(2, accepted=accepted)
    assert isinstance(found.value, InvalidArgumentError)
    await is_recorded(broker, sender, 2)
    assert await sender.end(None) == COMMITTED


async def test_a_store_that_fails_leaves_it_open(broker: Broker, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = await Sender.ready(await connect())
    sender.send(b"a")
    ending = sender.end(1)
    gets = Gets(broker, sender.transaction, monkeypatch)
    gets.error = EngineError("out of reach")
    await asyncio.wait_for(gets.begun.wait(), 20)
    assert not ending.done()
    gets.gate.set()
    with pytest.raises(EngineError, match="out of reach"):
        await ending
    monkeypatch.undo()


async def test_a_connection_that_is_lost_while_it_is_prepared_is_committed(
    broker: Broker, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = await Sender.ready(await connect())
    sender.send(b"a", b"b")
    sender.end(2, mark=5).cancel()
    gets = Gets(broker, sender.transaction, monkeypatch)
    await asyncio.wait_for(gets.begun.wait(), 20)
    sender.peer.stream.close()
    await sender.peer.lost
    gets.gate.set()
    for segment in sender.segments:
        await until(lambda segment=segment: hosted(broker, segment).readable == 2)
    monkeypatch.undo()
    view = await broker.transactions.coordinator.get(parse_id(sender.transaction))
    assert (view.header.state, view.header.mark) == (COMMITTED, 5)
    await until(lambda: not broker.segments.operations.gathered)


async def test_more_frames_than_were_said_while_it_is_prepared_leave_it_open(
    broker: Broker, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = await Sender.ready(await connect())
    sender.send(b"a", b"b")
    ending = sender.end(2)
    gets = Gets(broker, sender.transaction, monkeypatch)
    await asyncio.wait_for(gets.begun.wait(), 20)
    sender.send(b"c")
    (connection,) = broker.connections
    await until(lambda: connection.sends.of(parse_id(sender.transaction)).frames == 3)
    gets.gate.set()
    assert await ending == OPEN
    monkeypatch.undo()


async def test_a_broker_that_closes_while_it_is_prepared_holds_nothing(
    start_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_broker() as broker:
        sender = await Sender.ready(await Peer.connect(broker))
        sender.send(b"a", b"b")
        ending = sender.end(2)
        gets = Gets(broker, sender.transaction, monkeypatch)
        await asyncio.wait_for(gets.begun.wait(), 20)
        monkeypatch.undo()  # the others go through
        await asyncio.wait_for(broker.close(), 20)
        assert not broker.segments.operations.gathered
        with pytest.raises((EngineError, ConnectionError)):
            await ending


async def test_a_record_that_is_due_is_written_though_the_hold_is_over_twice(
    broker: Broker, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Released by who held it, and once more when his request is over: one record."""
    sender = await Sender.ready(await connect())
    writes = Writes(broker, monkeypatch)
    writes.faults["put_with_sequence"] = [(EngineError("no"), False)]
    before = broker.segments.operations.written
    sender.send(b"a", b"b")
    with pytest.raises(EngineError, match="no"):
        await sender.end(2)
    assert len(await sender.receipts() + await sender.receipts()) == 2
    assert writes.names.count("put_sequence") == 1
    assert broker.segments.operations.written == before + 1


async def test_what_is_known_of_it_is_not_looked_up(
    broker: Broker, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = await Sender.ready(await connect())
    sender.send(b"a", b"b")
    ending = sender.end(2)
    gets = Gets(broker, sender.transaction, monkeypatch)
    headers = broker.segments.transactions.headers
    monkeypatch.setattr(headers, "known", partial(TransactionHeaders.known, headers))
    assert await asyncio.wait_for(ending, 20) == COMMITTED
    assert not gets.begun.is_set()
