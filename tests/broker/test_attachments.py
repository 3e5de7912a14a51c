"""How many producers and consumers there are is bounded, over one connection and over all."""

from __future__ import annotations

import itertools

import pytest

from engine.errors import TooManyRequestsError
from engine.wire.commands import Command
from tests.kit.peer import Peer, make_entries

_numbers = itertools.count()


async def attach(peer: Peer, segment: str, count: int, first: str | None = None) -> list[int]:
    """Half of them producers, half readers. `first`: the name of the first producer."""
    names = [first or f"n{next(_numbers)}", *(f"n{next(_numbers)}" for _ in range(count - 1))]
    made = [await peer.producer(segment, name=name) for name in names[::2]]
    return made + [await peer.consumer(segment, "reader", None, name=name) for name in names[1::2]]


async def refused(peer: Peer, segment: str) -> None:
    """One more of either kind, by a typed error that can be tried again."""
    with pytest.raises(TooManyRequestsError) as error:
        await peer.producer(segment, name="one-more")
    assert error.value.retryable
    with pytest.raises(TooManyRequestsError):
        await peer.consumer(segment, "queue", "s", name="one-more")


async def test_over_one_connection(start_broker):
    async with start_broker(attachments_per_connection_max=4) as broker:
        peer, other = await Peer.connect(broker), await Peer.connect(broker)
        segment = await peer.segment("t")
        producer, *_ = await attach(peer, segment, 4)
        await refused(peer, segment)
        await attach(other, segment, 4)
        peer.send(Command.CLOSE_PRODUCER, {"producer_id": producer})
        await attach(peer, segment, 1)
        await refused(peer, segment)


async def test_over_all_connections(start_broker):
    async with start_broker(attachments_max=4) as broker:
        peer, other = await Peer.connect(broker), await Peer.connect(broker)
        segment = await peer.segment("t")
        producer, *_ = await attach(peer, segment, 4, "p")
        await refused(other, segment)
        peer.publish(producer, make_entries([b"who is there stays"]))
        await peer.receipts(producer, 1)
        await peer.close()
        assert broker.memory.attachments.used == 0
        await attach(other, segment, 4)
        await refused(other, segment)
        await broker.admin.set_dynamic_configuration("attachments_max", 6)
        await attach(other, segment, 2)
        await refused(other, segment)
        found = broker.memory.attachments.statistics()
    assert (found.used, found.limit, found.refusals) == (6, 6, 6)


async def test_of_many_that_come_at_once_as_many_are_attached_as_there_may_be(start_broker):
    async with start_broker(attachments_max=10) as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("t")
        asked = [peer.next_id() for _ in range(40)]
        for one in asked:
            what = {"topic": segment, "subscription": "s", "initial_position": "earliest", "mode": "queue"}
            peer.send(Command.SUBSCRIBE, {"request_id": one, "consumer_id": one, "consumer_name": f"c{one}", **what})
        answers = [(await peer.take(*Command, request_id=one))[0] for one in asked]
        assert answers.count(Command.SUBSCRIBE_SUCCESS) == broker.memory.attachments.used == 10
        assert answers.count(Command.ERROR) == 30
