"""A commit that comes right behind what was sent in its transaction: one write to the metadata store for all of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.broker.server import Broker
from engine.broker.transactions.append import TransactionalAppend
from engine.errors import (
    EngineError,
    InvalidArgumentError,
    SegmentSealedError,
    TransactionConflictError,
    TransactionNotFoundError,
)
from engine.metadata.store import ConflictError, OutcomeUnknownError
from engine.model.transactions import TransactionState
from engine.wire.commands import Command
from tests.broker.behind import Sender, Writes, records, state
from tests.broker.transacting import begin, decide, end, hosted, latest
from tests.kit.peer import until

COMMITTED, ABORTED, OPEN = TransactionState.COMMITTED, TransactionState.ABORTED, TransactionState.OPEN


@pytest.fixture
def writes(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Writes:
    return Writes(broker, monkeypatch)


# -- as it mostly goes ---------------------------------------------------------------------------------------------


async def test_frames_and_their_end_are_one_write_and_one_frame_of_receipts(
    broker: Broker, connect: Any, writes: Writes
) -> None:
    sender = await Sender.ready(await connect())
    before = broker.segments.operations.written
    await until(lambda: not any(hosted(broker, segment).transactions.busy for segment in sender.segments))
    writes.names.clear()
    sender.send(b"a", b"b", b"c")
    assert await sender.end(3, mark=7) == COMMITTED
    assert [name for name in writes.names if name.startswith("put")] == ["put_with_sequence"]
    assert broker.segments.operations.written == before + 1
    one, other = sender.producers
    assert await sender.receipts() == [(one, 1), (one, 2), (other, 1)]
    for segment, last in zip(sender.segments, (3, 2), strict=True):
        await until(lambda segment=segment, last=last: hosted(broker, segment).readable == last)
    standing = (await sender.peer.ask(Command.TXN_STATE, id=sender.transaction))["result"]
    assert (standing["state"], standing["mark"]) == (COMMITTED, 7)


async def test_nothing_is_left_behind(broker: Broker, connect: Any) -> None:
    sender = await Sender.ready(await connect())
    sender.send(b"a", b"b")
    assert await sender.end(2) == COMMITTED
    assert not broker.segments.operations.gathered
    (connection,) = broker.connections
    assert len(connection.sends) == 0
    for segment in sender.segments:
        await hosted(broker, segment).transactions.settle()
        assert not hosted(broker, segment).transactions.busy
    assert await records(broker, sender.transaction) == 0


async def test_the_first_frames_of_a_transaction_may_be_looked_up_meanwhile(
    broker: Broker, connect: Any, writes: Writes
) -> None:
    """Nobody on this broker has heard of the transaction, or of any."""
    sender = Sender(await connect(), [])
    sender.segments = [await sender.peer.segment(topic) for topic in ("orders", "invoices")]
    sender.producers = [await sender.peer.producer(segment) for segment in sender.segments]
    sender.transaction = await begin(sender.peer)
    writes.names.clear()
    sender.send(b"a", b"b", b"c")
    assert await sender.end(3) == COMMITTED
    assert writes.names.count("put_with_sequence") == 1
    assert "put_sequence" not in writes.names


async def test_who_commits_is_answered_before_receipts_which_come_together(connect: Any) -> None:
    sender = await Sender.ready(await connect())
    sender.send(b"a", b"b")
    come: list[Command] = []
    note = sender.peer.frame_received
    sender.peer.frame_received = lambda command, *rest: (come.append(command), note(command, *rest))
    assert await sender.end(2) == COMMITTED
    assert len(await sender.receipts()) == 2
    assert come == [Command.SUCCESS, Command.SEND_RECEIPT]


async def test_a_writer_that_fails_keeps_nobody_else_waiting(
    broker: Broker, connect: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorded, failures = TransactionalAppend.recorded_in_time, list[Exception]()

    def fail_once(append: TransactionalAppend, part: Any, version: int) -> None:
        if failures:
            raise failures.pop()
        recorded(append, part, version)

    monkeypatch.setattr(TransactionalAppend, "recorded_in_time", fail_once)
    sender = await Sender.ready(await connect())
    failures[:] = [RuntimeError("no")]
    sender.send(b"a", b"b")
    assert await sender.end(2) == COMMITTED
    await until(lambda: hosted(broker, sender.segments[1]).readable == 2)
    assert len(await sender.receipts()) == 1
    assert "could not be acknowledged" in caplog.text
    for append in list(hosted(broker, sender.segments[0]).transactions.confirming):
        append.abandon()  # nobody ever will


# -- what is not committed so --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [0, 1, 3])
async def test_another_count_than_came_leaves_it_open(broker: Broker, connect: Any, sent: int) -> None:
    sender = await Sender.ready(await connect())
    sender.send(b"a", b"b")
    assert await sender.end(sent) == OPEN
    assert len(await sender.receipts() + await sender.receipts()) == 2
    assert await records(broker, sender.transaction) == 2
    assert not broker.segments.operations.gathered
    assert await state(broker, sender.transaction) is OPEN
    assert await sender.end(None) == COMMITTED


async def test_frames_over_another_connection_are_not_counted(broker: Broker, connect: Any) -> None:
    """They are recorded all the same, and count with the commit that comes after."""
    sender, other = await Sender.ready(await connect()), await Sender.ready(await connect(), "other")
    other.transaction = sender.transaction
    sender.send(b"a")
    other.send(b"b", name="other")
    assert await sender.end(2) == OPEN
    await sender.receipts()
    await other.receipts()
    assert await sender.end(None) == COMMITTED
    await until(lambda: hosted(broker, sender.segments[0]).readable == 4)


async def test_a_refused_frame_leaves_it_open_and_the_others_recorded(
    broker: Broker, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = await Sender.ready(await connect())
    segment: Any = hosted(broker, sender.segments[1]).segment

    def refused(waiter: Any, *arguments: Any) -> None:
        waiter.set_exception(SegmentSealedError("it is sealed"))

    monkeypatch.setattr(segment, "append_for", refused)
    sender.send(b"a", b"b", b"c")
    assert await sender.end(3) == OPEN
    _, header, _ = await sender.peer.take(Command.SEND_ERROR)
    assert header["code"] == SegmentSealedError.code
    assert await sender.receipts() == [(sender.producers[0], 1), (sender.producers[0], 2)]
    assert await records(broker, sender.transaction) == 2
    assert await state(broker, sender.transaction) is OPEN


async def test_a_dropped_frame_leaves_it_open_whatever_the_count_says(broker: Broker, connect: Any) -> None:
    """One is dropped as its producer is gone, and one was sent in the transaction by somebody else."""
    sender = await Sender.ready(await connect())
    await sender.peer.ask(Command.CLOSE_PRODUCER, producer_id=sender.producers[1])
    sender.send(b"a", b"dropped", b"c")
    assert await sender.end(2) == OPEN
    assert await state(broker, sender.transaction) is OPEN


async def test_of_two_ends_at_once_one_waits_for_the_frames(broker: Broker, connect: Any, writes: Writes) -> None:
    sender = await Sender.ready(await connect())
    sender.send(b"a", b"b")
    found = await asyncio.gather(sender.end(2), sender.end(2))
    assert found == [COMMITTED, OPEN]
    assert writes.names.count("put_with_sequence") == 1


async def test_an_abort_waits_for_nothing(broker: Broker, connect: Any) -> None:
    sender = await Sender.ready(await connect())
    for wrong in ({"action": "abort"}, {"mark": -1}, {"mark": 1 << 63}):
        with pytest.raises(InvalidArgumentError):
            await sender.end(0, **wrong)
    assert not broker.segments.operations.gathered
    sender.transaction = f"{1:016x}"
    with pytest.raises(TransactionNotFoundError):
        await sender.end(0)


# -- who else is there ---------------------------------------------------------------------------------------------


async def test_an_abort_that_is_first_is_a_conflict_for_the_end_and_the_frames(
    broker: Broker, connect: Any, writes: Writes
) -> None:
    sender = await Sender.ready(await connect())
    writes.gates["put_with_sequence"] = asyncio.Event()
    sender.send(b"a", b"b")
    ending = sender.end(2)
    await asyncio.wait_for(writes.begun.wait(), 20)
    await decide(broker, sender.transaction, ABORTED)
    writes.gates["put_with_sequence"].set()
    with pytest.raises(TransactionConflictError):
        await ending
    codes = [(await sender.peer.take(Command.SEND_ERROR))[1]["code"] for _ in range(2)]
    assert codes == [TransactionConflictError.code] * 2
    for segment in sender.segments:
        await until(lambda segment=segment: hosted(broker, segment).readable == 2)
        assert list(hosted(broker, segment).transactions.visibility.hidden) == [1]
    assert not broker.segments.operations.gathered


async def test_what_comes_while_it_is_committed_comes_too_late(broker: Broker, connect: Any, writes: Writes) -> None:
    """A frame of another connection is held back with the others, and not taken along."""
    sender, other = await Sender.ready(await connect()), await Sender.ready(await connect(), "other")
    other.transaction = sender.transaction
    writes.gates["put_with_sequence"] = asyncio.Event()
    sender.send(b"a")
    ending = sender.end(1)
    await asyncio.wait_for(writes.begun.wait(), 20)
    other.send(b"late", name="other")
    await latest(other.peer, other.segments[0])
    writes.gates["put_with_sequence"].set()
    assert await ending == COMMITTED
    _, header, _ = await other.peer.take(Command.SEND_ERROR)
    assert header["code"] == TransactionConflictError.code
    await until(lambda: hosted(broker, sender.segments[0]).readable == 4)
    assert list(hosted(broker, sender.segments[0]).transactions.visibility.hidden) == [3]


async def test_a_longer_life_meanwhile_is_no_conflict(broker: Broker, connect: Any, writes: Writes) -> None:
    sender = await Sender.ready(await connect())
    sender.transaction = await begin(sender.peer, name="job")
    writes.gates["put_with_sequence"] = asyncio.Event()
    sender.send(b"a")
    ending = sender.end(1)
    await asyncio.wait_for(writes.begun.wait(), 20)
    assert await begin(sender.peer, 600.0, name="job") == sender.transaction
    writes.gates["put_with_sequence"].set()
    assert await ending == COMMITTED
    assert writes.names.count("put_with_sequence") == 2


async def test_a_seal_waits_until_it_is_through(broker: Broker, connect: Any, writes: Writes) -> None:
    """Everything in a sealed segment has its record."""
    sender = await Sender.ready(await connect())
    writes.gates["put_with_sequence"] = asyncio.Event()
    sender.send(b"a", b"b")
    ending = sender.end(2)
    await asyncio.wait_for(writes.begun.wait(), 20)
    splitting = asyncio.ensure_future(broker.admin.split_segment("orders", 0))
    await until(lambda: hosted(broker, sender.segments[0]).segment.sealed)
    assert not splitting.done()
    writes.gates["put_with_sequence"].set()
    assert await ending == COMMITTED
    await splitting


# -- connections and stores that fail ------------------------------------------------------------------------------


async def test_a_connection_that_is_lost_before_its_end_came_leaves_records(
    broker: Broker, connect: Any, writes: Writes
) -> None:
    sender, other = await Sender.ready(await connect()), await connect()
    sender.send(b"a", b"b")
    sender.peer.send(Command.END_TXN, {"request_id": 99, "id": sender.transaction, "action": "commit", "sent": 3})
    sender.peer.stream.close()
    await sender.peer.lost
    await until(lambda: len(broker.connections) == 1)
    async with asyncio.timeout(20):
        while await records(broker, sender.transaction) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
    for segment in sender.segments:
        assert await latest(other, segment) == 1
    await end(other, sender.transaction)
    for segment in sender.segments:
        await until(lambda segment=segment: hosted(broker, segment).readable == 2)


async def lost_in_mid_commit(sender: Sender, writes: Writes) -> None:
    """Two messages and their end go out; the commit is held up, and the connection is lost."""
    writes.gates["put_with_sequence"] = asyncio.Event()
    sender.send(b"a", b"b")
    sender.peer.send(
        Command.END_TXN, {"request_id": 99, "id": sender.transaction, "action": "commit", "sent": 2, "mark": 5}
    )
    await asyncio.wait_for(writes.begun.wait(), 20)
    sender.peer.stream.close()
    await sender.peer.lost


async def test_a_connection_that_is_lost_behind_its_end_is_committed(
    broker: Broker, connect: Any, writes: Writes
) -> None:
    sender, other = await Sender.ready(await connect()), await connect()
    await lost_in_mid_commit(sender, writes)
    writes.gates["put_with_sequence"].set()
    for segment in sender.segments:
        await until(lambda segment=segment: hosted(broker, segment).readable == 2)
    assert (await other.ask(Command.TXN_STATE, id=sender.transaction))["result"]["mark"] == 5


async def test_what_is_sent_again_waits_for_the_first_time(broker: Broker, connect: Any, writes: Writes) -> None:
    """Over another connection, since the answers were lost; the first attempt to commit is still under way."""
    sender = await Sender.ready(await connect())
    again = Sender(await connect(), sender.segments)
    again.transaction = sender.transaction
    await lost_in_mid_commit(sender, writes)
    again.producers = [await again.peer.producer(segment) for segment in again.segments]
    again.send(b"a", b"b")
    await latest(again.peer, again.segments[0])
    assert not any(command is Command.SEND_RECEIPT for command, _, _ in again.peer.frames)
    writes.gates["put_with_sequence"].set()
    assert [offset for _, offset in await again.receipts() + await again.receipts()] == [1, 1]
    assert await again.end(None) == COMMITTED


@pytest.mark.parametrize("done", [True, False])
async def test_a_store_that_does_not_say_is_asked(broker: Broker, connect: Any, writes: Writes, done: bool) -> None:
    sender = await Sender.ready(await connect())
    writes.faults["put_with_sequence"] = [(OutcomeUnknownError("lost"), done)]
    sender.send(b"a", b"b")
    assert await sender.end(2, mark=1) == COMMITTED
    assert writes.names.count("put_with_sequence") == (1 if done else 2)
    assert await sender.receipts() == [(producer, 1) for producer in sender.producers]


async def test_a_record_that_nobody_knows_of_is_found(
    broker: Broker, connect: Any, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Header and record were written, the answer is lost, and then nobody can be asked: all of it counts, here too."""
    sender = await Sender.ready(await connect())
    store: Any = broker.metadata
    get, failures = store.get, [EngineError("out of reach")]

    async def out_of_reach(key: str) -> Any:
        if "put_with_sequence" in writes.names and key == f"/txn/{sender.transaction}" and failures:
            raise failures.pop()
        return await get(key)

    monkeypatch.setattr(store, "get", out_of_reach)
    writes.faults["put_with_sequence"] = [(OutcomeUnknownError("lost"), True)]
    sender.send(b"a", b"b")
    with pytest.raises(EngineError, match="out of reach"):
        await sender.end(2, mark=1)
    assert len(await sender.receipts() + await sender.receipts()) == 2
    for segment in sender.segments:
        await until(lambda segment=segment: hosted(broker, segment).readable == 2)
        assert not hosted(broker, segment).transactions.visibility.hidden


async def test_others_that_always_are_first_are_an_unknown_outcome(
    broker: Broker, connect: Any, writes: Writes
) -> None:
    sender = await Sender.ready(await connect())
    writes.faults["put_with_sequence"] = [(ConflictError("again"), False)] * 16
    sender.send(b"a")
    with pytest.raises(EngineError, match="ended by many at once"):
        await sender.end(1)
    await sender.receipts()
    assert await state(broker, sender.transaction) is OPEN
    assert await records(broker, sender.transaction) == 1
