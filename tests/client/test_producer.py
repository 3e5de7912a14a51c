"""What a producer does about receipts, refusals, lost connections, time limits and full queues."""

from __future__ import annotations

import asyncio

import pytest

from engine.client import Batching, MessageId
from engine.client.client import AsyncClient
from engine.errors import (
    AlreadyClosedError,
    ConnectError,
    FencedError,
    InvalidArgumentError,
    MessageTooLargeError,
    NotOwnerError,
    ProducerBusyError,
    QueueFullError,
    SegmentSealedError,
    StorageError,
    TimeoutError,
)
from engine.wire.commands import Command
from tests.kit.fake_broker import FakeBroker


async def test_send_returns_the_id_at_which_the_message_is_durable(broker: FakeBroker):
    async with broker.client() as client, await client.producer("t") as producer:
        first = await producer.send(b"a", key=b"k")
        second = await producer.send(b"b")
    assert (first.segment_id, first.offset) == (0, 0)
    assert (second.segment_id, second.offset) == (0, 1)
    assert first < second
    assert isinstance(first, MessageId)


async def test_reconnect_resends_everything_unacknowledged_in_order(broker: FakeBroker, client: AsyncClient):
    """No loss, no reordering, no duplicate, whichever side of the append the connection broke on."""
    producer = await client.producer("t", name="p")
    broker.holding = True
    sends = []
    for n in range(5):
        sends.append(asyncio.ensure_future(producer.send(b"%d" % n)))
        await broker.settle()
        producer._outbox.send_open()
    await broker.settle()
    assert broker.log[0] == [(n, 1) for n in range(5)]
    del broker.log[0][3:]  # the last two never arrived
    broker.ends[0] = 3
    for connection in broker.connections:
        connection.held.clear()
    broker.holding = False
    broker.cut()
    ids = await asyncio.gather(*sends)
    assert broker.log[0] == [(n, 1) for n in range(5)]
    assert [i.offset for i in ids] == [-1, -1, -1, 3, 4]
    assert producer.statistics().entries_resent == 5
    await producer.close()


async def test_reconnects_while_nothing_is_in_flight(broker: FakeBroker, client: AsyncClient):
    producer = await client.producer("t")
    await producer.send(b"1")
    broker.cut()
    await broker.settle()
    assert (await producer.send(b"2")).offset == 1


async def test_a_broker_that_comes_back_later_gets_what_waited(broker: FakeBroker, client: AsyncClient):
    producer = await client.producer("t")
    await producer.send(b"1")
    broker.reachable = False
    broker.cut()
    send = asyncio.ensure_future(producer.send(b"2"))
    await asyncio.sleep(0.05)
    assert not send.done()
    broker.reachable = True
    assert (await send).offset == 1


async def test_a_named_producer_continues_its_sequence(broker: FakeBroker):
    broker.log[0].append((10, 5))
    async with broker.client() as client:
        producer = await client.producer("t", name="p")
        assert producer.last_sequence_id == 14
        await producer.send(b"x")
        assert broker.log[0][-1] == (15, 1)
        other = await client.producer("t", name="q", initial_sequence_id=99)
        await other.send(b"x")
        assert broker.log[0][-1] == (100, 1)


async def test_a_sealed_or_moved_segment_is_retried_invisibly(broker: FakeBroker):
    refusals = [SegmentSealedError("sealed"), NotOwnerError("moved"), SegmentSealedError("sealed")]
    broker.refuse = lambda segment, sequence: refusals.pop(0) if refusals else None
    async with broker.client() as client:
        producer = await client.producer("t")
        ids = await asyncio.gather(*(producer.send(b"x") for _ in range(3)))
        assert [i.offset for i in ids] == [0, 1, 2]
        assert not refusals
        assert broker.log[0] == [(0, 3)]


async def test_retries_against_a_stale_layout_are_bounded(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("engine.client.produce.sender.SEALED_S_MAX", 0.2)
    attempts = 0

    def refuse(segment: int, sequence: int) -> SegmentSealedError:
        nonlocal attempts
        attempts += 1
        return SegmentSealedError("sealed")

    broker.refuse = refuse
    async with broker.client() as client:
        producer = await client.producer("t")
        with pytest.raises(TimeoutError, match="10 attempts"):
            await producer.send(b"x")
        assert attempts == 10


async def test_a_newer_layout_ends_the_wait(broker: FakeBroker):
    broker.refuse = lambda segment, sequence: NotOwnerError("moved") if broker.epoch == 0 else None
    async with broker.client() as client:
        producer = await client.producer("t")
        send = asyncio.ensure_future(producer.send(b"x"))
        await broker.settle()
        broker.epoch = 1
        broker.last.update(broker.last.sessions[0])
        assert (await send).offset == 0


async def test_an_older_layout_is_not_applied(broker: FakeBroker, client: AsyncClient):
    broker.epoch = 5
    producer = await client.producer("t")
    broker.epoch = 4
    broker.last.update(broker.last.sessions[0])
    await broker.settle()
    assert producer._outbox.session.layout.epoch == 5


async def test_an_error_about_one_entry_concerns_no_other(broker: FakeBroker):
    broker.refuse = lambda segment, sequence: MessageTooLargeError("too large") if sequence == 1 else None
    async with broker.client() as client:
        producer = await client.producer("t", batching=Batching(max_messages=1))
        outcomes = await asyncio.gather(*(producer.send(b"x") for _ in range(3)), return_exceptions=True)
    assert [type(o) for o in outcomes] == [MessageId, MessageTooLargeError, MessageId]


async def test_a_storage_error_fails_it_and_what_came_after_it(broker: FakeBroker):
    broker.refuse = lambda segment, sequence: StorageError("no") if sequence == 1 else None
    async with broker.client() as client:
        producer = await client.producer("t", batching=Batching(max_messages=1))
        outcomes = await asyncio.gather(*(producer.send(b"x") for _ in range(3)), return_exceptions=True)
        assert [type(o) for o in outcomes] == [MessageId, StorageError, StorageError]
        broker.refuse = lambda segment, sequence: None
        assert (await producer.send(b"x")).offset == 1


async def test_a_fenced_producer_takes_nothing_more(broker: FakeBroker):
    broker.refuse = lambda segment, sequence: FencedError("a newer producer has taken over")
    async with broker.client() as client:
        producer = await client.producer("t")
        with pytest.raises(FencedError):
            await producer.send(b"x")
        with pytest.raises(FencedError):
            await producer.send(b"x")
        with pytest.raises(FencedError):
            producer.send_nowait(b"x")


async def test_exclusive_access_is_claimed_at_creation(broker: FakeBroker):
    broker.refuse_attach = lambda name: ProducerBusyError("taken")
    async with broker.client() as client:
        with pytest.raises(ProducerBusyError):
            await client.producer("t", access_mode="exclusive")
        shared = await client.producer("t")  # attaches lazily
        with pytest.raises(ProducerBusyError):
            await shared.send(b"x")


async def test_a_claim_to_exclusive_access_is_renewed_after_a_loss(broker: FakeBroker, client: AsyncClient):
    producer = await client.producer("t", access_mode="exclusive")
    broker.refuse_attach = lambda name: ProducerBusyError("taken meanwhile")
    attached = len(broker.of(Command.PRODUCER))
    broker.cut()
    await broker.until(lambda: len(broker.of(Command.PRODUCER)) > attached)
    await broker.settle()
    with pytest.raises(ProducerBusyError):
        producer.send_nowait(b"x")


async def test_send_timeout(broker: FakeBroker, client: AsyncClient):
    producer = await client.producer("t", send_timeout=1.0)  # long enough for the broker to have it
    broker.holding = True
    with pytest.raises(TimeoutError, match="outcome is unknown"):
        await producer.send(b"1")
    assert producer.statistics().pending_bytes == 0
    late = asyncio.ensure_future(producer.send(b"2"))
    await broker.settle()
    broker.release()  # also the receipt of the one that is out of time
    assert (await late).offset == 1


async def test_send_timeout_while_nobody_is_there(broker: FakeBroker, client: AsyncClient):
    producer = await client.producer("t", send_timeout=0.4)
    await producer.send(b"1")
    broker.reachable = False
    broker.cut()
    with pytest.raises(TimeoutError):
        await producer.send(b"2")
    broker.reachable = True
    await asyncio.sleep(0.4)
    await producer.send(b"3")
    assert broker.log[0] == [(0, 1), (2, 1)]


async def test_a_cancelled_send_disturbs_nobody(broker: FakeBroker, client: AsyncClient):
    producer = await client.producer("t")
    broker.holding = True
    sends = [asyncio.ensure_future(producer.send(b"x")) for _ in range(3)]
    await broker.settle()
    sends[1].cancel()
    broker.release()
    outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(o) for o in outcomes] == [MessageId, asyncio.CancelledError, MessageId]
    assert producer.statistics().pending_bytes == 0


async def test_back_pressure(broker: FakeBroker):
    """send_nowait raises, send and writable wait."""
    limit = 6 << 20
    value = bytes(1 << 20)
    async with broker.client() as client:
        producer = await client.producer("t", max_pending_bytes=limit)
        broker.holding = True
        for _ in range(6):
            producer.send_nowait(value)
        with pytest.raises(QueueFullError):
            producer.send_nowait(value)
        waiting = asyncio.ensure_future(producer.send(b"last"))
        writable = asyncio.ensure_future(producer.writable())
        await broker.settle()
        assert not waiting.done()
        assert not writable.done()
        broker.release()
        await writable
        await waiting
        await producer.flush()
        assert producer.statistics().pending_bytes == 0


async def test_flush_waits_for_what_was_sent_before_it_and_not_after(broker: FakeBroker, client: AsyncClient):
    producer = await client.producer("t")
    broker.holding = True
    producer.send_nowait(b"before")
    flush = asyncio.ensure_future(producer.flush())
    await broker.settle()
    producer.send_nowait(b"after")
    producer._outbox.send_open()
    await broker.settle()
    assert not flush.done()
    broker.last.stream.send(Command.SEND_RECEIPT, broker.last.held.pop(0))
    await asyncio.wait_for(flush, 60)
    assert producer.statistics().pending_messages == 1
    broker.release()


async def test_failures_of_send_nowait_surface_in_flush_and_on_error(broker: FakeBroker):
    heard: list[Exception] = []
    broker.refuse = lambda segment, sequence: StorageError("no") if sequence == 0 else None
    async with broker.client() as client:
        producer = await client.producer("t", on_error=heard.append)
        producer.send_nowait(b"x")
        with pytest.raises(StorageError):
            await producer.flush()
        await producer.flush()  # reported once
        assert [type(e) for e in heard] == [StorageError]
        assert producer.statistics().messages_failed == 1


async def test_close_flushes_is_idempotent_and_final(broker: FakeBroker, client: AsyncClient):
    producer = await client.producer("t")
    kept = producer.send_nowait
    producer.send_nowait(b"x")
    await producer.close()
    await producer.close()
    assert broker.log[0] == [(0, 1)]
    with pytest.raises(AlreadyClosedError):
        producer.send_nowait(b"x")
    with pytest.raises(AlreadyClosedError):
        await producer.send(b"x")
    with pytest.raises(AlreadyClosedError):
        kept(b"x")  # the native method, held since before


async def test_a_receipt_out_of_step_drops_the_connection(broker: FakeBroker, client: AsyncClient):
    producer = await client.producer("t")
    broker.holding = True
    send = asyncio.ensure_future(producer.send(b"x"))
    await broker.settle()
    broker.last.held[0]["sequences"] = [77]
    broker.release()
    assert (await send).offset == -1  # sent again over the next connection, and known there
    assert len(broker.connections) == 2


async def test_several_segments_and_buckets(broker: FakeBroker):
    broker = FakeBroker(segments=3, buckets=4)
    async with broker.client() as client:
        producer = await client.producer("t")
        ids = await asyncio.gather(*(producer.send(b"x", key=f"k{n}") for n in range(300)))
        assert {i.segment_id for i in ids} == {0, 1, 2}
        assert sum(count for log in broker.log.values() for _, count in log) == 300
        assert len(set(ids)) == 300


async def test_send_batch_waits_for_room(broker: FakeBroker, client: AsyncClient):
    producer = await client.producer("t", max_pending_bytes=6 << 20)
    await producer.send_batch([bytes(100_000)] * 200, keys=[b"k"] * 200)
    await producer.flush()
    assert sum(count for _, count in broker.log[0]) == 200


async def test_send_batch_gives_the_loop_its_turns(broker: FakeBroker, client: AsyncClient):
    """Batch after batch, each sealing entries: what else runs on the loop, its connections among it, goes on."""
    producer = await client.producer("t")
    turns, batches, over = 0, 50, False

    async def count() -> None:
        nonlocal turns
        while not over:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    for _ in range(batches):
        await producer.send_batch([bytes(10_000)] * 60, keys=[b"k"] * 60)
    over = True
    await counting
    assert turns >= batches
    await producer.flush()
    assert sum(count for _, count in broker.log[0]) == 60 * batches


async def test_arguments_are_checked(client: AsyncClient):
    for wrong in (
        {"access_mode": "alone"},
        {"compression": "gzip"},
        {"send_timeout": 0},
        {"max_pending_bytes": 1},
        {"name": ""},
        {"batching": 3},
        {"on_error": 3},
        {"initial_sequence_id": -2},
        {"properties": {"a": 1}},
    ):
        with pytest.raises(InvalidArgumentError):
            await client.producer("t", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        await client.producer("a/b")
    with pytest.raises(InvalidArgumentError):
        Batching(max_messages=0)
    producer = await client.producer("t")
    with pytest.raises(InvalidArgumentError):
        await producer.send(b"x", transaction=object())  # type: ignore[arg-type]
    transaction = client.transaction(0)  # nothing is raised before it is awaited or entered
    with pytest.raises(InvalidArgumentError):
        await transaction


async def test_an_unreachable_broker_is_reported_at_once(broker: FakeBroker):
    broker.reachable = False
    with pytest.raises(ConnectError):
        await broker.client().producer("t")
    with pytest.raises(ConnectError):
        async with broker.client():
            pass
