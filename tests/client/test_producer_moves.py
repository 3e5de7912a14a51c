"""Producers whose segment gets another owner while the one before says nothing, as when its process is stopped."""

from __future__ import annotations

import asyncio

import pytest

from engine.client import Batching
from engine.errors import NotFoundError, NotOwnerError
from engine.wire.commands import Command
from tests.client.reshaping_broker import ReshapingBroker
from tests.kit.fake_broker import FakeBroker

A, B = "engine://a", "engine://b"


def silence(broker: FakeBroker, url: str) -> None:
    """Whoever is there gets no answer to what was sent there."""
    broker.at(url).held.clear()
    broker.holding = False


async def test_24_what_is_in_flight_at_an_owner_of_yesterday_is_sent_to_the_next():
    broker = ReshapingBroker()
    broker.addresses = {"0": A}
    broker.seen_dag = broker._dag()
    async with broker.client() as client, await client.producer("t") as producer:
        await producer.send(b"0", key=b"k")
        broker.holding = True
        sends = [asyncio.ensure_future(producer.send(b"%d" % n, key=b"k")) for n in range(1, 9)]
        await broker.until(lambda: len(broker.values) == 9)
        silence(broker, A)
        broker.addresses = {"0": B}
        broker.push()
        async with asyncio.timeout(60):
            await asyncio.gather(*sends)
            await producer.send(b"9", key=b"k")
        assert broker.values == [b"%d" % n for n in range(10)]
        assert not broker.at(A).producers, "the old one is told, should it hear again"
        assert broker.at(B).producers


async def test_23_what_is_in_flight_at_an_owner_of_yesterday_holds_no_children():
    broker = ReshapingBroker(buckets=4)
    broker.addresses = {"0": A}
    broker.seen_dag = broker._dag()
    async with broker.client() as client, await client.producer("t", batching=Batching(max_messages=3)) as producer:
        await producer.send(b"0", key=b"k")
        broker.holding = True
        sends = [asyncio.ensure_future(producer.send(b"%d" % n, key=b"k")) for n in range(1, 9)]
        await broker.until(lambda: len(broker.values) == 9)
        silence(broker, A)
        broker.topic.split(0)
        broker.addresses = dict.fromkeys("012", B)
        broker.push()
        async with asyncio.timeout(60):
            await asyncio.gather(*sends, producer.send(b"9", key=b"k"))
        assert sorted(broker.values) == [b"%d" % n for n in range(10)]


async def test_an_owner_that_does_not_answer_is_left_for_the_next():
    broker = FakeBroker()
    broker.owners = {0: A}
    async with broker.client() as client, await client.producer("t") as producer:
        broker.open_door.clear()
        send = asyncio.ensure_future(producer.send(b"v"))
        await broker.settle()
        broker.owners = {0: broker.at("engine://fake").url}
        broker.push()
        async with asyncio.timeout(60):
            await send
        broker.open_door.set()


async def test_25_a_claim_follows_its_segments_and_is_made_once():
    broker = ReshapingBroker(2)
    broker.addresses = dict.fromkeys("01", A)
    broker.seen_dag = broker._dag()
    broker.refuse_attach = lambda name: NotOwnerError("moved") if name.endswith("-1") else None
    async with broker.client() as client:
        opening = asyncio.ensure_future(client.producer("t", access_mode="exclusive"))
        await broker.until(lambda: any(c.url == A and c.producers for c in broker.connections))
        broker.refuse_attach = lambda name: None
        broker.addresses = dict.fromkeys("01", B)
        broker.push()
        async with asyncio.timeout(60):
            producer = await opening
        await broker.settle()
        assert sorted(broker.at(B).producers.values()) == [0, 1]
        assert not broker.at(A).producers
        await producer.send(b"v")


@pytest.mark.parametrize("answer", ["receipt", "refusal"])
async def test_what_is_answered_after_the_topic_is_gone_leaves_the_connection_to_others(answer: str):
    broker = FakeBroker()
    async with broker.client() as client:
        producer = await client.producer("t")
        broker.holding = True
        send = asyncio.ensure_future(producer.send(b"v"))
        await broker.until(lambda: bool(broker.of(Command.SEND)))
        gone = {"request_id": 0, "session_id": broker.last.sessions[0], "code": NotFoundError.code, "message": "gone"}
        broker.last.stream.send(Command.ERROR, gone)
        with pytest.raises(NotFoundError):
            await send
        if answer == "receipt":
            broker.release()
        else:
            refused = {"producer_id": next(iter(broker.last.producers)), "sequence": 0, "code": NotFoundError.code}
            broker.last.stream.send(Command.SEND_ERROR, {**refused, "message": "gone"})
        await broker.settle()
        assert not broker.last.lost
        await producer.close()
