"""Ways around limits that a client may try: many of one name, coming back again and again, new topics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import engine
from engine.broker.limits import debts, records
from engine.errors import InvalidArgumentError, LimitExceededError
from engine.model.names import TopicName
from engine.wire.commands import FEATURES, PUBLISH_CREDIT, Command
from tests.broker.test_limits import BIG, BLOB, LEAVES_SECONDS, TOPIC, limited, quotas, refused, stored
from tests.kit.peer import Peer, listening, make_entries, until


@pytest.mark.parametrize("mode", ["reader", "queue"])
@pytest.mark.parametrize(("resource", "name"), [(TOPIC, "consumers_max"), ("public", "total_consumers")])
async def test_consumers_of_one_name_count_each(start_broker: Any, mode: str, resource: str, name: str) -> None:
    async with start_broker() as broker:
        await limited(broker, resource, **{name: 2})
        peer, other = await Peer.connect(broker), await Peer.connect(broker)
        segment = await peer.segment("orders")
        subscription = None if mode == "reader" else "s"
        first = await peer.consumer(segment, mode, subscription, name="same")
        await other.consumer(segment, mode, subscription, name="same")
        for one in (peer, other):
            error = await refused(lambda one=one: one.consumer(segment, mode, subscription, name="same"))
            assert (error.limit, error.value) == (name, 2)
        await peer.ask(Command.CLOSE_CONSUMER, consumer_id=first)
        await other.consumer(segment, mode, subscription, name="same")
        await refused(lambda: peer.consumer(segment, mode, subscription, name="same"))


async def test_a_reader_of_several_segments_counts_once(start_broker: Any) -> None:
    async with start_broker() as broker:
        await broker.admin.create_topic("orders", segments=3)
        await limited(broker, TOPIC, consumers_max=2)
        peer = await Peer.connect(broker)
        names = [await peer.segment("orders", number) for number in range(3)]
        for name in ("one", "two"):
            for segment in names:
                await peer.consumer(segment, "reader", None, name=name)
        with pytest.raises(LimitExceededError):
            await peer.consumer(names[0], "reader", None, name="three")


# -- rates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("takes_credit", [True, False])
@pytest.mark.parametrize("end", ["producer", "connection", "neither"])
@pytest.mark.parametrize(
    ("resource", "name"), [(TOPIC, "publish_bytes_per_s"), ("public", "total_publish_bytes_per_s")]
)
async def test_one_that_has_sent_too_much_does_not_begin_anew(
    start_broker: Any, monkeypatch: pytest.MonkeyPatch, takes_credit: bool, end: str, resource: str, name: str
) -> None:
    monkeypatch.setattr(debts, "AHEAD_BYTES", BIG // 2)
    async with start_broker() as broker:
        await limited(broker, resource, **{name: LEAVES_SECONDS})
        features = [feature for feature in FEATURES if takes_credit or feature != PUBLISH_CREDIT]
        peer, later = [await Peer.connect(broker, hello=False) for _ in range(2)]
        for one in (peer, later):
            await one.hello(features=features)
        producer = await peer.producer(await peer.segment("orders"))
        peer.publish(producer, make_entries([BLOB]))
        await until(lambda: stored(broker) == 1)
        if end == "producer":
            peer.send(Command.CLOSE_PRODUCER, {"producer_id": producer})
        elif end == "connection":
            await peer.close()
        segments = [await later.segment(topic) for topic in ("orders", "another")]
        again = [asyncio.ensure_future(later.producer(segment, f"p{at}")) for at, segment in enumerate(segments)]
        for number in range(3):  # time enough for one that need not wait
            await later.producer(await later.segment(f"topic://else/default/free-{number}"))
        await until(lambda: again[1].done() == (resource == TOPIC))
        assert not again[0].done()
        await broker.admin.remove_limits(resource)
        await asyncio.gather(*again)
        limits = broker.memory.limits
        assert limits is not None
        assert not len(limits.debts)


async def test_a_reader_that_comes_back_pays_for_what_it_got(start_broker: Any) -> None:
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        producer = await peer.producer(segment)
        peer.publish(producer, make_entries([BLOB] * 3))
        await peer.receipts(producer, 3)
        await limited(broker, TOPIC, dispatch_bytes_per_s=LEAVES_SECONDS)
        limits = broker.memory.limits
        assert limits is not None
        (bucket,) = limits.buckets(TopicName.parse("orders"), "", "dispatch")
        reader = await peer.consumer(segment, "reader", None)
        assert len(await peer.messages(reader, 1)) == 1  # an entry is sent where there is any credit
        await peer.ask(Command.CLOSE_CONSUMER, consumer_id=reader)
        assert bucket.wait_s > BIG / LEAVES_SECONDS / 2
        again = await peer.consumer(segment, "reader", None, start=1)
        await peer.lookup("topic://public/default/orders")
        assert not [command for command, header, _ in peer.frames if header.get("consumer_id") == again]
        await broker.admin.remove_limits(TOPIC)
        assert len(await peer.messages(again, 2)) == 2


# -- storage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", ["public/default", "public", "*"])
async def test_another_topic_takes_nothing_where_the_sum_is_full(start_broker: Any, resource: str) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        producer = await client.producer("orders")
        await producer.send(BLOB)
        await limited(broker, resource, total_storage_bytes=BIG // 2)
        await quotas(broker).check()

        async def send_to(topic: str) -> None:
            async with client.producer(topic) as other:
                await other.send(b"x")

        error = await refused(lambda: send_to("another"))
        assert (error.limit, error.resource) == ("total_storage_bytes", resource)
        if resource != "*":
            await send_to("topic://else/default/another")
        await limited(broker, resource, total_storage_bytes=10 * BIG)
        await quotas(broker).check()
        await send_to("another")


# -- records -----------------------------------------------------------------------------------------------------------


async def test_a_tenant_says_no_more_limits_than_brokers_have_room_for(
    start_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator of a namespace may name topics that are not there."""
    monkeypatch.setattr(records, "RECORDS_MAX", 2)
    async with start_broker() as broker:
        for resource in ("red", "red/app", "red/app/a", "reddish/app/b"):
            await limited(broker, resource, producers_max=1)
        for resource in ("red/app/b", "red/other"):
            with pytest.raises(InvalidArgumentError, match=f"of the tenant red must .* got one more: {resource}"):
                await broker.admin.set_limits(resource, {"producers_max": 1})
        await limited(broker, "red/app/a", producers_max=2)
        await broker.admin.remove_limits("red/app/a")
        await limited(broker, "red/app/b", producers_max=1)
