"""A deletion against those who attach and register meanwhile: nothing of the subscription is left or comes back."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from engine.broker.server import Broker
from engine.errors import EngineError, NotFoundError, NotOwnerError, SubscriptionNotFoundError
from engine.metadata import keys
from engine.model.names import SegmentName, TopicName
from engine.wire.commands import Command
from tests.kit.peer import Peer, make_entries

ORDERS = TopicName.parse("orders")
MODES = ["exclusive", "queue"]


async def leftovers(broker: Broker) -> list[str]:
    """Records of subscriptions, their cursors and consumers."""
    prefix = keys.subscriptions(ORDERS)
    return [r.key for r in await broker.metadata.list(prefix, keys.prefix_end(prefix))]


async def split_topic(broker: Broker, peer: Peer) -> list[str]:
    """The names of segment 0, sealed, with five messages that "s" has not acknowledged, and of 1 and 2."""
    segment = await peer.segment("orders")
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries([b"%d" % i for i in range(5)]))
    await peer.receipts(producer, 5)
    await broker.service.ensure_subscription("orders", "s", initial_position="earliest")
    await broker.service.split_segment("orders", 0)
    return [segment, await peer.segment("orders", 1), await peer.segment("orders", 2)]


@pytest.mark.parametrize("mode", MODES)
async def test_the_end_says_why_and_who_was_attached_is_not_let_in_again(broker: Broker, mode: str):
    peer = await Peer.connect(broker)
    names = await split_topic(broker, peer)
    created = [await attach(peer, name, mode) for name in names]
    await broker.service.delete_subscription("orders", "s")
    for ident, _ in created:
        closing = (await peer.take(Command.CLOSE_CONSUMER, consumer_id=ident))[1]
        error = EngineError.from_code(closing["code"], closing["message"])
        assert isinstance(error, SubscriptionNotFoundError)
        assert "the subscription 's' of topic://public/default/orders was deleted" in str(error)
    for name, (_, created_ms) in zip(names, created, strict=True):
        with pytest.raises(SubscriptionNotFoundError):
            await attach(peer, name, mode, created_ms)
    assert await leftovers(broker) == []


async def attach(peer: Peer, segment: str, mode: str, created_ms: int | None = None) -> tuple[int, int]:
    """The consumer's id, and when its subscription was created."""
    ident = peer.next_id()
    answer = await peer.ask(
        Command.SUBSCRIBE, consumer_id=ident, topic=segment, subscription="s", consumer_name="c", mode=mode,
        initial_position="earliest", created_ms=created_ms,
    )  # fmt: skip
    return ident, answer["created_ms"]


async def test_nothing_of_it_holds_sealed_segments_back(start_broker):
    async with start_broker(retention_time=0.0) as broker:
        peer = await Peer.connect(broker)
        names = await split_topic(broker, peer)
        created = [await attach(peer, name, "queue") for name in names]
        await broker.parts.retention.sweep()
        assert len((await broker.service.ensure_topic("orders")).layout.segments) == 3, "it has a backlog"
        await broker.service.delete_subscription("orders", "s")
        for name, (_, created_ms) in zip(names, created, strict=True):
            with pytest.raises(SubscriptionNotFoundError):
                await attach(peer, name, "queue", created_ms)
        await broker.parts.retention.sweep()
        assert list((await broker.service.ensure_topic("orders")).layout.segments) == [1, 2]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["read", "opened"])
async def test_a_subscribe_that_a_deletion_overtakes_leaves_nothing(broker: Broker, monkeypatch, mode: str, where: str):
    """The broker has read the record, or opened the cursor, as the deletion comes."""
    peer = await Peer.connect(broker)
    segment = await peer.segment("orders")
    await broker.service.ensure_subscription("orders", "s", initial_position="earliest")
    subscriptions, held, opened = broker.subscriptions, asyncio.Event(), asyncio.Event()
    subscription = subscriptions.open

    async def late(*args):
        found = await subscription(*args) if where == "opened" else None
        held.set()
        await opened.wait()
        return found or await subscription(*args)

    monkeypatch.setattr(subscriptions, "open", late)
    attaching = asyncio.ensure_future(attach(peer, segment, mode))
    await held.wait()
    await broker.service.delete_subscription("orders", "s")
    opened.set()
    with pytest.raises(SubscriptionNotFoundError):
        await attaching
    assert await leftovers(broker) == []
    assert not broker.segments.get(SegmentName.parse(segment)).subscriptions


@pytest.mark.parametrize("mode", MODES)
async def test_deletions_and_subscribes_at_once_leave_nothing(broker: Broker, mode: str):
    """Whoever attached before a deletion is ended by it; whoever comes behind it is refused."""
    peer = await Peer.connect(broker)
    names = await split_topic(broker, peer)
    created_ms = (await broker.service.ensure_subscription("orders", "s")).created_at_ms
    attaching = [attach(peer, name, mode, created_ms) for _ in range(5) for name in names]
    deletion = broker.service.delete_subscription("orders", "s")
    outcomes = await asyncio.gather(*attaching[:8], deletion, *attaching[8:], return_exceptions=True)
    assert outcomes[8] is None
    for outcome in [o for o in outcomes if isinstance(o, tuple)]:
        await peer.take(Command.CLOSE_CONSUMER, consumer_id=outcome[0])
    refused = [o for o in outcomes if isinstance(o, BaseException)]
    assert all(isinstance(error, NotFoundError | NotOwnerError) for error in refused), refused
    assert await leftovers(broker) == []


async def test_a_registration_that_a_deletion_overtakes_leaves_nothing(broker: Broker, monkeypatch):
    peer = await Peer.connect(broker)
    await peer.segment("orders")
    service, held, opened = broker.service, asyncio.Event(), asyncio.Event()
    ensure = service.ensure_subscription

    async def late(*args, **options):
        found = await ensure(*args, **options)
        held.set()
        await opened.wait()
        return found

    monkeypatch.setattr(service, "ensure_subscription", late)
    register = partial(
        peer.ask, Command.SCALABLE_TOPIC_SUBSCRIBE, consumer_id=peer.next_id(), topic="orders", subscription="s",
        consumer_name="c", instance="c", kind="stream", initial_position="earliest",
    )  # fmt: skip
    registering = asyncio.ensure_future(register())
    await held.wait()
    await service.delete_subscription("orders", "s")
    opened.set()
    with pytest.raises(NotOwnerError):
        await registering
    assert await leftovers(broker) == []
    created_ms = (await register())["created_ms"]
    await service.delete_subscription("orders", "s")
    with pytest.raises(SubscriptionNotFoundError):
        await register(created_ms=created_ms, consumer_id=peer.next_id())
    assert await leftovers(broker) == []


async def test_a_subscription_whose_deletion_is_not_finished_is_not_moved(broker: Broker, monkeypatch):
    peer = await Peer.connect(broker)
    await split_topic(broker, peer)
    monkeypatch.setattr(broker.hosting, "delete_subscription", _fail)
    with pytest.raises(NotOwnerError):
        await broker.service.delete_subscription("orders", "s")
    before = await leftovers(broker)
    with pytest.raises(SubscriptionNotFoundError):
        await broker.service.seek_subscription("orders", "s", "earliest")
    assert await leftovers(broker) == before


async def _fail(*args, **options):
    raise NotOwnerError("not now")
