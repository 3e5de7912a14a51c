"""Transactions through what happens to a segment: a restart, a split, its deletion, a time in which nobody uses it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.errors import TransactionConflictError
from engine.metadata import keys
from engine.model.names import SegmentName
from engine.model.transactions import TransactionState
from engine.wire.commands import Command
from tests.broker.transacting import begin, collect, decide, end, entry, hosted, latest, send, write
from tests.kit.peer import Peer, segment_name, until

COMMITTED, ABORTED = TransactionState.COMMITTED, TransactionState.ABORTED
QUICK = {"transaction_retention_time": 0.0, "transaction_named_retention_time": 0.0}


async def everything(peer: Peer, segment: str, count: int) -> list[bytes]:
    """The values that a reader gets who begins at the start, of whom that many are expected."""
    reader = await peer.consumer(segment, "reader", None, start=0, name=f"r{peer.next_id()}")
    return [value for _, value in await peer.messages(reader, count)]


async def children(peer: Peer, topic: str = "orders") -> list[str]:
    """The active segments of a topic."""
    found = (await peer.lookup(topic))["dag"]["segments"]
    return [segment_name(topic, segment) for segment in found if segment["state"].upper() == "ACTIVE"]


# -- restarts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["commit", "abort"])
async def test_an_open_transaction_outlives_its_broker(start_broker, action: str) -> None:
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        producer = await peer.producer(segment)
        transaction = await begin(peer)
        await write(peer, producer, 0, [b"a", b"b"], transaction)
        await write(peer, producer, 2, [b"c"])
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        producer = await peer.producer(segment)
        assert await latest(peer, segment) == 0
        await write(peer, producer, 3, [b"d"], transaction)
        await end(peer, transaction, action)
        wanted = [b"a", b"b", b"c", b"d"] if action == "commit" else [b"c"]
        assert await everything(peer, segment, len(wanted)) == wanted


async def test_what_was_decided_stays_so_when_nobody_knows_the_transaction_any_more(start_broker) -> None:
    async with start_broker(**QUICK) as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        producer = await peer.producer(segment)
        for sequence in range(12):
            transaction = await begin(peer)
            await write(peer, producer, sequence, [b"%d" % sequence], transaction)
            await end(peer, transaction, "commit" if sequence % 3 else "abort")
        await collect(broker)
        assert not await broker.metadata.list_keys("/txn", "/txo")
    wanted = [b"%d" % i for i in range(12) if i % 3]
    for _ in range(2):
        async with start_broker() as broker:
            peer = await Peer.connect(broker)
            assert await everything(peer, segment, len(wanted)) == wanted
            assert await latest(peer, segment) == 12


@pytest.mark.parametrize("state", [COMMITTED, ABORTED])
async def test_headers_stay_until_a_segment_that_is_not_open_has_settled(start_broker, state: TransactionState) -> None:
    """Collecting opens it: nobody else comes."""
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        producer = await peer.producer(segment)
        transaction = await begin(peer)
        await write(peer, producer, 0, [b"a"], transaction)
        await write(peer, producer, 1, [b"b"])
    async with start_broker(**QUICK) as broker:
        await decide(broker, transaction, state)
        assert broker.segments.get(SegmentName.parse(segment)) is None
        await collect(broker)
        assert not await broker.metadata.list_keys("/txn", "/txo")
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        wanted = [b"a", b"b"] if state is COMMITTED else [b"b"]
        assert await everything(peer, segment, len(wanted)) == wanted


async def test_an_unused_segment_is_not_closed_while_something_is_undecided(
    broker, peer: Peer, segment: str, producer: int
) -> None:
    transaction = await begin(peer)
    await write(peer, producer, 0, [b"a"], transaction)
    await peer.ask(Command.CLOSE_PRODUCER, producer_id=producer)
    found = hosted(broker, segment)
    assert not await broker.segments.unload(found)
    await end(peer, transaction)
    await until(lambda: found.readable == 1)
    await found.transactions.settle()
    assert await broker.segments.unload(found)
    assert await everything(peer, segment, 1) == [b"a"]


# -- a topic changes its shape -------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["commit", "abort"])
async def test_a_transaction_over_a_split(broker, action: str, peer: Peer) -> None:
    parent = await peer.segment("orders")
    producer = await peer.producer(parent)
    transaction = await begin(peer)
    await write(peer, producer, 0, [b"in the parent"], transaction)
    await broker.service.split_segment("orders", 0)
    await peer.take(Command.CLOSE_PRODUCER, producer_id=producer)
    first, second = await children(peer)
    for sequence, child in enumerate((first, second), 1):
        await write(peer, await peer.producer(child), sequence, [b"in a child"], transaction)
        assert await latest(peer, child) == 0
    await write(peer, await peer.producer(first, "other"), 0, [b"plain"], producer="other")
    await end(peer, transaction, action)
    if action == "commit":
        assert await everything(peer, parent, 1) == [b"in the parent"]
        assert await everything(peer, second, 1) == [b"in a child"]
        assert await everything(peer, first, 2) == [b"in a child", b"plain"]
    else:
        assert await everything(peer, first, 1) == [b"plain"]
        await until(lambda: hosted(broker, parent).readable == 1)
        assert await latest(peer, parent) == 1


async def test_what_a_parent_has_is_not_taken_again_by_its_children(broker, peer: Peer) -> None:
    parent = await peer.segment("orders")
    producer = await peer.producer(parent)
    transaction, aborted = await begin(peer), await begin(peer)
    await write(peer, producer, 0, [b"once"], transaction)
    await write(peer, producer, 1, [b"never"], aborted)
    await end(peer, aborted, "abort")
    await broker.service.split_segment("orders", 0)
    await peer.take(Command.CLOSE_PRODUCER, producer_id=producer)
    child = (await children(peer))[0]
    again = await peer.producer(child)
    assert await write(peer, again, 0, [b"once"], transaction) == -1
    later = await begin(peer)
    send(peer, again, [entry(1, [b"never"], later)], later)
    refused = await peer.take(Command.SEND_ERROR, producer_id=again)
    assert refused[1]["code"] == TransactionConflictError.code
    await end(peer, transaction)
    assert await everything(peer, parent, 1) == [b"once"]
    assert await latest(peer, child) == 0


async def test_a_segment_is_sealed_when_all_in_it_has_its_record(
    broker, monkeypatch, peer: Peer, segment: str, producer: int
) -> None:
    """Its children take what is sent again as stored; so it must be known to count by then."""
    transaction = await begin(peer)
    await write(peer, producer, 0, [b"first"], transaction)
    gate, asked = asyncio.Event(), asyncio.Event()
    gather = broker.segments.operations.gather

    async def held(*args: Any) -> None:
        asked.set()
        await gate.wait()
        gather(*args)

    monkeypatch.setattr(broker.segments.operations, "gather", lambda *args: broker.tasks.spawn(held(*args)))
    send(peer, producer, [entry(1, [b"second"], transaction)], transaction)
    await asked.wait()
    sealing = asyncio.create_task(hosted(broker, segment).seal())
    await hosted(broker, segment).segment.when_durable(1)
    await until(lambda: hosted(broker, segment).segment.sealed)
    assert not sealing.done()
    assert not [c for c, _, _ in peer.frames if c is Command.CLOSE_PRODUCER]
    gate.set()
    assert await sealing == 2
    assert await peer.receipts(producer, 1) == ([1], [1])
    await peer.take(Command.CLOSE_PRODUCER, producer_id=producer)
    await end(peer, transaction)
    assert await everything(peer, segment, 2) == [b"first", b"second"]


@pytest.mark.parametrize("action", ["commit", "abort"])
async def test_retention_leaves_what_is_undecided(start_broker, action: str) -> None:
    """Nobody could have read it yet, also where no subscription asks for it."""
    async with start_broker(retention_size=0) as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        transaction = await begin(peer)
        await write(peer, await peer.producer(segment), 0, [b"a"], transaction)
        await broker.service.split_segment("orders", 0)
        await broker.parts.retention.sweep()
        opened = hosted(broker, segment)
        assert await broker.subscriptions.acknowledged(opened, []) == 0
        await end(peer, transaction, action)
        await until(lambda: not opened.transactions.open_transactions)
        await broker.parts.retention.sweep()
        assert broker.segments.get(SegmentName.parse(segment)) is None


# -- deletion ------------------------------------------------------------------------------------------------------


async def test_a_topic_of_the_same_name_begins_without_what_transactions_left(
    broker, peer: Peer, segment: str, producer: int
) -> None:
    aborted, open_one = await begin(peer), await begin(peer)
    await write(peer, producer, 0, [b"a"], aborted)
    await write(peer, producer, 1, [b"b"], open_one)
    await end(peer, aborted, "abort")
    await broker.service.delete_topic("orders")
    metadata = broker.metadata
    assert await metadata.get(keys.visibility(SegmentName.parse(segment))) is None
    assert not await metadata.list_keys("/txn-op/", "/txn-op0")
    assert await peer.segment("orders") == segment
    await write(peer, await peer.producer(segment), 0, [b"new", b"new"])
    assert await everything(peer, segment, 2) == [b"new", b"new"]
    await end(peer, open_one)


async def test_a_late_record_of_an_earlier_segment_of_the_name_is_forgotten(start_broker) -> None:
    async with start_broker(**QUICK, transaction_sweep_interval=3600.0) as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        transaction = await begin(peer)
        await write(peer, await peer.producer(segment), 0, [b"a"], transaction)
        (record,) = await broker.segments.operations.writes(SegmentName.parse(segment))
        await broker.service.delete_topic("orders")
        assert await peer.segment("orders") == segment
        await write(peer, await peer.producer(segment), 0, [b"new"])
        await broker.segments.operations.append(record.number, record.facts)
        await end(peer, transaction, "commit")
        await collect(broker)
        assert await broker.transactions.coordinator.find(record.number) is None
        assert await everything(peer, segment, 1) == [b"new"]


# -- what costs nothing --------------------------------------------------------------------------------------------


async def test_without_transactions_nothing_is_kept_for_them(broker, peer: Peer, segment: str) -> None:
    for sequence in range(3):
        await write(peer, await peer.producer(segment, f"p{sequence}"), 0, [b"v"], producer=f"p{sequence}")
    assert hosted(broker, segment).transactions is None
    assert await broker.metadata.get(keys.visibility(SegmentName.parse(segment))) is None
    assert broker.segments.headers._version is None, "nothing is watched"
