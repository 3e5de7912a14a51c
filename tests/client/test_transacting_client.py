"""Transactions against a scripted broker: lost answers, failures inside, what is sent, and what is waited for."""

from __future__ import annotations

import asyncio

import pytest

from engine.client.client import AsyncClient
from engine.client.consume.stream_consumer import AsyncStreamConsumer
from engine.client.transact.scope import Scope
from engine.errors import (
    AlreadyClosedError,
    FencedError,
    InvalidArgumentError,
    StorageError,
    TransactionConflictError,
    TransactionNotFoundError,
    UnknownOutcomeError,
    UnsupportedError,
)
from engine.model.transactions import attempt_number
from engine.wire.commands import Command
from tests.kit import fake_coordinator
from tests.kit.fake_broker import FakeBroker


class Listener:
    """Hears how a transaction ends."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        self.counted: bool | None = None

    def transaction_ended(self, scope: Scope, counted: bool) -> None:
        self.counted = counted
        self.told.set()


def ends(broker: FakeBroker) -> list[str]:
    return [header["action"] for header in broker.of(Command.END_TXN)]


# How an end is found out.


async def test_a_commit_whose_answer_was_lost_is_looked_up(broker: FakeBroker):
    async with broker.client() as client:
        transaction = await client.transaction()
        broker.lose_answers.append(Command.END_TXN)
        await transaction.commit()
        assert transaction.state == "COMMITTED"
    assert (ends(broker), len(broker.of(Command.TXN_STATE))) == (["commit"], 1)


async def test_a_commit_that_never_arrived_is_made_again(broker: FakeBroker):
    async with broker.client() as client:
        transaction = await client.transaction()
        broker.lose_requests += [Command.END_TXN, Command.TXN_STATE]
        await transaction.commit()
        assert transaction.state == "COMMITTED"
    assert (ends(broker), len(broker.of(Command.TXN_STATE))) == (["commit", "commit"], 2)


async def test_a_commit_that_somebody_else_made_is_not_taken_for_the_lost_one(broker: FakeBroker):
    """It may have accepted other attempts; the coordinator says so."""
    async with broker.client() as client:
        transaction = await client.transaction()
        broker.lose_requests.append(Command.END_TXN)
        broker.transactions[transaction.id] = "COMMITTED"
        await transaction.commit(accepted=["mine"])
    assert ends(broker) == ["commit", "commit"]


async def test_a_commit_that_came_too_late_is_a_conflict(broker: FakeBroker):
    for lost in (False, True):
        async with broker.client() as client:
            transaction = await client.transaction()
            broker.transactions[transaction.id] = "ABORTED"
            if lost:
                broker.lose_answers.append(Command.END_TXN)
            with pytest.raises(TransactionConflictError):
                await transaction.commit()
            assert transaction.state == "ABORTED"


async def test_an_abort_that_comes_too_late_takes_nothing_back(broker: FakeBroker):
    """Who was told of a conflict would do everything once more."""
    async with broker.client() as client:
        transaction = await client.transaction()
        commit = asyncio.ensure_future(transaction.commit())
        async with asyncio.timeout(20):
            while not ends(broker):  # noqa: ASYNC110
                await asyncio.sleep(0)
        with pytest.raises(TransactionConflictError):
            await transaction.abort()
        await commit
        await transaction.commit()
        assert transaction.state == "COMMITTED"
    assert ends(broker) == ["commit"]


async def test_what_is_to_be_aborted_is_not_committed_when_that_has_failed(broker: FakeBroker):
    async with broker.client(operation_timeout=0.05) as client:
        transaction = await client.transaction()
        broker.reachable = False
        broker.cut()
        with pytest.raises(UnknownOutcomeError):
            await transaction.abort()
        broker.reachable = True
        with pytest.raises(TransactionConflictError, match="being aborted"):
            await transaction.commit()
        assert broker.transactions[transaction.id] == "OPEN"


async def test_an_end_that_nobody_tells_is_unknown(broker: FakeBroker):
    async with broker.client(operation_timeout=0.05) as client:
        transaction = await client.transaction()
        broker.reachable = False
        broker.cut()
        with pytest.raises(UnknownOutcomeError):
            await transaction.commit()
        assert transaction.state == "OPEN"
        broker.reachable = True
        await transaction.commit()
        assert transaction.state == "COMMITTED"


@pytest.mark.parametrize(("lost", "error"), [(True, UnknownOutcomeError), (False, TransactionNotFoundError)])
async def test_what_is_forgotten_is_not_said_to_be_anything(
    broker: FakeBroker, lost: bool, error: type[Exception], client: AsyncClient
):
    transaction = await client.transaction()
    broker.transactions.clear()
    if lost:
        broker.lose_answers.append(Command.END_TXN)
    with pytest.raises(error):
        await transaction.commit()
    assert transaction.state == "OPEN"


async def test_a_broker_without_them_is_refused(broker: FakeBroker):
    broker.features.remove("transactions")
    async with broker.client() as client:
        with pytest.raises(UnsupportedError, match="lacks the feature transactions"):
            await client.transaction()


async def test_one_that_is_forgotten_is_looked_at_when_its_time_is_over(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fake_coordinator, "DEADLINE_MS", 0)
    async with broker.client() as client, await client.producer("t") as producer:
        transaction = await client.transaction()
        broker.transactions[transaction.id] = "ABORTED"
        listener = Listener()
        transaction.scope.acknowledged_by(listener)
        await listener.told.wait()
        assert (transaction.state, listener.counted) == ("ABORTED", False)
        with pytest.raises(TransactionConflictError):
            producer.send_nowait(b"late", transaction=transaction)


# What goes over the wire, and what is waited for.


@pytest.mark.parametrize("joint", [False, True])
async def test_a_frame_is_of_one_transaction_or_says_that_it_is_of_several(broker: FakeBroker, joint: bool):
    if not joint:
        broker.features.remove("joint-sends")
    async with broker.client() as client, await client.producer("t") as producer:
        await producer.send(b"attached")
        one = await client.transaction()
        part = await client.join_transaction(one.id, "first")
        other = await client.transaction()
        for transaction in (one, one, part, other, None, other):
            producer.send_nowait(b"x", transaction=transaction)
        await producer.flush()
        fields = ("transaction", "attempt", "several", "entries")
        sent = [tuple(map(header.get, fields)) for header in broker.of(Command.SEND)[1:]]
        behind = [(None, None, None, 1), (other.id, None, None, 1)]
        if joint:
            assert sent == [(None, None, True, 3), *behind]
        else:
            assert sent == [(one.id, None, None, 1), (one.id, "first", None, 1), (other.id, None, None, 1), *behind]
        assert part.scope.attempt_number == attempt_number("first")


async def test_a_commit_waits_for_what_is_sent(broker: FakeBroker, client: AsyncClient):
    async with await client.producer("t") as producer:
        transaction = await client.transaction()
        broker.holding = True
        producer.send_nowait(b"x", transaction=transaction)
        committing = asyncio.ensure_future(transaction.commit())
        await broker.until(lambda: bool(broker.of(Command.SEND)))
        await broker.settle()
        assert not committing.done()
        assert ends(broker) == []
        with pytest.raises(TransactionConflictError):
            producer.send_nowait(b"late", transaction=transaction)
        broker.release()
        await committing
        assert ends(broker) == ["commit"]


async def test_what_failed_inside_aborts_it(broker: FakeBroker, client: AsyncClient):
    """Also what somebody has caught."""
    async with await client.producer("t") as producer:
        transaction = await client.transaction()
        broker.refuse = lambda segment, sequence: StorageError("no room") if sequence == 0 else None
        with pytest.raises(StorageError):
            await producer.send(b"x", transaction=transaction)
        await producer.send(b"y", transaction=transaction)
        with pytest.raises(StorageError):
            await transaction.commit()
        assert (ends(broker), transaction.state) == (["abort"], "ABORTED")
        await producer.flush()
        await producer.send(b"z")


async def test_a_commit_that_is_cancelled_in_time_aborts(broker: FakeBroker, client: AsyncClient):
    async with await client.producer("t") as producer:
        transaction = await client.transaction()
        broker.holding = True
        producer.send_nowait(b"x", transaction=transaction)
        committing = asyncio.ensure_future(transaction.commit())
        await broker.until(lambda: bool(broker.of(Command.SEND)))
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing
        await broker.until(lambda: transaction.state == "ABORTED")
        assert ends(broker) == ["abort"]
        broker.release()


async def test_the_end_of_a_transaction_leaves_the_others_alone(broker: FakeBroker):
    """What is of it fails; what else is in flight is sent again, in order."""
    failures: list[Exception] = []
    async with broker.client() as client, await client.producer("t", name="p", on_error=failures.append) as producer:
        await producer.send(b"0", sequence_id=0)
        one, other = await client.transaction(), await client.transaction()
        broker.refuse = lambda segment, sequence: TransactionConflictError("over") if sequence in (2, 5) else None
        for i, transaction in enumerate((other, one, other, None, one, other), start=1):
            producer.send_nowait(b"%d" % i, sequence_id=i, transaction=transaction)
        await producer.flush()
        assert broker.log[0] == [(0, 1), (1, 1), (3, 1), (4, 1), (6, 1)]
        await other.commit()
        with pytest.raises(TransactionConflictError):
            await one.commit()
        assert [type(e) for e in failures] == [TransactionConflictError] * 2, "one for each frame that is refused"
        await producer.send(b"7", sequence_id=7)
        assert producer.acknowledged_sequence_id == 7


async def test_whoever_closes_the_client_aborts(broker: FakeBroker):
    client = broker.client()
    transaction = await client.transaction()
    others = await broker.client().transaction()
    joined = await client.join_transaction(others.id)
    await client.close()
    assert broker.transactions == {transaction.id: "ABORTED", joined.id: "OPEN"}
    with pytest.raises(AlreadyClosedError):
        await client.transaction()


# Acknowledgements.


async def consuming(broker: FakeBroker, client: object) -> AsyncStreamConsumer:
    consumer = await client.stream_consumer("t", "s")  # type: ignore[attr-defined]
    assert isinstance(consumer, AsyncStreamConsumer)
    return consumer


async def test_nothing_is_acknowledged_before_the_commit(broker: FakeBroker):
    """Semantics 12: what was aborted is acknowledged by a later acknowledgement of the same id."""
    broker.publish(0, [b"a", b"b"])
    async with broker.client() as client, await consuming(broker, client) as consumer:
        message = await consumer.receive()
        assert message is not None
        transaction = await client.transaction()
        await consumer.acknowledge_cumulative(message, transaction=transaction)
        broker.cursors[0] = 0
        ack = broker.of(Command.ACK)[-1]
        assert (ack["transaction"], ack.get("attempt"), ack["position"]) == (transaction.id, None, 1)
        await transaction.abort()
        again = [await consumer.receive(), await consumer.receive()]
        assert [m.value for m in again if m is not None] == [b"a", b"b"]
        assert len(broker.of(Command.SUBSCRIBE)) == 2
        await consumer.acknowledge_cumulative(message)
        assert [(a.get("transaction"), a["position"]) for a in broker.of(Command.ACK)[1:]] == [(None, 1)]


async def test_what_was_committed_is_not_acknowledged_again(broker: FakeBroker):
    broker.publish(0, [b"a", b"b"])
    async with broker.client() as client, await consuming(broker, client) as consumer:
        message = await consumer.receive()
        assert message is not None
        async with client.transaction() as transaction:
            await consumer.acknowledge_cumulative(message, transaction=transaction)
        await consumer.acknowledge_cumulative(message)
        assert len(broker.of(Command.ACK)) == 1
        with pytest.raises(TransactionConflictError):
            await consumer.acknowledge_cumulative(message, transaction=await client.transaction())


async def test_what_may_have_come_twice_is_not_acknowledged_in_one(broker: FakeBroker):
    """The connection is lost between a receive and its acknowledgement: the broker delivers again."""
    broker.publish(0, [b"a", b"b"])
    async with broker.client() as client, await consuming(broker, client) as consumer:
        first = await consumer.receive()
        assert first is not None
        broker.cut()
        await broker.until(lambda: len(broker.of(Command.FLOW)) > 1)
        transaction = await client.transaction()
        with pytest.raises(TransactionConflictError, match="twice"):
            await consumer.acknowledge_cumulative(first, transaction=transaction)
        with pytest.raises(TransactionConflictError, match="twice"):
            await transaction.commit()
        assert (transaction.state, broker.of(Command.ACK)) == ("ABORTED", [])
        again = await consumer.receive()
        assert again is not None
        assert again.value == b"a"
        async with client.transaction() as transaction:
            await consumer.acknowledge_cumulative(again, transaction=transaction)
        assert broker.cursors[0] == 1


async def gone(broker: FakeBroker, consumer: AsyncStreamConsumer[bytes]) -> None:
    """The segment leaves the consumer's share, and its connection is lost before everything is acknowledged."""
    broker.assigned = []
    broker.last.assign()
    broker.cut()
    await broker.until(lambda: not consumer.attachments)


@pytest.mark.parametrize("tried", ["before", "after"])
async def test_what_an_abort_gives_back_is_received_again_although_its_segment_was_away(broker: FakeBroker, tried: str):
    """A consumer whose segment left, and came back, acknowledged in its next transaction what it had from before."""
    broker.publish(0, [b"a", b"b"])
    async with broker.client() as client, await consuming(broker, client) as consumer:
        first = await consumer.receive()
        assert first is not None
        transaction = await client.transaction()
        if tried == "before":
            await consumer.acknowledge_cumulative(first, transaction=transaction)
            broker.cursors[0] = 0  # it does not count
            await gone(broker, consumer)
        else:
            await gone(broker, consumer)
            with pytest.raises(FencedError, match="went to another consumer"):
                await consumer.acknowledge_cumulative(first, transaction=transaction)
        await transaction.abort()
        broker.assigned = [0]
        broker.last.assign()
        again = await consumer.receive()
        assert again is not None
        assert again.value == b"a"
        async with client.transaction() as transaction:
            await consumer.acknowledge_cumulative(again, transaction=transaction)
        assert broker.cursors[0] == 1


@pytest.mark.parametrize("when", ["while it is away", "when it is back"])
async def test_what_was_received_before_an_abort_is_refused_behind_it_although_its_segment_was_away(
    broker: FakeBroker, when: str
):
    broker.publish(0, [b"a", b"b"])
    async with broker.client() as client, await consuming(broker, client) as consumer:
        first = await consumer.receive()
        assert first is not None
        transaction = await client.transaction()
        await consumer.acknowledge_cumulative(first, transaction=transaction)
        broker.cursors[0] = 0  # it does not count
        await gone(broker, consumer)
        if when == "while it is away":
            await transaction.abort()
        broker.assigned = [0]
        broker.last.assign()
        await broker.until(lambda: bool(consumer.attachments))
        if when == "when it is back":
            await transaction.abort()
        following = await client.transaction()
        with pytest.raises(TransactionConflictError, match="due again"):
            await consumer.acknowledge_cumulative(first, transaction=following)
        await following.abort()
        again = await consumer.receive()
        assert again is not None
        assert again.value == b"a"


async def test_later_messages_of_other_segments_do_not_cover_what_an_abort_gave_back():
    """An id has the position of each segment from which something was received."""
    broker = FakeBroker(segments=2)
    broker.publish(0, [b"a"])
    async with broker.client() as client, await consuming(broker, client) as consumer:
        first = await consumer.receive()
        assert first is not None
        transaction = await client.transaction()
        await consumer.acknowledge_cumulative(first, transaction=transaction)
        broker.cursors[0] = 0  # it does not count
        broker.assigned = [1]
        broker.last.assign()
        broker.cut()
        await broker.until(lambda: list(consumer.attachments) == [1])
        await transaction.abort()
        broker.publish(1, [b"other"])
        other = await consumer.receive()
        assert other is not None
        broker.assigned = [0, 1]
        broker.last.assign()
        await broker.until(lambda: 0 in consumer.attachments)
        async with client.transaction() as transaction:
            await consumer.acknowledge_cumulative(other, transaction=transaction)
        assert (broker.cursors[0], broker.cursors[1]) == (0, 1)
        again = await consumer.receive()
        assert again is not None
        assert again.value == b"a"


async def test_an_acknowledgement_that_is_given_up_is_part_of_it(broker: FakeBroker):
    broker.publish(0, [b"a"])
    broker.confirming = False
    async with broker.client(operation_timeout=0.2) as client, await consuming(broker, client) as consumer:
        message = await consumer.receive()
        assert message is not None
        transaction = await client.transaction()
        acknowledging = asyncio.ensure_future(consumer.acknowledge_cumulative(message, transaction=transaction))
        await broker.until(lambda: bool(broker.of(Command.ACK)))
        acknowledging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acknowledging
        with pytest.raises(TimeoutError):  # nobody has confirmed it
            await transaction.commit()
        assert ends(broker) == ["abort"]


# How it is shown.


async def test_it_says_which_attempt_it_is(client: AsyncClient):
    async with client.transaction() as transaction:
        joined = await client.join_transaction(transaction.id, "part-1")
        assert repr(transaction) == f"<AsyncTransaction {transaction.id} OPEN>"
        assert repr(joined) == f"<AsyncTransaction {transaction.id} attempt 'part-1' OPEN>"


async def test_one_is_begun_once(broker: FakeBroker, client: AsyncClient):
    entering = client.transaction()
    async with entering as transaction:
        with pytest.raises(InvalidArgumentError, match="awaited or entered before"):
            await entering
    assert transaction.state == "COMMITTED"
    with pytest.raises(InvalidArgumentError, match="keep what it gave"):
        async with entering:
            raise AssertionError
    assert len(broker.transactions) == 1


async def test_what_could_not_be_begun_may_be_tried_again(broker: FakeBroker):
    broker.features.remove("transactions")
    async with broker.client() as client:
        entering = client.transaction()
        with pytest.raises(UnsupportedError):
            await entering
        with pytest.raises(UnsupportedError):
            await entering
