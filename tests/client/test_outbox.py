"""The producer's outbox: what goes out when."""

from __future__ import annotations

import asyncio

from engine.client.base.options import Batching
from engine.client.client import AsyncClient
from tests.kit.fake_broker import FakeBroker


async def test_messages_of_one_turn_travel_together(broker: FakeBroker, client: AsyncClient):
    async with await client.producer("t") as producer:
        ids = await asyncio.gather(*(producer.send(b"x", key=b"k") for _ in range(50)))
        assert [i.offset for i in ids] == list(range(50))
        assert broker.log[0] == [(0, 50)]


async def test_with_two_flights_on_their_way_a_batch_waits_for_a_receipt(broker: FakeBroker):
    batching = Batching(max_delay=30)
    async with broker.client() as client, await client.producer("t", batching=batching) as producer:
        broker.holding = True
        sends = []
        for count in (1, 2, 3, 4):
            sends += [asyncio.ensure_future(producer.send(b"x")) for _ in range(count)]
            await broker.settle()
        assert broker.log[0] == [(0, 1), (1, 2)]
        broker.release()
        await asyncio.gather(*sends)
        assert broker.log[0] == [(0, 1), (1, 2), (3, 7)]


async def test_a_flight_of_several_entries_is_one(broker: FakeBroker):
    """As many as there are buckets; it has come in with the last of them."""
    batching = Batching(max_delay=30, max_messages=2)
    async with broker.client() as client, await client.producer("t", batching=batching) as producer:
        broker.holding = True
        sends = [asyncio.ensure_future(producer.send(b"x")) for _ in range(6)]
        await broker.settle()
        assert len(broker.log[0]) == 3
        assert producer._outbox.in_flight.flights == 1
        broker.release()
        await asyncio.gather(*sends)
        assert producer._outbox.in_flight.flights == 0


async def test_with_something_in_flight_a_batch_waits_at_most_its_delay(broker: FakeBroker, client: AsyncClient):
    async with await client.producer("t", batching=Batching(max_delay=0.005)) as producer:
        broker.holding = True
        for value in (b"1", b"2"):
            producer.send_nowait(value)
            await broker.settle()
        producer.send_nowait(b"3")
        await asyncio.sleep(0.05)
        assert broker.log[0] == [(0, 1), (1, 1), (2, 1)]
        broker.release()
