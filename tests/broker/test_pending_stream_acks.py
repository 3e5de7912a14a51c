"""Acknowledgements of stream consumers in transactions, and who takes over from one that has left some open."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import NotOwnerError, TransactionConflictError
from engine.model.transactions import TransactionState, parse_id
from engine.wire.commands import Command
from tests.broker.held import COUNT, applied, begin, came, end, offsets, published, subscription
from tests.broker.sharing import FOUR, Publisher, boundaries, round_trip
from tests.kit.peer import Peer, make_entries


async def sharer_of_sixteen(broker) -> tuple[Peer, str, int]:
    """Peer, segment and a consumer that was given 16 messages, of four buckets in turn."""
    peer = await Peer.connect(broker)
    with boundaries(FOUR):
        segment = await peer.segment("work")
    publisher = await Publisher.of(peer, segment, FOUR)
    await publisher.publish([0, 1, 2, 3] * 4)
    consumer = await peer.consumer(segment, "shared", bucketBoundaries=list(FOUR))
    await peer.messages(consumer, 16)
    return peer, segment, consumer


async def test_a_stream_goes_on_behind_what_it_holds_itself_and_stays_there_after_the_commit(broker):
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
    peer.publish(await peer.producer(segment, "q"), make_entries([b"behind"], producer="q"))
    assert await offsets(peer, consumer, 1) == [COUNT]
    await end(peer, ident, "commit")
    await peer.ack(consumer, position=15)
    await applied(broker, ident)
    assert subscription(broker, segment).cursor.position == 15


@pytest.mark.parametrize("own", [False, True])
async def test_who_lost_its_attachment_goes_on_behind_its_own_transaction_alone(broker, own):
    peer = await Peer.connect(broker)
    segment = await published(peer)
    consumer = await peer.consumer(segment, "exclusive")
    await peer.messages(consumer, COUNT)
    ident = await begin(peer)
    await peer.ack(consumer, position=12, transaction=ident)
    named = [ident if own else await begin(peer)]
    again = await peer.consumer(segment, "exclusive", transactions=named)
    if own:
        assert await offsets(peer, again, 8) == list(range(12, 20))
        return
    await round_trip(peer, segment)
    assert not came(peer, again)


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
    peer, segment, consumer = await sharer_of_sixteen(broker)
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
    peer, segment, consumer = await sharer_of_sixteen(broker)
    ident = await begin(peer)
    await peer.ask(Command.ACK, consumer_id=consumer, ack_type="cumulative", buckets=[[0, 16]], transaction=ident)
    await peer.ask(Command.ACK, consumer_id=consumer, ack_type="cumulative", buckets=[[1, 16], [2, 16], [3, 16]])
    assert list(subscription(broker, segment).unacked(0, 16)) == [0, 4, 8, 12]
    await end(peer, ident, "abort")
    await peer.take(Command.CLOSE_CONSUMER, consumer_id=consumer)
    again = await peer.consumer(segment, "shared", bucketBoundaries=list(FOUR))
    assert await offsets(peer, again, 4) == [0, 4, 8, 12]
    await round_trip(peer, segment)


SHAPES = pytest.mark.parametrize("mode", ["exclusive", "shared"])
ENDS = pytest.mark.parametrize("action", ["commit", "abort"])


class Takeover:
    """A consumer has acknowledged 0, 1, 2 (or of the first of four buckets 0, 4, 8) in a transaction, and is gone."""

    def __init__(self, segment: str, mode: str) -> None:
        self.segment, self.mode = segment, mode
        shared = mode == "shared"
        self.held = [0, 4, 8] if shared else [0, 1, 2]
        self.at_once = [offset for offset in range(16) if offset % 4] if shared else []
        self.more: dict[str, Any] = {"bucketBoundaries": list(FOUR)} if shared else {}
        self.everything = {"buckets": [[bucket, 16] for bucket in range(4)]} if shared else {"position": 16}
        self.ident = ""

    @classmethod
    async def of(cls, peer: Peer, mode: str) -> Takeover:
        with boundaries(FOUR):
            made = cls(await peer.segment("work"), mode)
        await (await Publisher.of(peer, made.segment, FOUR)).publish([0, 1, 2, 3] * 4)
        first = await made.consumer(peer, "first")
        await peer.messages(first, 16)
        made.ident = await begin(peer)
        said = {"buckets": [[0, 9]]} if made.more else {"position": 3}
        await made.acknowledge(peer, first, **said, transaction=made.ident)
        await peer.ask(Command.CLOSE_CONSUMER, consumer_id=first)
        return made

    async def consumer(self, peer: Peer, name: str) -> int:
        return await peer.consumer(self.segment, self.mode, name=name, **self.more)

    async def acknowledge(self, peer: Peer, consumer: int, **said: Any) -> None:
        await peer.ask(Command.ACK, consumer_id=consumer, ack_type="cumulative", **said)

    async def takes_over(self, peer: Peer, name: str = "second") -> int:
        """Attached, and given what nobody has to wait for."""
        consumer = await self.consumer(peer, name)
        if self.at_once:
            assert await offsets(peer, consumer, len(self.at_once)) == self.at_once
        await round_trip(peer, self.segment)
        assert not came(peer, consumer)
        return consumer

    async def goes_on(self, peer: Peer, consumer: int, action: str) -> int:
        """The transaction has ended: what is left comes, to an attachment of its own after an abort."""
        left = [offset for offset in range(16) if offset not in self.at_once]
        if action == "abort":
            await peer.take(Command.CLOSE_CONSUMER, consumer_id=consumer)
            consumer, left = await self.consumer(peer, "second"), list(range(16))
        else:
            left = [offset for offset in left if offset not in self.held]
        assert await offsets(peer, consumer, len(left)) == left
        return consumer


@ENDS
@SHAPES
async def test_whoever_takes_over_waits_until_the_transaction_has_ended(broker, mode, action):
    peer = await Peer.connect(broker)
    takeover = await Takeover.of(peer, mode)
    consumer = await takeover.takes_over(peer)
    await end(peer, takeover.ident, action)
    consumer = await takeover.goes_on(peer, consumer, action)
    await takeover.acknowledge(peer, consumer, **takeover.everything)
    assert subscription(broker, takeover.segment).backlog == 0


@ENDS
@SHAPES
async def test_nothing_is_lost_to_a_plain_position_over_a_restart(start_broker, mode, action):
    """Neither before nor after it was anything delivered that lies behind what is held."""
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        takeover = await Takeover.of(peer, mode)
        await takeover.takes_over(peer)
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        consumer = await takeover.takes_over(peer)
        if takeover.at_once:  # all that it was given
            await takeover.acknowledge(peer, consumer, buckets=[[bucket, 16] for bucket in (1, 2, 3)])
            takeover.at_once = []
        await end(peer, takeover.ident, action)
        here = subscription(broker, takeover.segment)
        await applied(broker, takeover.ident)
        everything = range(0, 16, 4) if mode == "shared" else range(16)
        expected = [o for o in everything if action == "abort" or o not in takeover.held]
        if action == "abort":
            await peer.take(Command.CLOSE_CONSUMER, consumer_id=consumer)
            consumer = await takeover.consumer(peer, "second")
        assert await offsets(peer, consumer, len(expected)) == expected
        await takeover.acknowledge(peer, consumer, **takeover.everything)
        assert here.backlog == 0


@ENDS
async def test_a_sharer_that_stays_waits_where_another_one_left_a_transaction(broker, action):
    """The bucket comes to it with what the other one acknowledged; in buckets of its own it goes on."""
    peer = await Peer.connect(broker)
    with boundaries(FOUR):
        segment = await peer.segment("work")
    publisher = await Publisher.of(peer, segment, FOUR)
    more = {"bucketBoundaries": list(FOUR)}
    first = await peer.consumer(segment, "shared", name="first", **more)
    second = await peer.consumer(segment, "shared", name="second", **more)
    await publisher.publish([0, 1, 2, 3] * 2)
    theirs = await offsets(peer, first, 4)
    await peer.messages(second, 4)
    ident = await begin(peer)
    said = {"buckets": [[bucket, bucket + 1] for bucket in theirs[:2]]}
    await peer.ask(Command.ACK, consumer_id=first, ack_type="cumulative", transaction=ident, **said)
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=first)
    await publisher.publish([0, 1, 2, 3])
    assert await offsets(peer, second, 2) == [o for o in range(8, 12) if o - 8 not in theirs]
    await round_trip(peer, segment)
    assert not came(peer, second)
    await end(peer, ident, action)
    if action == "commit":
        assert await offsets(peer, second, 4) == sorted([*theirs[2:], *(o + 8 for o in theirs[:2])])
    else:
        await peer.take(Command.CLOSE_CONSUMER, consumer_id=second)
        assert not came(peer, second)
        again = await peer.consumer(segment, "shared", name="second", **more)
        assert await offsets(peer, again, 12) == list(range(12))
