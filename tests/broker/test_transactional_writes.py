"""What transactions write: hidden until they end, then visible or hidden for ever, for readers of every kind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.broker.segment.hosted import HostedSegment
from engine.broker.server import Broker
from engine.errors import InvalidArgumentError, TransactionConflictError, TransactionNotFoundError
from engine.wire.commands import Command
from tests.broker.transacting import begin, end, entry, hosted, latest, send, write
from tests.kit.peer import Peer, until

MODES = ["exclusive", "shared", "queue", "reader"]


async def attach(peer: Peer, segment: str, mode: str, **more: Any) -> int:
    """A consumer from the earliest message on, of a subscription of its mode's name."""
    if mode == "reader":
        return await peer.consumer(segment, mode, None, start=0, **more)
    if mode == "shared":
        more["bucketBoundaries"] = (await peer.lookup("orders"))["dag"]["segments"][0]["bucketBoundaries"]
    return await peer.consumer(segment, mode, mode, **more)


def came(peer: Peer, consumer: int) -> bool:
    """Whether messages came that nobody has taken."""
    return any(c is Command.MESSAGE and h["consumer_id"] == consumer and h["messages"] for c, h, _ in peer.frames)


async def acknowledge(peer: Peer, consumer: int, mode: str, end: int, *ranges: list[int]) -> None:
    if mode == "queue":
        await peer.ack(consumer, ranges=list(ranges))
    elif mode != "reader":
        await peer.ack(consumer, position=end)


# -- readers of every kind -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_what_a_transaction_wrote_is_read_once_it_is_committed(mode: str, peer: Peer, segment: str) -> None:
    producer, consumer = await peer.producer(segment), await attach(peer, segment, mode)
    transaction = await begin(peer)
    assert await write(peer, producer, 0, [b"before"]) == 0
    assert await peer.messages(consumer, 1) == [(0, b"before")]
    assert await write(peer, producer, 1, [b"a", b"b"], transaction) == 1
    assert await write(peer, producer, 3, [b"c"]) == 3
    assert await latest(peer, segment) == 1
    assert not came(peer, consumer)
    await end(peer, transaction)
    assert await peer.messages(consumer, 3) == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert await latest(peer, segment) == 4


@pytest.mark.parametrize("mode", MODES)
async def test_what_an_aborted_transaction_wrote_is_left_out(mode: str, peer: Peer, segment: str) -> None:
    producer, consumer = await peer.producer(segment), await attach(peer, segment, mode)
    transaction = await begin(peer)
    await write(peer, producer, 0, [b"before"])
    await write(peer, producer, 1, [b"a", b"b"], transaction)
    await write(peer, producer, 3, [b"after"])
    await end(peer, transaction, "abort")
    assert await peer.messages(consumer, 2) == [(0, b"before"), (3, b"after")]
    late = await attach(peer, segment, mode, name="late") if mode in ("queue", "reader") else consumer
    assert not came(peer, late) or await peer.messages(late, 2) == [(0, b"before"), (3, b"after")]


@pytest.mark.parametrize("mode", MODES)
async def test_blocks_from_the_disk_are_cut_and_have_gaps_too(
    broker, mode: str, peer: Peer, segment: str, producer: int
) -> None:
    kept, gone, open_one = await begin(peer), await begin(peer), await begin(peer)
    for sequence, transaction in enumerate([None, gone, kept, gone, None, open_one, None]):
        await write(peer, producer, sequence, [b"%d" % sequence], transaction)
    await end(peer, gone, "abort")
    await end(peer, kept)
    await until(lambda: hosted(broker, segment).readable == 5)
    forget_tail(broker, segment)
    consumer = await attach(peer, segment, mode)
    assert await peer.messages(consumer, 3) == [(0, b"0"), (2, b"2"), (4, b"4")]
    await latest(peer, segment)
    assert not came(peer, consumer)
    forget_tail(broker, segment)
    await end(peer, open_one)
    assert await peer.messages(consumer, 2) == [(5, b"5"), (6, b"6")]


def forget_tail(broker: Broker, segment: str) -> None:
    """Let the next reads come from files."""
    log = hosted(broker, segment).segment
    log._context.cache.clear(log._reader.tail)


async def test_a_position_in_time_lies_before_what_is_undecided(peer: Peer, segment: str, producer: int) -> None:
    await write(peer, producer, 0, [b"a"])
    await write(peer, producer, 1, [b"b"], await begin(peer))
    for at, offset in (("earliest", 0), ("latest", 1), (2**53, 1), (0, 0)):
        found = (await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at=at))["result"]
        assert (found["offset"], found["end"]) == (offset, 2)


async def test_a_subscription_from_the_latest_on_gets_what_is_committed_later(
    broker, peer: Peer, segment: str, producer: int
) -> None:
    await write(peer, producer, 0, [b"a"])
    transaction = await begin(peer)
    await write(peer, producer, 1, [b"b"], transaction)
    await broker.service.create_subscription("orders", "late", initial_position="latest")
    await end(peer, transaction)
    consumer = await peer.consumer(segment, "exclusive", "late")
    assert await peer.messages(consumer, 1) == [(1, b"b")]


# -- what counts as acknowledged -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["exclusive", "shared", "queue"])
async def test_what_nobody_gets_counts_as_acknowledged(broker, mode: str, peer: Peer, segment: str) -> None:
    producer, consumer = await peer.producer(segment), await attach(peer, segment, mode)
    spec = await broker.service.segment_spec("orders", 0)
    inside, tail = await begin(peer), await begin(peer)
    await write(peer, producer, 0, [b"a"])
    await write(peer, producer, 1, [b"b", b"b"], inside)
    await write(peer, producer, 3, [b"c"])
    await write(peer, producer, 4, [b"d", b"d"], tail)
    assert await broker.hosting.backlog(spec, mode) == 6
    await end(peer, inside, "abort")
    await until(lambda: hosted(broker, segment).readable == 4)
    assert await broker.hosting.backlog(spec, mode) == 4
    await peer.messages(consumer, 2)
    await acknowledge(peer, consumer, mode, 4, [0, 0], [3, 3])
    assert await broker.hosting.backlog(spec, mode) == 2
    await end(peer, tail, "abort")
    await until(lambda: hosted(broker, segment).readable == 6)
    assert await broker.hosting.backlog(spec, mode) == 0
    assert await broker.subscriptions.acknowledged(hosted(broker, segment), [mode]) == 6, "retention may take all of it"
    cursor = hosted(broker, segment).subscriptions[mode].cursor
    assert (cursor.position, cursor.acked_count) == (4, 0), "no gap stays in the cursor"
    await broker.service.create_subscription("orders", "new", initial_position="earliest")
    assert await broker.hosting.backlog(spec, "new") == 2


@pytest.mark.parametrize("mode", ["exclusive", "shared", "queue"])
@pytest.mark.parametrize("action", ["commit", "abort"])
async def test_a_sealed_segment_is_not_drained_while_something_in_it_is_undecided(
    broker, mode: str, action: str, peer: Peer, segment: str
) -> None:
    producer, consumer = await peer.producer(segment), await attach(peer, segment, mode)
    transaction = await begin(peer)
    await write(peer, producer, 0, [b"a"])
    await write(peer, producer, 1, [b"b"], transaction)
    await broker.service.split_segment("orders", 0)
    assert await peer.messages(consumer, 1) == [(0, b"a")]
    await acknowledge(peer, consumer, mode, 1, [0, 0])
    drained = asyncio.Event()
    spec = await broker.service.segment_spec("orders", 0)
    broker.hosting.watch_drained(spec, mode, drained.set)
    await latest(peer, segment)
    assert not drained.is_set()
    assert not [c for c, _, _ in peer.frames if c is Command.REACHED_END]
    await end(peer, transaction, action)
    if action == "commit":
        assert await peer.messages(consumer, 1) == [(1, b"b")]
        assert not drained.is_set()
        await acknowledge(peer, consumer, mode, 2, [1, 1])
    await asyncio.wait_for(drained.wait(), 20)
    _, found, _ = await peer.take(Command.REACHED_END, consumer_id=consumer)
    assert found["end"] == 2


async def test_readers_wait_for_a_forgotten_transaction_until_its_time_is_over(start_broker) -> None:
    async with start_broker(transaction_sweep_interval=0.01) as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        producer, consumer = await peer.producer(segment), await attach(peer, segment, "exclusive")
        forgotten = await begin(peer, timeout=0.2)
        await write(peer, producer, 0, [b"forgotten"], forgotten)
        await write(peer, producer, 1, [b"behind"])
        assert await peer.messages(consumer, 1) == [(1, b"behind")]
        state = await peer.ask(Command.TXN_STATE, id=forgotten)
        assert state["result"]["state"] == "ABORTED"


# -- producers -----------------------------------------------------------------------------------------------------


async def refusal(peer: Peer, producer: int) -> int:
    """The code of the next SEND_ERROR."""
    return int((await peer.take(Command.SEND_ERROR, producer_id=producer))[1]["code"])


async def test_what_is_sent_behind_the_first_of_a_transaction_stays_in_order(peer: Peer, segment: str) -> None:
    producer, consumer = await peer.producer(segment), await attach(peer, segment, "exclusive")
    first, second = await begin(peer), await begin(peer)
    sequence = 0
    for transaction in (first, None, second, first, None, second, None):
        send(peer, producer, [entry(sequence + i, [b"%d" % (sequence + i)], transaction) for i in (0, 1)], transaction)
        sequence += 2
    sequences, offsets = await peer.receipts(producer, 14)
    assert sequences == offsets == list(range(14))
    await end(peer, first)
    await end(peer, second)
    assert await peer.messages(consumer, 14) == [(i, b"%d" % i) for i in range(14)]


@pytest.mark.parametrize("action", ["commit", "abort"])
async def test_late_use_of_a_transaction_is_refused(action: str, peer: Peer, segment: str) -> None:
    transaction = await begin(peer)
    producer = await peer.producer(segment)
    await write(peer, producer, 0, [b"in time"], transaction)
    await end(peer, transaction, action)
    send(peer, producer, [entry(1, [b"late"], transaction)], transaction)
    send(peer, producer, [entry(2, [b"behind"])])
    assert await refusal(peer, producer) == TransactionConflictError.code
    await peer.take(Command.CLOSE_PRODUCER, producer_id=producer)
    again = await peer.producer(segment)
    await write(peer, again, 2, [b"behind"])
    consumer = await attach(peer, segment, "exclusive")
    wanted = [b"in time", b"behind"] if action == "commit" else [b"behind"]
    assert [value for _, value in await peer.messages(consumer, len(wanted))] == wanted


@pytest.mark.parametrize(
    ("transaction", "attempt", "error"),
    [
        ("00000000000000aa", None, TransactionNotFoundError),
        ("aa", None, InvalidArgumentError),
        ("not a transaction", None, InvalidArgumentError),
        ("00000000000000AA", None, InvalidArgumentError),
        ("00000000000000aa", "", InvalidArgumentError),
    ],
)
async def test_transactions_that_there_are_not(transaction: str, attempt: str, error: type, peer: Peer) -> None:
    producer = await peer.producer(await peer.segment("orders"))
    image = entry(0, [b"v"], "00000000000000aa")
    peer.send(
        Command.SEND, {"producer_id": producer, "entries": 1, "transaction": transaction, "attempt": attempt}, [image]
    )
    assert await refusal(peer, producer) == error.code


async def test_an_entry_of_another_transaction_than_its_frame_is_refused(peer: Peer, producer: int) -> None:
    transaction, other = await begin(peer), await begin(peer)
    for image, said in (
        (entry(0, [b"v"], transaction), None),
        (entry(0, [b"v"], None), transaction),
        (entry(0, [b"v"], other), transaction),
        (entry(0, [b"v"], transaction, "attempt"), transaction),
    ):
        send(peer, producer, [image], said)
        assert await refusal(peer, producer) == InvalidArgumentError.code
    assert await write(peer, producer, 0, [b"right"], transaction) == 0


async def test_a_producer_that_leaves_takes_with_it_what_had_not_its_turn(
    broker, monkeypatch, peer: Peer, segment: str, producer: int
) -> None:
    """What it sent is not appended behind what its next session sends."""
    transaction = await begin(peer)
    hold = asyncio.Event()
    found = HostedSegment.begin_transactions

    async def held(of: Any) -> Any:
        await hold.wait()
        return await found(of)

    monkeypatch.setattr(HostedSegment, "begin_transactions", held)
    send(peer, producer, [entry(0, [b"held"], transaction)], transaction)
    send(peer, producer, [entry(1, [b"behind"])])
    await peer.ask(Command.CLOSE_PRODUCER, producer_id=producer)
    hold.set()
    again = await peer.producer(segment)
    assert await write(peer, again, 0, [b"held"], transaction) == 0
    assert await write(peer, again, 1, [b"behind"]) == 1
    await until(lambda: not broker.memory.publish.in_flight)


async def test_what_is_sent_again_over_another_connection_is_there_once(connect, peer: Peer, segment: str) -> None:
    transaction = await begin(peer)
    producer = await peer.producer(segment)
    for sequence in range(40):
        await write(peer, producer, sequence, [b"%d" % sequence], transaction)
    await peer.ask(Command.CLOSE_PRODUCER, producer_id=producer)
    other = await connect()
    again = await other.producer(segment)
    for sequence in range(42):
        offset = await write(other, again, sequence, [b"%d" % sequence], transaction)
        assert offset in (sequence, -1)
    await end(peer, transaction)
    consumer = await attach(peer, segment, "exclusive")
    assert await peer.messages(consumer, 42) == [(i, b"%d" % i) for i in range(42)]
