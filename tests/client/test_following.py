"""What consumers do when the topic's shape, its segments' owners or its controller change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec import convert

from engine.client import MessageId
from engine.client.client import AsyncClient
from engine.client.topic.layout import TopicLayout
from engine.errors import FencedError, NotFoundError, NotOwnerError
from engine.wire.commands import Command, Dag
from tests.kit.fake_broker import TOPIC, URL, FakeBroker

A, B = "engine://a", "engine://b"


async def take(consumer, count: int) -> list[bytes]:
    """The next values, however they come."""
    values: list[bytes] = []
    async with asyncio.timeout(10):
        while len(values) < count:
            values += (await consumer.receive_batch(count - len(values))).values
    return values


@pytest.fixture(params=["stream", "queue"])
async def consumer(request: pytest.FixtureRequest, broker: FakeBroker) -> AsyncIterator:
    async with broker.client() as client:
        yield await (client.stream_consumer if request.param == "stream" else client.queue_consumer)("t", "s")


# -- layouts and addresses ---------------------------------------------------------------------------------------


async def test_a_layout_is_applied_only_if_its_epoch_is_newer_and_addresses_of_the_same(broker: FakeBroker):
    """Semantics 37."""
    broker.epoch = 5
    async with broker.client() as client, await client.queue_consumer("t", "s") as consumer:
        session = consumer.session
        seen = session.layout
        broker.push()
        await broker.settle()
        assert session.layout is seen
        broker.sealed[0], broker.controller = 0, A  # the shape of one epoch never changes: that is not believed
        waiting = asyncio.ensure_future(session.wait_changed(seen, 5))
        broker.push()
        assert await waiting
        assert session.layout.active
        assert (session.layout.epoch, session.layout.controller_url) == (5, A)
        broker.epoch, broker.controller = 4, B
        broker.push()
        await broker.settle()
        assert session.layout.controller_url == A
        assert not await session.wait_newer(5, 0.01)


async def test_readdressed_keeps_the_shape(broker: FakeBroker):
    broker.owners = {0: A}
    layout = TopicLayout.from_dag(TOPIC, convert(broker.dag(), Dag))
    broker.owners = {0: B}
    newer = layout.readdressed(TopicLayout.from_dag(TOPIC, convert(broker.dag(), Dag)))
    assert (newer.url_of(0), newer.active[0].url, newer.epoch) == (B, B, 0)
    assert newer.readdressed(newer) is newer
    assert newer.url_of(7) is None


async def test_a_session_goes_to_any_known_broker_when_its_own_is_gone():
    broker = FakeBroker(segments=2)
    broker.owners, broker.controller = {0: A, 1: B}, B
    async with broker.client() as client, await client.queue_consumer("t", "s") as consumer:
        await broker.until(lambda: len(broker.of(Command.SUBSCRIBE)) == 2)
        broker.down.add(URL)
        broker.at(URL).stream.abort()
        await asyncio.sleep(0.05)
        assert consumer.session._url in (A, B)
        broker.reshape([0], 2)
        await broker.until(lambda: len(consumer.session.layout.segments) == 4)


async def test_a_session_is_looked_up_elsewhere_when_what_it_says_does_not_hold(broker: FakeBroker):
    """A broker whose watch is held up tells an old address; the others know better."""
    broker.owners, broker.controller = {0: A}, B
    broker.publish(0, [b"a"])
    async with broker.client() as client, await client.queue_consumer("t", "s") as consumer:
        assert await take(consumer, 1) == [b"a"]
        broker.owners = {0: B}  # nobody is told
        broker.at(A).end_consumers(0, NotOwnerError("it has moved"))
        async with asyncio.timeout(10):
            assert await take(consumer, 1) == [b"a"]
        assert consumer.session._url != URL


async def test_an_attachment_that_waits_tries_again_at_the_new_address(consumer, broker: FakeBroker):
    broker.owners = {0: A}
    broker.push()
    await broker.until(lambda: bool(consumer.session.layout.url_of(0)))
    broker.down.add(A)
    broker.cut()
    await asyncio.sleep(0.1)  # the back-off towards A grows
    broker.owners = {0: B}
    broker.push()
    await broker.until(lambda: consumer.attachments[0].connected)
    broker.publish(0, [b"a"])
    assert await take(consumer, 1) == [b"a"]
    assert broker.at(B).consumers


async def test_an_attachment_at_an_owner_of_yesterday_moves(consumer, broker: FakeBroker):
    """The old one may be stopped, and say nothing."""
    await broker.until(lambda: consumer.attachments[0].connected)
    broker.owners = {0: B}
    broker.push()
    async with asyncio.timeout(60):
        while not any(c.url == B and c.consumers for c in broker.connections):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert not broker.at(URL).consumers
    broker.publish(0, [b"a"])
    assert await take(consumer, 1) == [b"a"]


async def test_a_consumer_registers_where_the_controller_is_now(broker: FakeBroker):
    """Semantics 14: under its name and instance; it does not leave the old one."""
    broker.publish(0, [b"a"])
    async with broker.client() as client, await client.stream_consumer("t", "s", name="me") as consumer:
        assert await take(consumer, 1) == [b"a"]
        broker.controller = B
        broker.push()
        await broker.until(lambda: any(c.url == B and c.registered for c in broker.connections))
        registered = broker.of(Command.SCALABLE_TOPIC_SUBSCRIBE)
        assert len({(h["consumer_name"], h["instance"]) for h in registered}) == 1
        assert not broker.of(Command.SCALABLE_TOPIC_UNSUBSCRIBE)
        assert len(broker.of(Command.SUBSCRIBE)) == 1  # it reads on meanwhile
        broker.at(URL).assign()  # the old one still speaks
        await broker.settle()
        assert list(consumer.attachments) == [0]
    assert len(broker.of(Command.SCALABLE_TOPIC_UNSUBSCRIBE)) == 1


async def test_a_consumer_leaves_where_the_controller_is_by_then(broker: FakeBroker):
    """Semantics 13: by its instance, without registering again, which would take the name from a newer consumer."""
    broker.owners = {0: A}
    async with broker.client() as client:
        consumer = await client.stream_consumer("t", "s", name="me")
        connections, broker.connections = broker.connections, []
        broker.controller = B
        broker.connections = connections  # and nobody is told
        leaving = asyncio.ensure_future(consumer.close())
        await broker.until(lambda: len(broker.of(Command.SCALABLE_TOPIC_UNSUBSCRIBE)) == 1)
        broker.push()
        await asyncio.wait_for(leaving, 60)
        (registered,), left = (
            broker.of(c) for c in (Command.SCALABLE_TOPIC_SUBSCRIBE, Command.SCALABLE_TOPIC_UNSUBSCRIBE)
        )
        assert left[-1]["consumer_id"] != registered["consumer_id"]
        assert all(left[-1][f] == registered[f] for f in ("topic", "subscription", "consumer_name", "instance"))


# -- stream ------------------------------------------------------------------------------------------------------


async def test_assignments_apply_once_and_never_backwards():
    broker = FakeBroker(segments=2)
    broker.epoch = 3
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        broker.assigned = [0]
        for _ in range(3):
            broker.last.assign()
        await broker.settle()
        assert list(consumer.attachments) == [0]
        broker.epoch, broker.assigned = 2, [1]
        broker.last.assign()
        await broker.settle()
        assert list(consumer.attachments) == [0]
        assert len(broker.of(Command.SUBSCRIBE)) == 2


async def test_a_sealed_parent_stays_until_it_is_acknowledged_and_its_childs_acks_cover_it(broker: FakeBroker):
    """Semantics 7, 9, 11."""
    broker.publish(0, [b"a", b"b"])
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        batch = await consumer.receive_batch()
        left, right = broker.reshape([0], 2)
        broker.publish(left, [b"c"])
        await broker.settle()
        assert consumer.attachments[0].end == 2
        assert list(consumer.attachments) == [0]  # delivered is not acknowledged
        await consumer.acknowledge_cumulative(batch[0])
        broker.assigned = [0, left, right]  # a controller that knows better than this consumer
        broker.last.assign()
        child = await consumer.receive()
        assert child is not None
        assert dict(child.id.positions) == {0: 2, left: 1}
        await consumer.acknowledge_cumulative(child)
        assert broker.cursors == {0: 2, left: 1, right: 0}
        broker.assigned = [left, right]
        broker.last.assign()
        await broker.until(lambda: sorted(consumer.attachments) == [left, right])
        await broker.until(lambda: sorted(s for s, _ in broker.last.consumers.values()) == [left, right])
        await consumer.acknowledge_cumulative(child)
        await consumer.acknowledge_cumulative(batch)


async def test_an_id_kept_by_an_earlier_consumer_means_the_same_to_a_later_one():
    """Semantics 12: what is ours is acknowledged, what others acknowledged is fine, what they have is fenced."""
    broker = FakeBroker(segments=3)
    for segment in range(3):
        broker.publish(segment, [b"%d" % segment] * 2)
    async with broker.client() as client:
        async with await client.stream_consumer("t", "s") as earlier:
            await take(earlier, 5)
            kept = (await earlier.receive()).id.to_bytes()  # type: ignore[union-attr]
        ident = MessageId.from_bytes(kept)
        assert dict(ident.positions) == {0: 2, 1: 2, 2: 2}
        broker.assigned = [0]
        broker.cursors[1] = 2  # somebody else has acknowledged all of it; and of 2, a part
        broker.cursors[2] = 1
        async with await client.stream_consumer("t", "s") as later:
            with pytest.raises(FencedError, match=r"segments \[2\]"):
                await later.acknowledge_cumulative(ident)
            assert broker.cursors == {0: 2, 1: 2, 2: 1}
            broker.cursors[2] = 2
            await later.acknowledge_cumulative(ident)
            asked = len(broker.of(Command.SEGMENT_OFFSET))
            await later.acknowledge_cumulative(ident)
            assert len(broker.of(Command.SEGMENT_OFFSET)) == asked


async def test_an_id_from_segments_that_are_gone_since_is_no_error(broker: FakeBroker):
    """Semantics 12: retention takes only what every subscription has acknowledged."""
    broker.publish(0, [b"a"])
    async with broker.client() as client:
        async with await client.stream_consumer("t", "s") as earlier:
            kept = (await earlier.receive()).id  # type: ignore[union-attr]
        broker.assigned = broker.reshape([0], 2)
        broker.prune(0)
        async with await client.stream_consumer("t", "s") as later:
            await later.acknowledge_cumulative(kept)
            with pytest.raises(NotFoundError, match="has no segment 9"):
                await later.acknowledge_cumulative(MessageId(9, 0))
        async with await client.queue_consumer("t", "q") as queue:
            await queue.acknowledge(kept)
            await queue.negative_acknowledge(kept)
            with pytest.raises(NotFoundError, match="has no segment 9"):
                await queue.acknowledge(MessageId(9, 0))


async def test_an_id_of_a_segment_that_is_not_known_here_yet_is_looked_up(broker: FakeBroker, client: AsyncClient):
    async with await client.stream_consumer("t", "s") as consumer:
        connections, broker.connections = broker.connections, []
        left, _ = broker.reshape([0], 2)  # and the news of it are held up
        broker.connections = connections
        broker.cursors[left] = 3
        await consumer.acknowledge_cumulative(MessageId(left, 2))
        with pytest.raises(FencedError):
            await consumer.acknowledge_cumulative(MessageId(left, 3))


async def test_a_share_that_leaves_and_returns_while_it_attaches_is_attached_once():
    """C4: the attachment that was given up does nothing to the one that came after it."""
    broker = FakeBroker(segments=2)
    broker.owners = {0: A}
    broker.publish(0, [b"a"])
    broker.assigned = [1]
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        broker.open_door.clear()
        for share in ([0, 1], [1], [0, 1]):
            broker.assigned = share
            broker.at(URL).assign()
            await broker.until(lambda share=share: sorted(consumer.attachments) == share)
            await broker.settle()
        broker.open_door.set()
        assert await take(consumer, 1) == [b"a"]
        await broker.settle()
        assert len([h for h in broker.of(Command.SUBSCRIBE) if h["topic"].endswith("-0")]) == 1
        assert len(broker.at(A).consumers) == 1


async def test_only_what_was_delivered_since_it_came_holds_a_segment_that_leaves():
    """Semantics 18: what was delivered before a loss is not waited for, its consumer may never acknowledge it."""
    broker = FakeBroker(segments=2)
    broker.publish(0, [b"a", b"b"])
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        await take(consumer, 2)
        broker.assigned = [1]
        broker.cut()  # it goes while the connection is lost
        await broker.until(lambda: 0 not in consumer.attachments)
        for share in ([0, 1], [1]):
            broker.assigned = share
            broker.last.assign()
            await broker.until(lambda share=share: sorted(consumer.attachments) == share)


async def test_what_comes_again_after_a_seek_is_not_covered_by_the_first_of_it():
    """Semantics 11: a position vector is of what was delivered, and nothing of the other segment was, since."""
    broker = FakeBroker(segments=2)
    for segment in range(2):
        broker.publish(segment, [b"a", b"b"])
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        await take(consumer, 3)
        await consumer.acknowledge_cumulative(await consumer.receive())  # type: ignore[arg-type]
        assert broker.cursors == {0: 2, 1: 2}
        broker.cursors = {0: 0, 1: 0}
        for segment in range(2):
            broker.last.end_consumers(segment, NotOwnerError("it was moved"))
        await broker.until(lambda: consumer._queue.messages == 4)
        first = await consumer.receive()
        assert first is not None
        await consumer.acknowledge_cumulative(first)
        assert sorted(broker.cursors.values()) == [0, 1]
        await take(consumer, 3)


async def test_a_sealed_segment_that_retention_took_is_skipped(consumer, broker: FakeBroker):
    """Semantics 28: also when the news of its end have not come yet."""
    await broker.until(lambda: consumer.attachments[0].connected)
    connections, broker.connections = broker.connections, []
    broker.assigned = broker.reshape([0], 2)
    broker.pruned.add(0)
    del broker.blocks[0]
    broker.connections = connections
    broker.last.end_consumers(0, NotFoundError("it was deleted"))
    if broker.last.registered:
        broker.last.assign()
    broker.publish(1, [b"a"])
    assert await take(consumer, 1) == [b"a"]
    assert 0 not in consumer.attachments


async def test_an_active_segment_without_its_subscription_ends_the_consumer(consumer, broker: FakeBroker):
    del broker.blocks[0]
    broker.last.end_consumers(0, NotFoundError("the subscription was deleted"))
    with pytest.raises(NotFoundError):
        await asyncio.wait_for(consumer.receive(), 60)


# -- queue -------------------------------------------------------------------------------------------------------


async def test_a_queue_consumer_takes_up_new_segments_and_drops_drained_ones(broker: FakeBroker):
    """Semantics 10; ids stay valid."""
    broker.publish(0, [b"a"])
    async with broker.client() as client, await client.queue_consumer("t", "s") as consumer:
        old = await consumer.receive()
        assert old is not None
        left, right = broker.reshape([0], 2)
        broker.publish(right, [b"b"])
        new = await consumer.receive()
        assert new is not None
        assert (new.value, sorted(consumer.attachments)) == (b"b", [0, left, right])
        await consumer.acknowledge(old)
        broker.last.feed()
        await broker.until(lambda: sorted(consumer.attachments) == [left, right])
        await consumer.acknowledge(old)
        broker.prune(0)
        await broker.settle()
        for message in (old, new):
            await consumer.acknowledge(message)
