"""Semantics 23 to 26: a producer through split, merge and rebucket."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.client import Batching, MessageId
from engine.client.produce.producer import AsyncProducer
from engine.errors import AlreadyClosedError, NotOwnerError, ProducerBusyError, StorageError, TimeoutError
from engine.testing.loop import run_virtual
from engine.wire.commands import Command
from tests.client.reshaped_topic import check
from tests.client.reshaping_broker import ReshapingBroker

KEYS = [b"k%d" % n for n in range(30)]


async def send_all(producer: AsyncProducer, count: int, **options: Any) -> list[asyncio.Future[MessageId]]:
    sends = [asyncio.ensure_future(producer.send(b"v", key=KEYS[n % len(KEYS)], **options)) for n in range(count)]
    await asyncio.sleep(0)
    producer._outbox.send_open()
    return sends


def assert_found(broker: ReshapingBroker, ids: list[MessageId]) -> None:
    """Every id that has an offset names a message that lies there."""
    for sequence, place in enumerate(ids):
        if place.offset >= 0:
            messages = broker.topic.pieces[place.segment_id].messages()
            assert messages[place.offset].sequence_id == sequence


async def test_23_messages_in_flight_when_their_segment_is_sealed_go_to_its_children():
    broker = ReshapingBroker(buckets=4)
    async with broker.client() as client, await client.producer("t", batching=Batching(max_messages=7)) as producer:
        broker.holding = True
        sends = await send_all(producer, 60)
        await broker.until(lambda: bool(broker.of(Command.SEND)))
        broker.topic.split(0)  # what came so far is in; nobody says so yet
        sends += await send_all(producer, 60)
        await broker.settle()
        broker.holding = False
        broker.tell_sealed()
        broker.push()
        ids = await asyncio.gather(*sends)
        assert {i.segment_id for i in ids} == {0, 1, 2}
        assert all(i.offset >= 0 for i in ids)
        assert_found(broker, ids)
        check(broker.topic, [(n, KEYS[n % 30 if n < 60 else (n - 60) % 30]) for n in range(120)])
        statistics = producer.statistics()
        assert (statistics.messages_sent, statistics.messages_acknowledged, statistics.pending_bytes) == (120, 120, 0)


@pytest.mark.parametrize("told", ["first", "never"])
async def test_24_receipts_lost_with_the_connection_do_not_duplicate(told: str):
    broker = ReshapingBroker(segments=2, buckets=4)
    async with broker.client() as client, await client.producer("t", batching=Batching(max_messages=7)) as producer:
        broker.holding = True
        sends = await send_all(producer, 90)
        await broker.until(lambda: len(broker.values) == 90)
        broker.topic.merge(0)
        broker.topic.rebucket(0, 2)
        if told == "first":
            broker.push()
        for connection in broker.connections:
            connection.held.clear()
        broker.holding = False
        broker.cut()
        broker.seen_dag = broker._dag()
        ids = await asyncio.wait_for(asyncio.gather(*sends), 20)
        check(broker.topic, [(n, KEYS[n % 30]) for n in range(90)])
        assert {i.offset for i in ids} == {-1}, "they are known, and where they lie is not"
        assert {i.segment_id for i in ids} == {3}


async def test_23_children_wait_for_what_is_still_answered_and_other_ranges_do_not():
    broker = ReshapingBroker(segments=2)
    async with broker.client() as client, await client.producer("t") as producer:
        left, right = (next(k for k in KEYS if producer_route(k) == side) for side in (0, 1))
        await asyncio.gather(producer.send(b"v", key=left), producer.send(b"v", key=right))
        broker.holding = True
        before = asyncio.ensure_future(producer.send(b"before", key=left))
        await broker.settle()
        broker.holding = False
        held, broker.connections[-1].held = broker.connections[-1].held, []
        broker.topic.split(0)
        broker.push()
        await broker.settle()
        after = asyncio.ensure_future(producer.send(b"after", key=left))
        other = asyncio.ensure_future(producer.send(b"other", key=right))
        await broker.settle()
        producer._outbox.send_open()
        assert (await other).segment_id == 1
        await broker.settle()
        assert not before.done()
        assert b"after" not in broker.values, "the receipt of what went before it may still come"
        assert [h["topic"] for h in broker.of(Command.PRODUCER)][2:], "attached meanwhile"
        broker.connections[-1].held = held
        broker.tell_sealed()
        assert (await before).segment_id == 0
        assert (await after).segment_id in (2, 3)


def producer_route(key: bytes) -> int:
    from engine._native.produce.hashing import key32

    return key32(key, 0) >> 31


async def test_23_nobody_answers_for_a_sealed_segment():
    """Its owner died: the children are let go when what is in flight has run out of time."""
    broker = ReshapingBroker()
    async with broker.client() as client, await client.producer("t", send_timeout=0.1) as producer:
        await producer.send(b"v", key=b"k")
        broker.holding = True
        lost = asyncio.ensure_future(producer.send(b"lost", key=b"k"))
        await broker.settle()
        broker.holding = False
        broker.connections[-1].held.clear()
        broker.topic.split(0)
        broker.push()
        with pytest.raises(TimeoutError):
            await lost
        assert (await producer.send(b"next", key=b"k")).segment_id in (1, 2)


def test_23_no_pause_but_the_layouts():
    """A seal is heard of before its layout: the layout wakes the producer, no clock does."""
    broker = ReshapingBroker()

    async def body() -> float:
        async with broker.client() as client, await client.producer("t") as producer:
            await producer.send(b"v", key=b"k")
            loop = asyncio.get_running_loop()
            waited = 0.0
            for _ in range(5):
                broker.topic.split(0)
                broker.tell_sealed()
                send = asyncio.ensure_future(producer.send(b"v", key=b"k"))
                await broker.settle()
                await asyncio.sleep(0.01)  # longer than any other pause here, and shorter than a retry
                start = loop.time()
                broker.push()
                await send
                waited += loop.time() - start
            return waited

    assert run_virtual(body()) == 0


def test_23_a_layout_that_never_comes_is_waited_for_in_ten_attempts():
    broker = ReshapingBroker()

    async def body() -> None:
        async with broker.client() as client, await client.producer("t", send_timeout=1000) as producer:
            await producer.send(b"v", key=b"k")
            broker.topic.split(0)
            broker.tell_sealed()
            with pytest.raises(TimeoutError, match="10 attempts"):
                await producer.send(b"v", key=b"k")
            broker.push()
            await producer.send(b"v", key=b"k")

    run_virtual(body())


async def test_37_layouts_out_of_order_and_several_in_one():
    broker = ReshapingBroker(buckets=2)
    async with broker.client() as client, await client.producer("t", batching=Batching(max_messages=5)) as producer:
        sends = await send_all(producer, 30)
        old = [broker._dag()]
        for _ in range(3):
            broker.topic.split(0)
            old.append(broker._dag())
        broker.topic.merge(1)
        sends += await send_all(producer, 30)
        broker.tell_sealed()
        broker.push()
        for dag in reversed(old):
            broker.push(dag)
        await asyncio.gather(*sends)
        assert producer._outbox.session.layout.epoch == 4
        check(broker.topic, [(n, KEYS[n % 30]) for n in range(60)])
        assert set(producer._outbox.senders) == {p.ident for p in broker.topic.active}


async def test_26_flush_during_a_change_waits_for_what_was_sent_before_it():
    broker = ReshapingBroker()
    async with broker.client() as client, await client.producer("t") as producer:
        for key in KEYS:
            producer.send_nowait(b"before", key=key)
        flush = asyncio.ensure_future(producer.flush())
        broker.topic.split(0)
        await broker.settle()
        for key in KEYS:
            producer.send_nowait(b"after", key=key)
        producer._outbox.send_open()
        await broker.settle()
        assert not flush.done()
        broker.holding = True
        broker.push()
        await broker.until(lambda: len(broker.values) >= 30)
        await broker.settle()
        assert not flush.done()
        for connection in broker.connections:
            before, connection.held = connection.held[:2], connection.held[2:]
            for receipt in before:
                connection.stream.send(Command.SEND_RECEIPT, receipt)
        await asyncio.wait_for(flush, 60)
        broker.release()


async def test_close_during_a_change_writes_everything():
    broker = ReshapingBroker(buckets=2)
    async with broker.client() as client:
        producer = await client.producer("t")
        broker.topic.split(0)
        for key in KEYS:
            producer.send_nowait(b"v", key=key)
        closing = asyncio.ensure_future(producer.close())
        await broker.settle()
        assert not closing.done()
        broker.push()
        await asyncio.wait_for(closing, 60)
        check(broker.topic, [(n, key) for n, key in enumerate(KEYS)])


async def test_failures_during_a_change_are_reported_once_to_those_they_concern():
    heard: list[Exception] = []
    broker = ReshapingBroker()
    async with broker.client() as client:
        producer = await client.producer("t", on_error=heard.append, batching=Batching(max_messages=10))
        broker.topic.split(0)
        for key in KEYS:
            producer.send_nowait(b"v", key=key)
        waits = asyncio.ensure_future(producer.send(b"v", key=KEYS[0]))
        await broker.settle()
        broker.faulty = 1
        broker.push()
        with pytest.raises(StorageError):
            await producer.flush()
        await asyncio.gather(waits, return_exceptions=True)
        statistics = producer.statistics()
        assert statistics.messages_failed + statistics.messages_acknowledged == 31
        assert statistics.messages_failed == 31 - len(broker.values) > 0
        assert statistics.pending_bytes == statistics.pending_messages == 0
        assert {type(e) for e in heard} == {StorageError}
        await producer.flush()
        await producer.close()
        with pytest.raises(AlreadyClosedError):
            await producer.send(b"v")


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
async def test_compressed_messages_are_split_and_compressed_again(compression: str):
    broker = ReshapingBroker()
    async with broker.client() as client, await client.producer("t", compression=compression) as producer:
        broker.topic.split(0)
        value = b"many times the same " * 20
        sends = [asyncio.ensure_future(producer.send(value, key=key)) for key in KEYS]
        await broker.settle()
        broker.push()
        await asyncio.gather(*sends)
        check(broker.topic, [(n, key) for n, key in enumerate(KEYS)])
        assert set(broker.values) == {value}
        assert all(len(data) < 1000 for p in broker.topic.active for data in p.entries)


@pytest.mark.parametrize("mode", ["exclusive", "exclusive_with_fencing", "wait_for_exclusive"])
async def test_25_exclusive_access_claims_every_new_segment(mode: str):
    broker = ReshapingBroker()
    async with broker.client() as client, await client.producer("t", name="p", access_mode=mode) as producer:
        broker.owners[1] = "newcomer"  # who will not get the other one, and go
        broker.split()
        await broker.until(lambda: broker.owners.get(2) == "p")
        del broker.owners[1]
        await broker.until(lambda: broker.owners.get(1) == "p")
        assert broker.owners.get(2) == "p"
        await producer.send(b"v")


def test_25_exclusive_access_that_another_has_taken_is_lost():
    broker = ReshapingBroker()

    async def body() -> None:
        async with broker.client() as client, await client.producer("t", name="p", access_mode="exclusive") as producer:
            broker.owners |= {1: "other", 2: "other"}
            broker.split()
            await asyncio.sleep(30)
            with pytest.raises(ProducerBusyError):
                await producer.send(b"v")

    run_virtual(body())


async def test_25_a_change_while_access_is_claimed():
    broker = ReshapingBroker()
    broker.topic.split(0)  # and the client is told of the layout before
    async with broker.client() as client:
        opening = asyncio.ensure_future(client.producer("t", access_mode="exclusive"))
        await broker.until(lambda: bool(broker.of(Command.PRODUCER)))
        await broker.settle()
        broker.push()
        producer = await asyncio.wait_for(opening, 60)
        assert set(broker.owners) == {1, 2}
        assert (await producer.send(b"v")).segment_id in (1, 2)
        await producer.close()


async def test_a_segment_that_moved_is_not_split():
    broker = ReshapingBroker()
    moved = [True] * 3
    broker.refuse_attach = lambda name: NotOwnerError("moved") if moved and moved.pop() else None
    async with broker.client() as client, await client.producer("t") as producer:
        assert (await producer.send(b"v", key=b"k")).segment_id == 0


async def drive(seed: int, steps: int) -> None:
    """Everything at random, on one connection; then calm, and all has to be well."""
    rng = random.Random(seed)
    broker = ReshapingBroker(rng.randint(1, 3), rng.choice([1, 2, 4]), seed)
    batching = Batching(max_messages=rng.choice([1, 5, 1000]), max_delay=0.01)
    sent: list[tuple[int, bytes | None]] = []
    sends: list[asyncio.Future[MessageId]] = []
    client = broker.client(rng=rng)
    producer = await client.producer(
        "t", batching=batching, compression=rng.choice(["none", "lz4"]), send_timeout=10_000, name="p"
    )
    whats = ["send"] * 6 + ["hold", "release", "reshape", "tell", "push", "sleep", "stale", "cut"]
    whats += ["change"] * rng.randrange(6) + ["hold"] * rng.randrange(4)
    for _ in range(steps):
        what = rng.choice(whats)
        if what == "send":
            for _ in range(rng.randrange(30)):
                key = rng.choice([None, *KEYS])
                sends.append(asyncio.ensure_future(producer.send(b"v" * 20, key=key)))
                sent.append((len(sent), key))
        elif what == "reshape":
            broker.topic.reshape()
        elif what == "change":
            broker.topic.reshape()
            broker.push()
        elif what == "tell":
            broker.tell_sealed()
        elif what == "push":
            broker.push()
        elif what in ("hold", "release"):
            broker.holding = True
            if what == "release":
                broker.release()
        elif what == "cut":
            broker.cut()
        elif what == "stale":
            broker.seen_dag = broker._dag()
        elif what == "sleep":
            await asyncio.sleep(rng.random() * 0.2)
        for _ in range(rng.choice([0, 1, 3, 10])):
            await asyncio.sleep(0)
    broker.push()
    broker.tell_sealed()
    broker.release()
    await producer.flush()
    ids = await asyncio.gather(*sends)
    assert_found(broker, ids)
    check(broker.topic, sent)
    statistics = producer.statistics()
    assert statistics.messages_acknowledged == statistics.messages_sent == len(sent)
    assert statistics.pending_bytes == statistics.pending_messages == 0
    await client.close()


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random topic may well refuse a message ten times."""
    monkeypatch.setattr("engine.client.produce.backlog.ATTEMPTS_MAX", 10_000)


@pytest.mark.usefixtures("patience")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32))
def test_23_24_whatever_happens_everything_is_written_once_and_in_order(seed: int):
    run_virtual(drive(seed, 60))


@pytest.mark.fuzz
@pytest.mark.usefixtures("patience")
@settings(max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 64))
def test_23_24_whatever_happens_for_long(seed: int):
    run_virtual(drive(seed, 200))
