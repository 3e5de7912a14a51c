"""Acknowledgements in transactions: held until the end, then taken by the cursor or due again, whatever happens."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import (
    InvalidArgumentError,
    NotFoundError,
    NotOwnerError,
    TransactionConflictError,
    TransactionNotFoundError,
)
from engine.model.names import SegmentName
from engine.model.transactions import parse_id
from engine.wire.commands import Command
from tests.broker.held import COUNT, applied, begin, end, offsets, published, subscription
from tests.kit.peer import Peer

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
        with pytest.raises(TransactionConflictError, match=rf"another transaction, .*\({one}\)"):
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


# -- restarts, and what else moves a cursor ----------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "left"), [("commit", range(9, 20)), ("abort", range(20))])
async def test_what_is_held_outlives_a_restart(start_broker, action, left):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await published(peer)
        consumer = await peer.consumer(segment, "queue")
        await peer.messages(consumer, COUNT)
        ident = await begin(peer)
        await peer.ack(consumer, ranges=[[0, 8]], transaction=ident)
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        consumer = await peer.consumer(segment, "queue")
        assert await offsets(peer, consumer, 11) == list(range(9, 20))
        await end(peer, ident, action)
        await applied(broker, ident)
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        consumer = await peer.consumer(segment, "queue")
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
        record = (await broker.segments.operations.acks(SegmentName.parse(segment), "s"))[0]
        await broker.admin.delete_topic("work")
        await broker.segments.operations.append(parse_id(ident), record.facts)  # as one that was on its way
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
    assert len(broker.segments.headers) == 0


async def test_one_that_is_not_attached_any_more_acknowledges_nothing(broker):
    peer = await Peer.connect(broker)
    segment = await published(peer)
    consumer = await peer.consumer(segment, "queue")
    ident = await begin(peer)
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=consumer)
    with pytest.raises((NotOwnerError, NotFoundError)):
        await peer.ack(consumer, ranges=[[0, 1]], transaction=ident)
