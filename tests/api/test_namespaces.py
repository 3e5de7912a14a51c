"""Consumers of a namespace, or of a list of topics: what they receive, and who comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from pathlib import Path

import pytest

import engine
import engine.broker.session.topic_lists
from tests.api.namespaces import NS, full, left_over, make, send, stream, take
from tests.api.reshaping import until

# -- receiving -------------------------------------------------------------------------------------------------------


async def test_all_topics_of_a_namespace_are_received(client: engine.AsyncClient):
    await make(client, "a", "b", "c")
    await client.admin.create_topic("topic://shop/us/d")
    async with await stream(client) as consumer:
        assert consumer.topics == full("a", "b", "c")
        assert consumer.topic == NS
        for name in "abc":
            await send(client, name, [f"{name}{i}".encode() for i in range(10)])
        got = await take(consumer, 30)
        assert {(m.topic.rsplit("/")[-1], m.value) for m in got} == {
            (name, f"{name}{i}".encode()) for name in "abc" for i in range(10)
        }
        assert all(m.id.topic == m.topic for m in got)
        for name in "abc":
            own = [m.value for m in got if m.topic == full(name)[0]]
            assert own == [f"{name}{i}".encode() for i in range(10)]
        statistics = consumer.statistics()
        assert isinstance(statistics, engine.MultiConsumerStatistics)
        assert (statistics.messages_received, statistics.segments) == (30, 3)
        assert (statistics.topics, statistics.failed) == (tuple(full("a", "b", "c")), ())


async def test_a_list_of_topics(client: engine.AsyncClient):
    """They are created like a single one, and there may be two of them or one."""
    async with await client.stream_consumer([*full("a", "b"), "elsewhere"], "s") as consumer:
        assert consumer.topics == ["topic://public/default/elsewhere", *full("a", "b")]
        await send(client, "a", [b"1"])
        await send(client, "b", [b"2"])
        assert {m.value for m in await take(consumer, 2)} == {b"1", b"2"}
    async with await client.queue_consumer({*full("a")}, "q", initial_position="earliest") as queue:
        (message,) = await take(queue, 1)
        await queue.acknowledge(message)


async def test_topics_are_served_in_turn(client: engine.AsyncClient):
    """Nobody waits behind the whole backlog of another topic; a batch is of one topic."""
    await make(client, "a", "b", "c")
    for name in "abc":
        await send(client, name, [name.encode()] * 1000)
    async with await stream(client) as consumer:
        await until(lambda: consumer.statistics().messages_queued == 3000)
        batches = [await consumer.receive_batch(max_messages=10) for _ in range(6)]
        assert len({b.topic for b in batches[:3]}) == len({b.topic for b in batches[3:]}) == 3
        assert all(set(b.values) == {b.topic[-1].encode()} for b in batches)
        singles = Counter(m.topic for m in await take(consumer, 600))
        assert set(singles.values()) == {200}


async def test_a_namespace_without_topics_waits_for_them(client: engine.AsyncClient):
    async with await stream(client) as consumer:
        assert consumer.topics == []
        assert await consumer.receive(timeout=0.05) is None
        assert len(await consumer.receive_batch(timeout=0.05)) == 0
        receiving = asyncio.ensure_future(consumer.receive())
        await send(client, "a", [b"first"])
        message = await receiving
        assert message is not None
        assert message.value == b"first"


async def test_semantics_41_receives_are_served_in_order_and_end_with_the_consumer(client: engine.AsyncClient):
    await make(client, "a", "b")
    consumer = await stream(client)
    receives = [asyncio.ensure_future(consumer.receive()) for _ in range(3)]
    receives[0].cancel()
    await send(client, "a", [b"1"])
    assert (await receives[1]).value == b"1"  # type: ignore[union-attr]
    await consumer.close()
    await consumer.close()
    with pytest.raises(engine.AlreadyClosedError):
        await receives[2]
    with pytest.raises(engine.AlreadyClosedError):
        await consumer.receive()
    assert [m async for m in consumer] == []


# -- who comes and goes ----------------------------------------------------------------------------------------------


async def test_nothing_is_missed_of_a_topic_that_is_made_later(client: engine.AsyncClient):
    """Its subscription starts at the beginning, also when that of the others starts at the latest."""
    await make(client, "old")
    await send(client, "old", [b"before"])
    async with await stream(client, initial_position="latest") as consumer:
        await send(client, "new", [b"%d" % i for i in range(100)])
        await send(client, "old", [b"after"])
        got = await take(consumer, 101)
        assert [m.value for m in got if m.topic.endswith("new")] == [b"%d" % i for i in range(100)]
        assert [m.value for m in got if m.topic.endswith("old")] == [b"after"]


async def test_nothing_is_missed_while_topics_are_made_under_load(client: engine.AsyncClient):
    expected: list[bytes] = []

    async def producing(number: int) -> None:
        for generation in range(4):
            values = [b"%d-%d-%d" % (number, generation, i) for i in range(50)]
            await send(client, f"t{number}-{generation}", values)
            expected.extend(values)

    async with await stream(client, initial_position="latest") as consumer:
        producers = asyncio.gather(*(producing(n) for n in range(4)))
        got = [m.value for m in await take(consumer, 16 * 50)]
        await producers
        assert sorted(got) == sorted(expected)
        assert len(consumer.topics) == 16


async def test_a_deleted_topic_leaves_and_the_others_go_on(client: engine.AsyncClient):
    await make(client, "a", "b")
    async with await stream(client) as consumer:
        await send(client, "a", [b"a"])
        (message,) = await take(consumer, 1)
        await client.admin.delete_topic(*full("a"))
        await until(lambda: consumer.topics == full("b"))
        await consumer.acknowledge_cumulative(message)  # nothing to be done there
        await send(client, "b", [b"b"])
        (other,) = await take(consumer, 1)
        assert other.value == b"b"
        await consumer.acknowledge_cumulative(other)
        assert consumer.statistics().messages_received == 2


async def test_a_deleted_topic_is_not_made_anew_by_its_consumer(client: engine.AsyncClient):
    await make(client, "a", "b")
    async with await stream(client) as consumer:
        await client.admin.delete_topic(*full("a"))
        await until(lambda: consumer.topics == full("b"))
        await consumer.receive(timeout=0.1)
        assert await client.list_topics(NS) == full("b")


async def test_semantics_40_a_topic_made_anew_is_another_one(client: engine.AsyncClient):
    """Kept ids of the old one acknowledge nothing of the new one."""
    await make(client, "a", "b")
    async with await stream(client) as consumer:
        await send(client, "a", [b"old0", b"old1"])
        kept = (await take(consumer, 2))[-1].id
        await client.admin.delete_topic(*full("a"))
        await make(client, "a")
        await send(client, "a", [b"new0", b"new1", b"new2"])
        got = await take(consumer, 3)
        assert [m.value for m in got] == [b"new0", b"new1", b"new2"]
        await consumer.acknowledge_cumulative(kept)
        await consumer.acknowledge_cumulative(engine.MessageId.from_bytes(kept.to_bytes()))
    assert await left_over(client) == {"a": [b"new0", b"new1", b"new2"]}


async def test_topics_are_chosen_by_properties_and_pattern(client: engine.AsyncClient):
    await make(client, "a1", "a2", "b1", properties={"team": "x"})
    await make(client, "a3", properties={"team": "y"})
    async with await stream(client, properties={"team": "x"}) as consumer:
        assert consumer.topics == full("a1", "a2", "b1")
        await make(client, "c1", properties={"team": "x", "more": "1"})
        await make(client, "c2")
        await until(lambda: consumer.topics == full("a1", "a2", "b1", "c1"))
    async with await stream(client, properties={"team": "x"}, pattern="a.*") as consumer:
        assert consumer.topics == full("a1", "a2")


async def test_semantics_13_closing_leaves_every_topic_at_once(client: engine.AsyncClient):
    await make(client, "a", "b")
    first = await stream(client, name="one")
    await send(client, "a", [b"1"])
    await take(first, 1)
    await first.close()
    async with await stream(client, name="two") as second:
        (message,) = await take(second, 1)
        assert message.value == b"1"
        for topic in full("a", "b"):
            stats = await client.admin.get_stats(topic)
            assert "one" not in str(stats["subscriptions"]["s"])


async def test_two_consumers_share_a_namespace(client: engine.AsyncClient):
    await make(client, "a", "b", segments=2)
    async with await stream(client, name="one") as one, await stream(client, name="two") as two:
        for name in "ab":
            async with await client.producer(*full(name)) as producer:
                for i in range(100):
                    await producer.send(b"%d" % i, key=b"%d" % i)
        got: dict[str, list[tuple[str, bytes]]] = {"one": [], "two": []}

        async def read(consumer: engine.AsyncMultiStreamConsumer) -> None:
            async for message in consumer:
                got[consumer.name].append((message.topic, message.value))

        readers = [asyncio.ensure_future(read(c)) for c in (one, two)]
        await until(lambda: sum(map(len, got.values())) >= 200)
        for reader in readers:
            reader.cancel()
        assert len({*got["one"], *got["two"]}) == 200
        assert got["one"]
        assert got["two"]


# -- errors of one topic ---------------------------------------------------------------------------------------------


async def test_a_subscription_of_another_kind_is_told_when_the_consumer_is_made(client: engine.AsyncClient):
    await make(client, "a", "b")
    async with await client.queue_consumer(full("b")[0], "s"):
        with pytest.raises(engine.SubscriptionKindError):
            await stream(client)
    async with await stream(client):
        pass


async def test_a_conflict_in_a_later_topic_surfaces_once_and_the_others_go_on(client: engine.AsyncClient, monkeypatch):
    monkeypatch.setattr(engine.broker.session.topic_lists, "_CHANGES_S", 0.3)  # the other one is there first
    await make(client, "a")
    async with await stream(client) as consumer, await client.queue_consumer(full("later")[0], "s"):
        with pytest.raises(engine.SubscriptionKindError) as caught:
            await consumer.receive(timeout=20)
        assert "topic://shop/eu/later" in str(caught.value.__notes__)
        await send(client, "a", [b"1"])
        (message,) = await take(consumer, 1)
        await consumer.acknowledge_cumulative(message)
        assert consumer.statistics().failed == tuple(full("later"))
        assert consumer.topics == full("a")


async def test_an_error_is_told_although_other_topics_always_have_messages(client: engine.AsyncClient):
    await make(client, "a")
    async with await stream(client) as consumer, await client.queue_consumer(full("later")[0], "s"):
        while not (consumer.statistics().failed and consumer.waiting):
            await send(client, "a", [b"1"] * 100)
        assert consumer.take_now() is None
        with pytest.raises(engine.SubscriptionKindError):
            await consumer.receive(timeout=20)
        (message,) = await take(consumer, 1)
        assert message.value == b"1"


async def test_nothing_is_received_after_close(client: engine.AsyncClient):
    await make(client, "a")
    consumer = await stream(client)
    producer = await client.producer(full("a")[0])
    for _ in range(100):
        producer.send_nowait(b"1")
    await take(consumer, 1)
    closing = asyncio.ensure_future(consumer.close())
    while not closing.done():
        producer.send_nowait(b"2")
        await asyncio.sleep(0)
    assert consumer.take_now() is None
    with pytest.raises(engine.AlreadyClosedError):
        await consumer.receive()
    await producer.close()


# -- lists -----------------------------------------------------------------------------------------------------------


async def test_topics_are_listed_and_watched(client: engine.AsyncClient):
    await make(client, "b", "a")
    assert await client.list_topics(NS) == full("a", "b")
    assert await client.list_topics(NS, pattern="b") == full("b")
    assert await client.list_topics() == []
    async with await client.watch_topics(NS) as watch:
        changes = aiter(watch)
        assert await anext(changes) == engine.TopicsChanged((), tuple(full("a", "b")))
        await make(client, "c")
        assert await anext(changes) == engine.TopicsChanged((), tuple(full("c")))
        await client.admin.delete_topic(*full("a"))
        assert await anext(changes) == engine.TopicsChanged(tuple(full("a")), ())
        assert watch.topics == full("b", "c")
        assert await watch.next_change(timeout=0.05) is None
    with pytest.raises(engine.AlreadyClosedError):
        await watch.next_change()
    assert [change async for change in watch] == []


async def test_a_pattern_without_its_package_says_what_to_install(
    client: engine.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    await make(client, "a", properties={"team": "x"})
    monkeypatch.setitem(sys.modules, "re2", None)  # as if it were not there
    for ask in (client.list_topics, client.watch_topics):
        with pytest.raises(engine.UnsupportedError, match=r"google-re2 .*: pip install 'engine\[patterns\]'"):
            await ask(NS, pattern="no other test has this.*")
    assert await client.list_topics(NS, properties={"team": "x"}) == full("a")
    async with await stream(client) as consumer:
        assert consumer.topics == full("a")


async def test_the_first_change_of_an_empty_namespace_is_empty(client: engine.AsyncClient):
    async with await client.watch_topics(NS) as watch:
        assert await watch.next_change(timeout=5) == engine.TopicsChanged((), ())


# -- blocking --------------------------------------------------------------------------------------------------------


def test_the_same_without_await(blocking: engine.Client):
    for topic in full("a", "b"):
        with blocking.producer(topic) as producer:
            producer.send_batch([b"%d" % i for i in range(100)])
    assert blocking.list_topics(NS, pattern=".*") == full("a", "b")
    with blocking.stream_consumer(None, "s", namespace=NS, initial_position="earliest") as consumer:
        assert consumer.topics == full("a", "b")
        messages = [consumer.receive(timeout=20) for _ in range(150)]
        batch = consumer.receive_batch(timeout=20)
        assert messages[-1] is not None
        assert len(batch)
        consumer.acknowledge_cumulative(messages[-1])
        assert consumer.topic == NS
    with blocking.stream_consumer(None, "s", namespace=NS) as consumer:
        assert sum(len(consumer.receive_batch(timeout=0.5)) for _ in range(4)) == 50
    with blocking.queue_consumer(full("a", "b"), "q", initial_position="earliest") as queue:
        got = [queue.receive(timeout=20) for _ in range(200)]
        assert Counter(m.topic for m in got if m) == dict.fromkeys(full("a", "b"), 100)
    with blocking.watch_topics(NS) as watch:
        assert next(iter(watch)).added == tuple(full("a", "b"))
        assert watch.next_change(timeout=0) is None
        assert (watch.topics, watch.namespace) == (full("a", "b"), NS)
    assert list(watch) == []


# -- restarts --------------------------------------------------------------------------------------------------------


async def test_everything_goes_on_after_a_restart_of_the_broker(tmp_path: Path):
    """Topics that were made and deleted while nobody listened, too."""

    @contextlib.asynccontextmanager
    async def serve(listen: str):
        async with engine.open_async(tmp_path / "data", listen=listen, admin="127.0.0.1:0", shared=False) as served:
            for name in extra:
                await make(served, name)
                await send(served, name, [name.encode()])
            yield served

    extra: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        async with serve("127.0.0.1:0") as served:
            url = served.service_url
            client = await stack.enter_async_context(engine.AsyncClient(url))
            await make(client, "a", "b")
            consumer = await stream(client, initial_position="latest")
            watch = await stack.enter_async_context(await client.watch_topics(NS))
            await watch.next_change()
            await send(client, "a", [b"1"])
            (first,) = await take(consumer, 1)
            await consumer.acknowledge_cumulative(first)
        extra.append("c")
        async with serve(url.removeprefix("engine://")):
            got = await take(consumer, 1)
            assert got[0].value == b"c"
            assert await watch.next_change(timeout=20) == engine.TopicsChanged((), tuple(full("c")))
            await send(client, "b", [b"2"])
            got = await take(consumer, 1)
            assert got[0].value == b"2"
            await consumer.acknowledge_cumulative(got[0])
            await consumer.close()
            assert await left_over(client) == {}
