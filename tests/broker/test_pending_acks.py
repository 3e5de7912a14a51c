"""Acknowledgements in transactions: held until the end, then taken by the cursor or due again, whatever happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from peer import Peer, make_entries
from sharing import FOUR, Publisher, boundaries, round_trip

from engine.broker.server import Broker
from engine.errors import (
    InvalidArgumentError,
    NotFoundError,
    NotOwnerError,
    TransactionConflictError,
    TransactionNotFoundError,
)
from engine.metadata import keys
from engine.metadata.store import EventKind
from engine.model.names import SegmentName
from engine.model.transactions import TransactionState, parse_id
from engine.wire.commands import Command

COUNT = 20


async def begin(peer: Peer) -> str:
    return (await peer.ask(Command.NEW_TXN, timeout=60.0, name=None))["result"]["id"]


async def end(peer: Peer, ident: str, action: str, accepted: list[str] | None = None) -> None:
    await peer.ask(Command.END_TXN, id=ident, action=action, accepted=accepted)


async def published(peer: Peer, topic: str = "work") -> str:
    segment = await peer.segment(topic)
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries([b"%d" % i for i in range(COUNT)], per_entry=5))
    await peer.receipts(producer, COUNT // 5)
    return segment


async def offsets(peer: Peer, consumer: int, count: int) -> list[int]:
    return sorted(offset for offset, _ in await peer.messages(consumer, count))


async def applied(broker: Broker, ident: str) -> None:
    """Nothing is left of a transaction's operations."""
    left, shown = set(), False
    watch = broker.hosting._metadata.watch(keys.transaction_ops(ident) + "/")
    async with asyncio.timeout(20):
        async for event in watch:
            shown = shown or event.kind is EventKind.SNAPSHOT_END
            if event.kind is EventKind.PUT:
                left.add(event.key)
            left -= {event.key} if event.kind is EventKind.DELETE else set()
            if shown and not left:
                break
    watch.close()


def subscription(broker: Broker, segment: str, name: str = "s") -> Any:
    hosted = broker.hosting.get(SegmentName.parse(segment))
    assert hosted is not None
    return hosted.subscriptions[name]


# -- queues ------------------------------------------------------------------------------------------------------------


async def test_a_queue_holds_what_is_acknowledged_until_the_commit(broker):
    peer = await Peer.connect(broker)
    segment = await published(peer)
    first = await peer.consumer(segment, "queue", name="first")
    await peer.messages(first, COUNT)
    ident = await begin(peer)
    await peer.ack(first, ranges=[[0, 4], [7, 7]], transaction=ident)
    peer.send(Command.REDELIVER, {"consumer_id": first, "ranges": [[0, 6]], "backoff": None})
    assert await offsets(peer, first, 2) == [5, 6]
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=first)
    second = await peer.consumer(segment, "queue", name="second")
    assert await offsets(peer, second, 14) == [5, 6, *range(8, 20)]
    here = subscription(broker, segment)
    assert (here.backlog, here.pending.records, here.pending.transactions) == (COUNT, 1, {parse_id(ident): 6})
    await end(peer, ident, "commit")
    await applied(broker, ident)
    assert (here.backlog, here.pending.records, here.pending.transactions) == (14, 0, {})
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=second)
    third = await peer.consumer(segment, "queue", name="third")
    assert await offsets(peer, third, 14) == [5, 6, *range(8, 20)]


async def test_a_queue_delivers_again_after_an_abort_and_counts_it(broker):
    peer = await Peer.connect(broker)
    segment = await published(peer)
    consumer = await peer.consumer(segment, "queue")
    await peer.messages(consumer, COUNT)
    ident = await begin(peer)
    await peer.ack(consumer, ranges=[[3, 5]], transaction=ident)
    await end(peer, ident, "abort")
    _, header, _ = await peer.take(Command.MESSAGE, consumer_id=consumer)
    assert header["redelivered"] == [[3, 4, 1]]
    _, header, _ = await peer.take(Command.MESSAGE, consumer_id=consumer)
    assert header["redelivered"] == [[5, 5, 1]]
    await applied(broker, ident)
    await peer.ack(consumer, ranges=[[0, COUNT - 1]])
    assert subscription(broker, segment).backlog == 0


async def test_who_else_acknowledges_a_held_message_is_refused_for_that_alone(broker):
    peer = await Peer.connect(broker)
    segment = await published(peer)
    consumer = await peer.consumer(segment, "queue")
    await peer.messages(consumer, COUNT)
    one, other = await begin(peer), await begin(peer)
    await peer.ack(consumer, ranges=[[0, 4]], transaction=one)
    await peer.ack(consumer, ranges=[[2, 4]], transaction=one)  # as who lost the answer asks again
    for inside in ({"transaction": other}, {}):
        with pytest.raises(TransactionConflictError, match="another transaction"):
            await peer.ack(consumer, ranges=[[4, 5]] if inside else [[4, 4], [6, 6]], **inside)
    here = subscription(broker, segment)
    assert here.pending.transactions == {parse_id(one): 5, parse_id(other): 1}
    assert here.backlog == COUNT - 1
    await end(peer, one, "abort")
    await end(peer, other, "commit")
    await peer.ack(consumer, ranges=[[0, 4]])  # at once: what has ended is in nobody's way
    assert here.backlog == COUNT - 7


async def test_a_message_that_was_acknowledged_before_cannot_be_so_in_a_transaction(broker):
    peer = await Peer.connect(broker)
    segment = await published(peer)
    consumer = await peer.consumer(segment, "queue")
    await peer.messages(consumer, COUNT)
    await peer.ack(consumer, ranges=[[0, 0], [5, 5]])
    ident = await begin(peer)
    with pytest.raises(TransactionConflictError, match="already"):
        await peer.ack(consumer, ranges=[[4, 6]], transaction=ident)
    assert subscription(broker, segment).pending.transactions == {parse_id(ident): 2}


async def test_only_accepted_attempts_take_effect(broker):
    peer = await Peer.connect(broker)
    segment = await published(peer)
    consumer = await peer.consumer(segment, "queue")
    await peer.messages(consumer, COUNT)
    ident = await begin(peer)
    await peer.ack(consumer, ranges=[[0, 4]], transaction=ident, attempt="task-1.0")
    await peer.ack(consumer, ranges=[[5, 9]], transaction=ident, attempt="task-1.1")
    await end(peer, ident, "commit", ["task-1.1"])
    assert await offsets(peer, consumer, 5) == [0, 1, 2, 3, 4]
    await applied(broker, ident)
    assert subscription(broker, segment).backlog == COUNT - 5


# -- stream consumers --------------------------------------------------------------------------------------------------


async def test_a_stream_goes_on_behind_what_is_held_and_stays_there_after_the_commit(broker):
    peer = await Peer.connect(broker)
    segment = await published(peer)
    consumer = await peer.consumer(segment, "exclusive")
    await peer.messages(consumer, COUNT)
    ident = await begin(peer)
    await peer.ack(consumer, position=8, transaction=ident)
    await peer.ack(consumer, position=12, transaction=ident)
    await peer.ack(consumer, position=8, transaction=ident)
    with pytest.raises(TransactionConflictError):
        await peer.ack(consumer, position=15)
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=consumer)
    again = await peer.consumer(segment, "exclusive", name="again")
    assert await offsets(peer, again, 8) == list(range(12, 20))
    await end(peer, ident, "commit")
    await peer.ack(again, position=15)
    await applied(broker, ident)
    assert subscription(broker, segment).cursor.position == 15


async def test_a_stream_begins_again_at_its_cursor_after_an_abort(broker):
    peer = await Peer.connect(broker)
    segment = await published(peer)
    consumer = await peer.consumer(segment, "exclusive")
    await peer.messages(consumer, COUNT)
    await peer.ack(consumer, position=3)
    ident = await begin(peer)
    await peer.ack(consumer, position=8, transaction=ident)
    await end(peer, ident, "abort")
    _, closed, _ = await peer.take(Command.CLOSE_CONSUMER, consumer_id=consumer)
    assert closed["code"] == NotOwnerError.code
    ident = peer.next_id()
    fields = {"topic": segment, "subscription": "s", "consumer_name": "c", "mode": "exclusive"}
    answer = await peer.ask(Command.SUBSCRIBE, consumer_id=ident, **fields)
    assert (answer["position"], answer["seeks"]) == (3, 1)
    peer.flow(ident, 1000)
    assert await offsets(peer, ident, 17) == list(range(3, 20))


async def test_who_attaches_right_behind_an_abort_gets_what_it_freed(broker):
    peer = await Peer.connect(broker)
    segment = await published(peer)
    consumer = await peer.consumer(segment, "exclusive")
    ident = await begin(peer)
    await peer.ack(consumer, position=8, transaction=ident)
    peer.send(Command.CLOSE_CONSUMER, {"request_id": peer.next_id(), "consumer_id": consumer})
    await broker.transactions.coordinator.end(parse_id(ident), TransactionState.ABORTED)
    again = await peer.consumer(segment, "exclusive")
    assert await offsets(peer, again, COUNT) == list(range(COUNT))


async def test_sharers_hold_by_bucket_and_begin_again_after_an_abort(broker):
    peer = await Peer.connect(broker)
    with boundaries(FOUR):
        segment = await peer.segment("work")
    publisher = await Publisher.of(peer, segment, FOUR)
    await publisher.publish([0, 1, 2, 3] * 4)
    consumer = await peer.consumer(segment, "shared", bucketBoundaries=list(FOUR))
    await peer.messages(consumer, 16)
    one, other = await begin(peer), await begin(peer)
    await peer.ask(
        Command.ACK, consumer_id=consumer, ack_type="cumulative", buckets=[[0, 9], [1, 6]], transaction=one
    )  # 0, 4, 8 and 1, 5
    await peer.ask(Command.ACK, consumer_id=consumer, ack_type="cumulative", buckets=[[2, 7]], transaction=other)
    here = subscription(broker, segment)
    assert here.pending.transactions == {parse_id(one): 5, parse_id(other): 2}
    for inside in ({}, {"transaction": other}):
        with pytest.raises(TransactionConflictError):
            await peer.ask(Command.ACK, consumer_id=consumer, ack_type="cumulative", buckets=[[0, 13]], **inside)
    await peer.ask(Command.ACK, consumer_id=consumer, ack_type="cumulative", buckets=[[3, 8]])
    assert here.backlog == 14
    here.pending.buckets = None  # as after a restart: they are found again
    with pytest.raises(TransactionConflictError):
        await peer.ask(Command.ACK, consumer_id=consumer, ack_type="cumulative", buckets=[[1, 6]])
    await end(peer, one, "commit")
    await applied(broker, one)
    assert here.backlog == 9
    assert list(here.pending.offsets) == [2, 6]
    await end(peer, other, "abort")
    await peer.take(Command.CLOSE_CONSUMER, consumer_id=consumer)
    again = await peer.consumer(segment, "shared", bucketBoundaries=list(FOUR))
    found = [offset for offset, _ in await peer.messages(again, 9)]
    assert found == [2, 6, 9, 10, 11, 12, 13, 14, 15]


async def test_a_plain_position_of_sharers_does_not_take_what_is_held(broker):
    peer = await Peer.connect(broker)
    with boundaries(FOUR):
        segment = await peer.segment("work")
    publisher = await Publisher.of(peer, segment, FOUR)
    await publisher.publish([0, 1, 2, 3] * 4)
    consumer = await peer.consumer(segment, "shared", bucketBoundaries=list(FOUR))
    await peer.messages(consumer, 16)
    ident = await begin(peer)
    await peer.ask(Command.ACK, consumer_id=consumer, ack_type="cumulative", buckets=[[0, 16]], transaction=ident)
    await peer.ask(Command.ACK, consumer_id=consumer, ack_type="cumulative", buckets=[[1, 16], [2, 16], [3, 16]])
    assert list(subscription(broker, segment).unacked(0, 16)) == [0, 4, 8, 12]
    await end(peer, ident, "abort")
    await peer.take(Command.CLOSE_CONSUMER, consumer_id=consumer)
    again = await peer.consumer(segment, "shared", bucketBoundaries=list(FOUR))
    assert await offsets(peer, again, 4) == [0, 4, 8, 12]
    await round_trip(peer, segment)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_no_position_covers_what_was_held_when_the_rest_was_delivered(broker, mode, inside):
    """Whoever took over was not given it; after the abort it is due, and is not acknowledged with what is behind it."""
    peer = await Peer.connect(broker)
    with boundaries(FOUR):
        segment = await peer.segment("work")
    await (await Publisher.of(peer, segment, FOUR)).publish([0, 1, 2, 3] * 4)
    more = {"bucketBoundaries": list(FOUR)} if mode == "shared" else {}
    everything = {"buckets": [[bucket, 16] for bucket in range(4)]} if more else {"position": 16}

    async def acknowledge(consumer: int, **said: Any) -> None:
        await peer.ask(Command.ACK, consumer_id=consumer, ack_type="cumulative", **said)

    first = await peer.consumer(segment, mode, **more)
    await peer.messages(first, 16)
    held = await begin(peer)
    await acknowledge(first, **({"buckets": [[0, 9]]} if more else {"position": 3}), transaction=held)
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=first)
    left = set(range(16)) - ({0, 4, 8} if more else {0, 1, 2})
    second = await peer.consumer(segment, mode, **more)
    assert await offsets(peer, second, len(left)) == sorted(left)
    await end(peer, held, "abort")
    await peer.take(Command.CLOSE_CONSUMER, consumer_id=second)
    third = await peer.consumer(segment, mode, credit=0, **more)
    fields = {"transaction": await begin(peer)} if inside else {}
    with pytest.raises(TransactionConflictError, match="not delivered since"):
        await acknowledge(third, **everything, **fields)
    peer.flow(third, 1000)
    assert await offsets(peer, third, 16) == list(range(16))
    await acknowledge(third, **everything, **fields)
    assert not subscription(broker, segment).withheld
    assert subscription(broker, segment).backlog == (16 if inside else 0)


# -- restarts, and what else moves a cursor ----------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "left"), [("commit", range(9, 20)), ("abort", range(20))])
@pytest.mark.parametrize("mode", ["queue", "exclusive"])
async def test_what_is_held_outlives_a_restart(start_broker, mode, action, left):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await published(peer)
        consumer = await peer.consumer(segment, mode)
        await peer.messages(consumer, COUNT)
        ident = await begin(peer)
        said: dict[str, Any] = {"ranges": [[0, 8]]} if mode == "queue" else {"position": 9}
        await peer.ack(consumer, **said, transaction=ident)
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        consumer = await peer.consumer(segment, mode)
        assert await offsets(peer, consumer, 11) == list(range(9, 20))
        await end(peer, ident, action)
        await applied(broker, ident)
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        consumer = await peer.consumer(segment, mode)
        assert await offsets(peer, consumer, len(left)) == list(left)


@pytest.mark.parametrize("action", ["commit", "abort"])
async def test_what_ended_while_nobody_looked_is_applied_when_it_is_collected(start_broker, action):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await published(peer)
        consumer = await peer.consumer(segment, "queue")
        await peer.messages(consumer, COUNT)
        ident = await begin(peer)
        await peer.ack(consumer, ranges=[[0, 8]], transaction=ident)
        await peer.close()
    async with start_broker(transaction_retention_time=0.0, transaction_sweep_interval=3600.0) as broker:
        peer = await Peer.connect(broker)
        await end(peer, ident, action)
        assert await broker.transactions.collect() == 1
        with pytest.raises(TransactionNotFoundError):
            await peer.ask(Command.TXN_STATE, id=ident)
        await applied(broker, ident)
        assert subscription(broker, segment).backlog == (11 if action == "commit" else COUNT)


@pytest.mark.parametrize("change", ["seek", "clear", "delete"])
async def test_who_moves_or_deletes_a_subscription_takes_what_is_held_with_it(broker, change):
    peer = await Peer.connect(broker)
    segment = await published(peer)
    consumer = await peer.consumer(segment, "queue")
    await peer.messages(consumer, COUNT)
    ident = await begin(peer)
    await peer.ack(consumer, ranges=[[0, 4]], transaction=ident)
    if change == "seek":
        await broker.admin.seek_subscription("work", "s", "earliest")
    elif change == "clear":
        await broker.admin.clear_backlog("work", "s")
    else:
        await broker.admin.delete_subscription("work", "s")
    await applied(broker, ident)
    await end(peer, ident, "commit")
    again = await peer.consumer(segment, "queue")
    assert subscription(broker, segment).backlog == (0 if change == "clear" else COUNT)
    if change != "clear":
        assert await offsets(peer, again, COUNT) == list(range(COUNT))


async def test_a_later_topic_of_the_name_hears_nothing_of_it(broker):
    peer = await Peer.connect(broker)
    segment = await published(peer)
    consumer = await peer.consumer(segment, "queue")
    await peer.messages(consumer, COUNT)
    ident = await begin(peer)
    await peer.ack(consumer, ranges=[[0, 4]], transaction=ident)
    await broker.admin.delete_topic("work")
    await end(peer, ident, "commit")
    other = await Peer.connect(broker)
    assert await published(other) == segment
    consumer = await other.consumer(segment, "queue")
    assert await offsets(other, consumer, COUNT) == list(range(COUNT))


async def test_the_operations_of_what_is_gone_are_forgotten_when_they_are_collected(start_broker):
    async with start_broker(transaction_retention_time=0.0, transaction_sweep_interval=3600.0) as broker:
        peer = await Peer.connect(broker)
        segment = await published(peer)
        consumer = await peer.consumer(segment, "queue")
        await peer.messages(consumer, COUNT)
        ident = await begin(peer)
        await peer.ack(consumer, ranges=[[0, 4]], transaction=ident)
        record = (await broker.hosting.operations.acks(SegmentName.parse(segment), "s"))[0]
        await broker.admin.delete_topic("work")
        await broker.hosting.operations.append(parse_id(ident), record.facts)  # as one that was on its way
        await end(peer, ident, "abort")
        assert await broker.transactions.collect() == 1
        await applied(broker, ident)


# -- bad input ---------------------------------------------------------------------------------------------------------


async def test_acknowledgements_in_what_is_no_open_transaction(broker):
    peer = await Peer.connect(broker)
    segment = await published(peer)
    consumer = await peer.consumer(segment, "queue")
    await peer.messages(consumer, COUNT)
    ended = await begin(peer)
    await end(peer, ended, "commit")
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"transaction": ended}, TransactionConflictError),
        ({"transaction": "00000000000000ff"}, TransactionNotFoundError),
        ({"transaction": "ff"}, InvalidArgumentError),
        ({"attempt": "a"}, InvalidArgumentError),
        ({"transaction": ended, "attempt": ""}, InvalidArgumentError),
    ]
    for inside, error in wrong:
        with pytest.raises(error):
            await peer.ack(consumer, ranges=[[0, 1]], **inside)
    here = subscription(broker, segment)
    assert not here.pending.in_use
    assert here.backlog == COUNT
    assert len(broker.hosting.headers) == 0


async def test_one_that_is_not_attached_any_more_acknowledges_nothing(broker):
    peer = await Peer.connect(broker)
    segment = await published(peer)
    consumer = await peer.consumer(segment, "queue")
    ident = await begin(peer)
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=consumer)
    with pytest.raises((NotOwnerError, NotFoundError)):
        await peer.ack(consumer, ranges=[[0, 1]], transaction=ident)
