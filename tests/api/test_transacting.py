"""Transactions as users write them: what is read of them, how they end, and what they refuse."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import engine
from engine.client.client import AsyncClient

IN_TIME = 20.0  # for what comes at once, on a busy machine too


@asynccontextmanager
async def reading(client: AsyncClient, topic: str = "t") -> AsyncIterator[engine.AsyncStreamConsumer]:
    """A consumer of a subscription of its own, from the beginning."""
    consumer = await client.stream_consumer(topic, "reader", initial_position="earliest")
    async with consumer:
        assert isinstance(consumer, engine.AsyncStreamConsumer)
        yield consumer


async def values(consumer: engine.AsyncStreamConsumer, count: int) -> list[bytes]:
    """The next so many messages' values."""
    found: list[bytes] = []
    while len(found) < count:
        batch = await consumer.receive_batch(max_messages=count - len(found), timeout=IN_TIME)
        assert len(batch), f"only {found} came"
        found += [message.value for message in batch]
    return found


# What is read.


async def test_nothing_is_read_before_it_is_committed(client: AsyncClient):
    async with await client.producer("t") as producer, reading(client) as consumer:
        async with client.transaction() as transaction:
            assert transaction.state == "OPEN"
            await producer.send(b"a", key="k", transaction=transaction)
            producer.send_nowait(b"b", key="k", transaction=transaction)
            await producer.send_batch([b"c", b"d"], ["k", "k"], transaction=transaction)
            await producer.flush()
            assert await consumer.receive(timeout=0) is None
        assert transaction.state == "COMMITTED"
        assert await values(consumer, 4) == [b"a", b"b", b"c", b"d"]


async def test_what_is_aborted_is_never_read(client: AsyncClient):
    async with await client.producer("t") as producer, reading(client) as consumer:
        made: list[engine.AsyncTransaction] = []

        async def work() -> None:
            async with client.transaction() as transaction:
                made.append(transaction)
                await producer.send(b"never", transaction=transaction)
                producer.send_nowait(b"never", transaction=transaction)
                raise RuntimeError("changed my mind")

        with pytest.raises(RuntimeError, match="changed my mind"):
            await work()
        assert made[0].state == "ABORTED"
        await producer.send(b"after")
        assert await values(consumer, 1) == [b"after"]


async def test_several_topics_at_once(client: AsyncClient):
    await client.admin.create_topic("t", segments=4)
    await client.admin.create_topic("u", segments=2)
    async with await client.producer("t") as one, await client.producer("u") as other:
        async with client.transaction() as transaction:
            for i in range(40):
                one.send_nowait(b"%d" % i, key=b"k%d" % i, transaction=transaction)
                other.send_nowait(b"%d" % i, key=b"k%d" % i, transaction=transaction)
        async with reading(client) as consumer:
            assert sorted(await values(consumer, 40)) == sorted(b"%d" % i for i in range(40))
        async with reading(client, "u") as consumer:
            assert sorted(await values(consumer, 40)) == sorted(b"%d" % i for i in range(40))


async def test_order_is_that_of_sending_whatever_they_belong_to(client: AsyncClient):
    """One producer, one key: two transactions and messages outside of any, in turn."""
    async with await client.producer("t") as producer, reading(client) as consumer:
        one, other = await client.transaction(), await client.transaction()
        for i in range(60):
            producer.send_nowait(b"%d" % i, key="k", transaction=(None, one, other)[i % 3])
        await one.commit()
        await other.commit()
        assert await values(consumer, 60) == [b"%d" % i for i in range(60)]


async def test_an_aborted_one_among_others_leaves_no_gap(client: AsyncClient):
    async with await client.producer("t") as producer, reading(client) as consumer:
        one, other = await client.transaction(), await client.transaction()
        for i in range(60):
            producer.send_nowait(b"%d" % i, key="k", transaction=(None, one, other)[i % 3])
        await other.abort()
        await one.commit()
        assert await values(consumer, 40) == [b"%d" % i for i in range(60) if i % 3 != 2]
        await producer.flush()  # what the aborted one lost is no failure


async def test_a_schema_and_a_resuming_producer_take_part(client: AsyncClient):
    async with await client.producer("t", name="p", schema=str) as producer, client.transaction() as transaction:
        await producer.send("eins", transaction=transaction)
        producer.send_nowait("zwei", transaction=transaction)
        await producer.send_batch(["drei"], transaction=transaction)
    async with await client.producer("t", name="p", schema=str) as producer:
        assert producer.last_sequence_id == 2
    consumer = await client.stream_consumer("t", "s", initial_position="earliest", schema=str)
    async with consumer:
        batch = [(await consumer.receive(timeout=IN_TIME)).value for _ in range(3)]  # type: ignore[union-attr]
        assert batch == ["eins", "zwei", "drei"]


# How they end.


async def test_to_end_it_twice_changes_nothing(client: AsyncClient):
    transaction = await client.transaction()
    await transaction.commit()
    await transaction.commit()
    with pytest.raises(engine.TransactionConflictError):
        await transaction.abort()
    with pytest.raises(engine.TransactionConflictError):
        await transaction.commit(accepted=["a"])
    assert transaction.state == "COMMITTED"
    other = await client.transaction()
    await other.abort()
    await other.abort()
    with pytest.raises(engine.TransactionConflictError):
        await other.commit()
    assert other.state == "ABORTED"


async def test_it_may_be_ended_inside_its_block(client: AsyncClient):
    async with client.transaction() as transaction:
        await transaction.commit()
    async with client.transaction() as other:
        await other.abort()
    assert (transaction.state, other.state) == ("COMMITTED", "ABORTED")


async def test_late_use_is_refused_and_the_producer_goes_on(client: AsyncClient):
    async with await client.producer("t") as producer, reading(client) as consumer:
        async with client.transaction() as transaction:
            await producer.send(b"in time", transaction=transaction)
        with pytest.raises(engine.TransactionConflictError):
            await producer.send(b"late", transaction=transaction)
        with pytest.raises(engine.TransactionConflictError):
            producer.send_nowait(b"late", transaction=transaction)
        with pytest.raises(engine.TransactionConflictError):
            await producer.send_batch([b"late"], transaction=transaction)
        await producer.send(b"after")
        assert await values(consumer, 2) == [b"in time", b"after"]
        with pytest.raises(engine.TransactionConflictError):
            await consumer.acknowledge_cumulative(engine.MessageId(0, 0), transaction=transaction)


async def test_its_timeout_aborts_it(client: AsyncClient):
    async with await client.producer("t") as producer, reading(client) as consumer:
        transaction = await client.transaction(0.05)
        await producer.send(b"forgotten", transaction=transaction)
        await producer.send(b"after")
        assert await values(consumer, 1) == [b"after"]  # held back until then
        with pytest.raises(engine.TransactionConflictError):
            await transaction.commit()
        with pytest.raises(engine.TransactionConflictError):
            await producer.send(b"late", transaction=transaction)
        assert transaction.state == "ABORTED"
        async with client.transaction() as another:
            await producer.send(b"again", transaction=another)
        assert await values(consumer, 1) == [b"again"]


async def test_who_did_not_hear_of_its_end_is_told_by_the_broker(client: AsyncClient):
    """Another one has ended it. What this client sends is refused; what it sends behind it is not."""
    failures: list[Exception] = []
    async with await client.producer("t", on_error=failures.append) as producer, reading(client) as consumer:
        transaction = await client.transaction()
        await producer.send(b"a", transaction=transaction)
        await (await client.join_transaction(transaction.id)).abort()
        producer.send_nowait(b"late", key="k", transaction=transaction)
        producer.send_nowait(b"b", key="k")
        async with client.transaction() as another:
            producer.send_nowait(b"c", key="k", transaction=another)
        with pytest.raises(engine.TransactionConflictError):
            await transaction.commit()
        assert transaction.state == "ABORTED"
        await producer.flush()  # the transaction has told it
        assert [type(e) for e in failures] == [engine.TransactionConflictError]
        assert await values(consumer, 2) == [b"b", b"c"]


async def test_a_cancelled_block_is_aborted(client: AsyncClient):
    async with await client.producer("t") as producer, reading(client) as consumer:
        inside = asyncio.Event()
        made: list[engine.AsyncTransaction] = []

        async def work() -> None:
            async with client.transaction() as transaction:
                made.append(transaction)
                await producer.send(b"never", transaction=transaction)
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert made[0].state == "ABORTED"
        await producer.send(b"after")
        assert await values(consumer, 1) == [b"after"]


async def test_a_client_that_closes_aborts_what_is_open(served: engine.AsyncEngine):
    async with reading(served) as consumer:
        async with engine.AsyncClient(served.service_url) as client:
            producer = await client.producer("t")
            transaction = await client.transaction()
            await producer.send(b"never", transaction=transaction)
            joined = await served.join_transaction(transaction.id)
        with pytest.raises(engine.EngineError):
            await transaction.commit()
        with pytest.raises(engine.TransactionConflictError):
            await joined.commit()
        async with await served.producer("t") as producer:
            await producer.send(b"after")
        assert await values(consumer, 1) == [b"after"]


# Names and attempts.


async def test_a_name_finds_what_is_committed(client: AsyncClient):
    """A job that is run again skips what it has done."""
    async with await client.producer("t") as producer, reading(client) as consumer:
        for _ in range(2):
            async with client.transaction(name="job-1") as transaction:
                assert transaction.name == "job-1"
                if transaction.state == "OPEN":
                    await producer.send(b"once", transaction=transaction)
            assert transaction.state == "COMMITTED"
        await producer.send(b"after")
        assert await values(consumer, 2) == [b"once", b"after"]


async def test_a_name_finds_what_is_open_and_not_what_was_aborted(client: AsyncClient):
    one = await client.transaction(name="job-1")
    other = await client.transaction(name="job-1")
    assert (one.id, other.state) == (other.id, "OPEN")
    await one.abort()
    anew = await client.transaction(name="job-1")
    assert (anew.state, anew.id != one.id) == ("OPEN", True)


async def test_only_accepted_attempts_take_effect(client: AsyncClient):
    async with await client.producer("t") as producer, reading(client) as consumer:
        job = await client.transaction(name="job")
        for attempt in ("0-0", "1-0", "1-1"):
            async with client.join_transaction(job.id, attempt) as part:
                assert (part.id, part.attempt, part.state) == (job.id, attempt, "OPEN")
                producer.send_nowait(attempt.encode(), key="k", transaction=part)
            assert part.state == "OPEN"  # leaving it has ended nothing
        producer.send_nowait(b"no attempt", key="k", transaction=job)
        await job.commit(accepted=["1-1", "0-0"])
        await job.commit(accepted=("0-0", "1-1", "1-1"))
        await producer.send(b"after", key="k")
        assert await values(consumer, 3) == [b"0-0", b"1-1", b"after"]
        replayed = await client.transaction(name="job")
        assert replayed.state == "COMMITTED"
        await replayed.commit(accepted=["0-0", "1-1"])
        with pytest.raises(engine.TransactionConflictError):
            await replayed.commit(accepted=["0-0"])


async def test_who_leaves_a_joined_one_has_written_everything(client: AsyncClient):
    async with await client.producer("t") as producer:
        job = await client.transaction()
        async with client.join_transaction(job.id) as part:
            for _ in range(100):
                producer.send_nowait(b"x", transaction=part)
        assert producer.statistics().pending_messages == 0
        await part.flush()
        await job.abort()
        async with client.join_transaction(job.id) as late:
            assert late.state == "ABORTED"
            with pytest.raises(engine.TransactionConflictError):
                producer.send_nowait(b"x", transaction=late)


# Bad input.


@pytest.mark.parametrize("timeout", [0, -1, 24 * 3600.0 + 1, math.inf, math.nan, "1", None, True])
async def test_timeouts_out_of_range(client: AsyncClient, timeout: float):
    with pytest.raises(engine.InvalidArgumentError):
        await client.transaction(timeout)
    with pytest.raises(engine.InvalidArgumentError):
        async with client.transaction(timeout):
            pass


async def test_what_is_no_transaction(client: AsyncClient):
    for wrong in ("", "xyz", "00", "0" * 17, "G" * 16, 7, None):
        with pytest.raises(engine.InvalidArgumentError):
            await client.join_transaction(wrong)  # type: ignore[arg-type]
    for attempt in ("", "a/b", 7):
        with pytest.raises(engine.InvalidArgumentError):
            await client.join_transaction("0" * 16, attempt)  # type: ignore[arg-type]
    with pytest.raises(engine.TransactionNotFoundError):
        await client.join_transaction("0123456789abcdef")
    with pytest.raises(engine.InvalidArgumentError):
        await client.transaction(name="")
    transaction = await client.transaction()
    for accepted in ("a", [7], [""], 7):
        with pytest.raises(engine.InvalidArgumentError):
            await transaction.commit(accepted=accepted)  # type: ignore[arg-type]
    assert transaction.state == "OPEN"
    async with await client.producer("t") as producer, await client.queue_consumer("t", "q") as queue:
        for wrong in (b"x", transaction.id, object()):
            with pytest.raises(engine.InvalidArgumentError):
                await producer.send(b"x", transaction=wrong)  # type: ignore[arg-type]
            with pytest.raises(engine.InvalidArgumentError):
                producer.send_nowait(b"x", transaction=wrong)  # type: ignore[arg-type]
            with pytest.raises(engine.InvalidArgumentError):
                await producer.send_batch([b"x"], transaction=wrong)  # type: ignore[arg-type]
            with pytest.raises(engine.InvalidArgumentError):
                await queue.acknowledge(engine.MessageId(0, 0), transaction=wrong)  # type: ignore[arg-type]
        forgotten = client.transaction()
        with pytest.raises(engine.InvalidArgumentError, match="await it"):
            await producer.send(b"x", transaction=forgotten)  # type: ignore[arg-type]
        forgotten.drop()  # else Python warns that it was never awaited
        assert producer.last_sequence_id == -1


async def test_another_clients_is_refused(served: engine.AsyncEngine):
    async with engine.AsyncClient(served.service_url) as other:
        transaction = await other.transaction()
        async with await served.producer("t") as producer, reading(served) as consumer:
            with pytest.raises(engine.InvalidArgumentError):
                await producer.send(b"x", transaction=transaction)
            with pytest.raises(engine.InvalidArgumentError):
                producer.send_nowait(b"x", transaction=transaction)
            with pytest.raises(engine.InvalidArgumentError):
                await consumer.acknowledge_cumulative(engine.MessageId(0, 0), transaction=transaction)
            async with served.join_transaction(transaction.id) as ours:
                await producer.send(b"y", transaction=ours)
            await transaction.commit()
            assert await values(consumer, 1) == [b"y"]
