"""Limits of topics, namespaces, tenants and roles: each holds, says what it is when it is reached, and can be changed
under what is attached.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

import engine
from engine.broker.metrics.catalogue import metrics_text
from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.errors import InvalidArgumentError, LimitExceededError, MessageTooLargeError, StorageError
from engine.metadata import keys
from engine.model.limits import Limits
from engine.model.transactions import TransactionState, parse_id
from engine.storage.segment import Segment
from engine.wire.commands import FEATURES, PUBLISH_CREDIT, Command
from tests.broker.transacting import begin
from tests.kit.peer import Peer, listening, make_entries, until
from tests.kit.prometheus import samples_of

TOPIC = "public/default/orders"
BIG = 100_000  # bytes that no compression makes fewer
BLOB = random.Random(1).randbytes(BIG)
LEAVES_SECONDS = 1_000  # bytes a second: one blob owes more seconds than a test takes


def quotas(broker: Broker) -> Any:
    assert broker.limiting is not None
    return broker.limiting.quotas


async def limited(broker: Broker, resource: str, **limits: Any) -> None:
    """Set, and in effect here for what is attached."""
    await broker.admin.set_limits(resource, limits)
    await asyncio.sleep(0)


def stored(broker: Broker) -> int:
    """Messages that are durable."""
    return sum(hosted.segment.durable_offset for hosted in broker.segments)


def later_sent(producer: Any, value: bytes) -> asyncio.Future[Any]:
    return asyncio.ensure_future(producer.send(value))


async def refused(attempt: Callable[[], Awaitable[Any]]) -> LimitExceededError:
    with pytest.raises(LimitExceededError) as caught:
        await attempt()
    return caught.value


# -- rates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resource", "total"),
    [(TOPIC, ""), *itertools.product(["public/default", "public", "*"], ["", "total_"])],  # a topic has no sums
)
async def test_a_producer_above_its_rate_is_slowed_and_nothing_else_on_its_connection(
    start_broker: Any, resource: str, total: str
) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        await limited(broker, resource, **{f"{total}publish_bytes_per_s": LEAVES_SECONDS})
        await limited(broker, "else", publish_bytes_per_s=-1)
        slow = await client.producer("orders")
        first, second = later_sent(slow, BLOB), later_sent(slow, BLOB)
        await first
        others = await client.producer("topic://else/default/free") if resource != "*" or not total else None
        for number in range(20 if others is not None else 0):
            await others.send(b"%d" % number)
        assert not second.done()
        connection = next(c for c in broker.connections if c.producers)
        assert not connection.pressure.reading  # it is read from: the credit of the one producer is used up
        await broker.admin.remove_limits(resource)
        await second


async def test_a_rate_of_messages_slows_as_well(start_broker: Any) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        await limited(broker, TOPIC, publish_messages_per_s=1)
        producer = await client.producer("orders", batching=engine.Batching(max_messages=1))
        sent = [later_sent(producer, b"x") for _ in range(200)]
        await sent[0]
        assert not sent[-1].done()
        await limited(broker, TOPIC, publish_messages_per_s=1_000_000)
        await asyncio.gather(*sent)


async def test_one_of_two_rates_ends_and_the_other_stays(start_broker: Any) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        await limited(broker, TOPIC, publish_messages_per_s=1, publish_bytes_per_s=1_000_000)
        producer = await client.producer("orders", batching=engine.Batching(max_messages=1))
        sent = [later_sent(producer, b"x") for _ in range(200)]
        await sent[0]
        await limited(broker, TOPIC, publish_messages_per_s=None)
        await asyncio.gather(*sent)


async def test_those_that_stay_get_the_share_of_those_that_leave(start_broker: Any) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        await limited(broker, TOPIC, publish_bytes_per_s=10_000_000)
        many = [await client.producer("orders", name=f"p{i}") for i in range(50)]
        for producer in many:
            await producer.send(BLOB[:1_000])
        for producer in many[1:]:
            await producer.close()
        for _ in range(100):
            await many[0].send(BLOB[:1_000])


async def test_a_living_producer_is_slowed_by_a_limit_that_is_set_later(start_broker: Any) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        producer = await client.producer("orders")
        await producer.send(BLOB)
        await limited(broker, "public", total_publish_bytes_per_s=LEAVES_SECONDS)
        await client.producer("topic://else/default/free", name="free")  # the credit comes before this answer
        owing = later_sent(producer, BLOB)
        await owing
        waits = later_sent(producer, BLOB)
        await (await client.producer("topic://else/default/free")).send(b"x")
        assert not waits.done()
        await broker.admin.remove_limits("public")
        await waits


async def test_a_peer_that_takes_no_credit_is_not_read_from_at_last(start_broker: Any) -> None:
    features = [feature for feature in FEATURES if feature != PUBLISH_CREDIT]
    async with start_broker() as broker:
        await limited(broker, TOPIC, publish_bytes_per_s=LEAVES_SECONDS)
        peer = await Peer.connect(broker, hello=False)
        await peer.hello(features=features)
        producer = await peer.producer(await peer.segment("orders"))
        entries = make_entries([BLOB] * 12)
        (connection,) = broker.connections
        peer.publish(producer, entries[:5])
        await until(lambda: stored(broker) == 5)
        assert not connection.held
        await peer.segment("others")  # it is read from, and answered
        peer.publish(producer, entries[5:])
        await until(lambda: connection.held)
        assert not {Command.PUBLISH_CREDIT, Command.SEND_RECEIPT} & {command for command, _, _ in peer.frames}
        await broker.admin.remove_limits(TOPIC)
        await peer.receipts(producer, 12)
        assert not connection.held


async def test_what_is_not_paid_has_its_receipt_before_a_refusal_and_the_end(start_broker: Any) -> None:
    features = [feature for feature in FEATURES if feature != PUBLISH_CREDIT]
    async with start_broker() as broker:
        await limited(broker, TOPIC, publish_bytes_per_s=LEAVES_SECONDS, message_bytes_max=2 * BIG)
        peer = await Peer.connect(broker, hello=False)
        await peer.hello(features=features)
        producer = await peer.producer(await peer.segment("orders"))
        peer.publish(producer, make_entries([BLOB, 3 * BLOB]))
        await peer.take(Command.SEND_ERROR)
        peer.publish(producer, make_entries([BLOB], first=2))
        await until(lambda: stored(broker) == 2)
        await peer.ask(Command.CLOSE_PRODUCER, producer_id=producer)
        assert await peer.receipts(producer, 2) == ([0, 2], [0, 1])


async def test_a_consumer_above_its_rate_gets_more_when_the_limit_is_gone(start_broker: Any) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        producer = await client.producer("orders")
        for _ in range(3):
            await producer.send(BLOB)
        for consume, name in ((client.stream_consumer, "s"), (client.queue_consumer, "q")):
            await limited(broker, "public", total_dispatch_bytes_per_s=LEAVES_SECONDS)
            consumer = await consume("orders", name, initial_position="earliest")
            await consumer.receive()
            sent = sum(hosted.sent_bytes for hosted in broker.segments)
            await producer.send(b"x")
            assert sum(hosted.sent_bytes for hosted in broker.segments) == sent
            await broker.admin.remove_limits("public")
            for _ in range(3):
                await consumer.receive()
            await consumer.close()  # one that stays would have credit of its own


# -- counts ------------------------------------------------------------------------------------------------------------


async def test_producers_and_consumers_of_a_topic(start_broker: Any) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        await limited(broker, "public/default", producers_max=1, consumers_max=1)
        first = await client.producer("orders", name="a")
        await first.send(b"x")
        error = await refused(lambda: client.producer("orders", name="b"))
        assert (error.limit, error.resource, error.value) == ("producers_max", "public/default", 1)
        assert "got 2 producers of public/default/orders" in str(error)
        await first.close()
        second = await client.producer("orders", name="b")
        await second.send(b"x")
        one = await client.queue_consumer("orders", "s", name="a", initial_position="earliest")
        await one.receive()
        error = await refused(lambda: client.queue_consumer("orders", "t", name="a", initial_position="earliest"))
        assert (error.limit, error.value) == ("consumers_max", 1)


@pytest.mark.parametrize("resource", ["public/default", "public", "*"])
async def test_the_number_of_topics(start_broker: Any, resource: str) -> None:
    async with start_broker() as broker:
        await limited(broker, resource, total_topics=2)
        for name in ("a", "b"):
            await broker.admin.create_topic(name)
        error = await refused(lambda: broker.admin.create_topic("c"))
        assert str(error) == f"total_topics of {resource} must be at most 2, got topic 3"
        await broker.admin.delete_topic("a")
        await broker.admin.create_topic("c")


async def test_the_number_of_subscriptions(start_broker: Any) -> None:
    async with start_broker() as broker:
        await limited(broker, TOPIC, subscriptions_max=1)
        await limited(broker, "public", total_subscriptions=2)
        for topic in ("orders", "others"):
            await broker.admin.create_topic(topic)
            await broker.admin.create_subscription(topic, "s")
        error = await refused(lambda: broker.admin.create_subscription("orders", "t"))
        assert (error.limit, error.resource) == ("subscriptions_max", TOPIC)
        error = await refused(lambda: broker.admin.create_subscription("others", "t"))
        assert (error.limit, error.resource) == ("total_subscriptions", "public")
        await broker.admin.delete_subscription("orders", "s")
        await broker.admin.create_subscription("others", "t")


async def test_the_number_of_checkpoint_groups(start_broker: Any) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        await broker.admin.create_topic("orders")
        await limited(broker, "public/default", checkpoint_groups_max=2)

        async def member(group: str) -> Any:
            start = engine.Checkpoint.earliest()
            return await client.checkpoint_consumer("orders", start=start, group=group)

        kept = {group: await member(group) for group in ("a", "b")}
        another = await member("a")
        error = await refused(lambda: member("c"))
        assert str(error) == "checkpoint_groups_max of public/default must be at most 2, got group 3"
        counted = samples_of(metrics_text(broker), "engine_limit_refused_total")
        assert counted == {("checkpoint_groups_max",): 1.0}
        await kept["a"].close()
        await refused(lambda: member("c"))  # another one is in it
        await another.close()
        await member("c")
        await limited(broker, TOPIC, checkpoint_groups_max=-1)
        await member("d")


async def test_the_size_of_a_message(start_broker: Any) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        await limited(broker, "public", message_bytes_max=50_000)
        producer = await client.producer("orders", batching=engine.Batching(max_messages=1))
        small, large, behind = (later_sent(producer, v) for v in (b"x" * 1_000, BLOB, b"y"))
        await small
        with pytest.raises(MessageTooLargeError, match=r"message_bytes_max of public must be at most 50000, got"):
            await large
        await behind
        batches = await client.producer("orders")
        both = [later_sent(batches, value) for value in (b"x", BLOB)]  # an entry is taken or refused as a whole
        for one in both:
            with pytest.raises(MessageTooLargeError):
                await one
        many = [later_sent(batches, BLOB[:30_000]) for _ in range(4)]  # together they may be larger
        await asyncio.gather(*many)
        await limited(broker, TOPIC, message_bytes_max=-1)
        await producer.send(BLOB)


async def test_the_size_of_a_message_is_that_of_its_properties_as_well(start_broker: Any) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        await limited(broker, "public", message_bytes_max=3_000)
        producer = await client.producer("orders", compression="none")
        for size in (1_500, 20_000):
            with pytest.raises(MessageTooLargeError, match="message_bytes_max of public must be at most 3000"):
                await producer.send(b"x", properties={"one": "y" * size, "two": "z" * size})
        await producer.send(b"x", properties={"one": "y" * 1_400, "two": "z" * 1_400})


async def test_one_large_message_among_many_small_ones_is_found_in_an_entry_of_any_size(start_broker: Any) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        await limited(broker, "public", message_bytes_max=100_000)
        batching = engine.Batching(max_bytes=8_000_000, max_messages=1_000, max_delay=60.0)
        producer = await client.producer("orders", compression="none", batching=batching)
        for largest, kept in ((100_000, True), (100_001, False)):
            sent = [later_sent(producer, value) for value in [b"x" * 20_000] * 99 + [b"y" * largest]]
            await producer.flush()
            for one in sent:
                if kept:
                    await one
                else:
                    with pytest.raises(MessageTooLargeError, match="at most 100000, got 100001 bytes"):
                        await one


async def test_nothing_behind_a_refused_part_of_a_frame_is_stored(
    start_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_broker() as broker:
        await limited(broker, TOPIC, message_bytes_max=BIG // 2)
        peer = await Peer.connect(broker)
        producer = await peer.producer(await peer.segment("orders"))
        append, fails = Segment.append_for, True

        def fails_once(segment: Segment, flight: Any, *args: Any) -> None:
            nonlocal fails
            if not fails:
                append(segment, flight, *args)
                return
            fails = False
            flight.set_exception(StorageError("the disk is full"))

        monkeypatch.setattr(Segment, "append_for", fails_once)
        entries = make_entries([b"first", BLOB, b"behind"])
        peer.publish(producer, entries)
        await peer.take(Command.CLOSE_PRODUCER, producer_id=producer)
        again = await peer.producer(await peer.segment("orders"))
        peer.publish(again, entries[:1])
        assert await peer.receipts(again, 1) == ([0], [0])


async def test_the_versions_of_a_schema(start_broker: Any) -> None:
    def schema(fields: int) -> engine.Schema[Any]:
        added = [{"name": f"f{i}", "type": "int", "default": 0} for i in range(fields)]
        return engine.Schema.avro({"type": "record", "name": "R", "fields": added})

    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        await limited(broker, "public", schemas_max=1)
        await client.producer("orders", schema=schema(1))
        error = await refused(lambda: client.producer("orders", schema=schema(2)))
        assert str(error) == "schemas_max of public must be at most 1, got version 2 of the schema"


async def test_the_names_of_producers_that_a_segment_remembers(start_broker: Any) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        await limited(broker, TOPIC, producer_names_max=1)
        async with await client.producer("orders", name="a") as first:
            await first.send(b"x")
        assert (await refused(lambda: client.producer("orders", name="b"))).limit == "producer_names_max"
        async with await client.producer("orders", name="a") as first:
            await first.send(b"x")


# -- roles -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def roles(tmp_path: Any) -> dict[str, str]:
    (tmp_path / "roles").write_text(line_of("ann", "token-of-ann") + "\n" + line_of("bob", "token-of-bob") + "\n")
    return {"roles_file": str(tmp_path / "roles"), "superusers": ["ann", "bob"]}


async def test_connections_of_a_role(start_broker: Any, roles: Any) -> None:
    async with start_broker(**roles) as broker:
        url = await listening(broker)
        await limited(broker, "role:*", connections_max=1)
        async with engine.AsyncClient(url, token="token-of-ann") as ann:
            await ann.producer("orders")
            async with engine.AsyncClient(url, token="token-of-bob") as bob:
                await bob.producer("orders")  # each role has its own

            async def once_more() -> None:
                async with engine.AsyncClient(url, token="token-of-ann") as more:
                    await more.producer("orders")

            error = await refused(once_more)
            assert (error.limit, error.resource, error.value) == ("connections_max", "role:*", 1)
            await limited(broker, "role:ann", connections_max=2)
            await once_more()
        await until(lambda: not broker.memory.limits.connections)


async def test_open_transactions_of_a_role(start_broker: Any, roles: Any) -> None:
    async with start_broker(**roles) as broker:
        await limited(broker, "role:ann", open_transactions_max=2)
        async with engine.AsyncClient(await listening(broker), token="token-of-ann") as ann:
            producer = await ann.producer("orders")
            open_ones = []
            with suppress(LimitExceededError):
                for _ in range(5):
                    one = await ann.transaction()
                    open_ones.append(one)
                    await producer.send(b"x", transaction=one)
            assert len(open_ones) <= 3
            for one in open_ones[:2]:
                await one.abort()


async def test_open_transactions_that_are_begun_at_once(start_broker: Any, roles: Any) -> None:
    async with start_broker(**roles) as broker:
        await limited(broker, "role:ann", open_transactions_max=2)
        peer = await Peer.connect(broker, hello=False)
        await peer.hello(token="token-of-ann")

        named = await begin(peer, name="n")
        begun = await asyncio.gather(*(begin(peer) for _ in range(5)), return_exceptions=True)
        assert [type(one) for one in begun] == [str, *[LimitExceededError] * 4]
        assert await asyncio.gather(begin(peer, name="n"), begin(peer, name="n")) == [named, named]
        assert (await refused(lambda: begin(peer, name="m"))).limit == "open_transactions_max"


async def test_transactions_that_another_broker_has_ended_do_not_count(start_broker: Any, roles: Any) -> None:
    async with start_broker(**roles) as broker:
        await limited(broker, "role:ann", open_transactions_max=2)
        peer = await Peer.connect(broker, hello=False)
        await peer.hello(token="token-of-ann")
        first, _ = [await begin(peer) for _ in range(2)]
        assert (await refused(lambda: begin(peer))).limit == "open_transactions_max"
        # As another broker does: this one's count does not hear of it.
        await broker.transactions.coordinator.end(parse_id(first), TransactionState.ABORTED)
        while True:
            with suppress(LimitExceededError):
                await begin(peer)
                break
            await asyncio.sleep(0.05)
        assert (await refused(lambda: begin(peer))).limit == "open_transactions_max"


async def test_what_a_role_publishes_counts_for_it_alone(start_broker: Any, roles: Any) -> None:
    async with start_broker(**roles) as broker:
        url = await listening(broker)
        await limited(broker, "role:ann", total_publish_bytes_per_s=LEAVES_SECONDS, total_producers=1)
        async with (
            engine.AsyncClient(url, token="token-of-ann") as ann,
            engine.AsyncClient(url, token="token-of-bob") as bob,
        ):
            slow, free = await ann.producer("orders"), await bob.producer("orders")
            await slow.send(BLOB)
            waits = later_sent(slow, BLOB)
            for _ in range(5):
                await free.send(BLOB)
            assert not waits.done()
            second = await ann.producer("others")
            assert (await refused(lambda: second.send(b"x"))).limit == "total_producers"
            await broker.admin.remove_limits("role:ann")
            await waits


# -- what is stored ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("resource", "name"), [(TOPIC, "storage_bytes_max"), ("public", "total_storage_bytes")])
async def test_what_is_stored(start_broker: Any, resource: str, name: str) -> None:
    async with start_broker(retention_time=0) as broker, engine.AsyncClient(await listening(broker)) as client:
        producer = await client.producer("orders")
        await producer.send(BLOB)
        await limited(broker, resource, **{name: BIG // 2})
        await quotas(broker).check()
        error = await refused(lambda: producer.send(b"x"))
        assert (error.limit, error.resource, error.value) == (name, resource, BIG // 2)
        await limited(broker, resource, **{name: 100 * BIG})
        await quotas(broker).check()
        await producer.send(b"x")


@pytest.mark.parametrize("limit", [{"backlog_bytes_max": BIG}, {"backlog_age_s": 3600}])
async def test_a_backlog_refuses_producers_until_it_is_acknowledged(start_broker: Any, later: Any, limit: Any) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        consumer = await client.queue_consumer("orders", "slow")
        producer = await client.producer("orders")
        for _ in range(3):
            await producer.send(BLOB)
        later(broker, 2)
        await limited(broker, "public", **limit)
        await quotas(broker).check()
        error = await refused(lambda: producer.send(b"x"))
        assert (error.limit, error.resource) == (next(iter(limit)), "public")
        for _ in range(3):
            await consumer.acknowledge(await consumer.receive())
        await quotas(broker).check()
        await producer.send(b"x")


@pytest.mark.parametrize("limit", [{"backlog_bytes_max": 2 * BIG + BIG // 2}, {"backlog_age_s": 3600}])
async def test_a_backlog_is_evicted_oldest_first(start_broker: Any, later: Any, limit: Any) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        await broker.admin.create_topic("orders")
        await broker.admin.create_subscription("orders", "slow", initial_position="earliest")
        producer = await client.producer("orders")
        for _ in range(2):
            await producer.send(BLOB)
        later(broker, 2)
        for _ in range(2):
            await producer.send(BLOB)
        await limited(broker, TOPIC, backlog_action="evict", **limit)
        await quotas(broker).check()
        stats = await broker.service.get_stats("orders")
        assert stats["subscriptions"]["slow"]["backlog"] == 2
        await producer.send(b"x")
        consumer = await client.queue_consumer("orders", "slow")
        assert (await consumer.receive()).id.offset == 2


# -- records -----------------------------------------------------------------------------------------------------------


async def test_fields_resolve_one_by_one_and_are_shown_with_their_origin(start_broker: Any) -> None:
    async with start_broker() as broker:
        await broker.admin.create_topic("orders")
        await limited(broker, "*", producers_max=9, consumers_max=9, subscriptions_max=9, schemas_max=9)
        await limited(broker, "public", producers_max=8, consumers_max=8, subscriptions_max=8, total_topics=5)
        await limited(broker, "public/default", producers_max=7, consumers_max=-1)
        await limited(broker, TOPIC, producers_max=6)
        assert (await broker.admin.get_stats("orders"))["limits"] == {
            "producers_max": {"value": 6, "origin": TOPIC},
            "subscriptions_max": {"value": 8, "origin": "public"},
            "schemas_max": {"value": 9, "origin": "*"},
            "total_topics": {"value": 5, "origin": "public"},
        }


async def test_patch_merges_and_put_replaces(start_broker: Any) -> None:
    async with start_broker() as broker:
        await limited(broker, "public", producers_max=1, consumers_max=2)
        await limited(broker, "public", producers_max=None, schemas_max=3)
        assert await broker.admin.list_limits() == {"public": {"consumers_max": 2, "schemas_max": 3}}
        await broker.admin.replace_limits("public", {"producers_max": 4})
        said = await broker.admin.get_limits("public")
        assert {name: value for name, value in said.items() if value is not None} == {"producers_max": 4}
        await limited(broker, "public", producers_max=None)
        assert await broker.admin.list_limits() == {}


@pytest.mark.parametrize(
    ("resource", "limits", "text"),
    [
        ("public", {"producers": 1}, "a limit must be one of publish_messages_per_s.*, got 'producers': unknown"),
        ("public", {"producers_max": -2}, "producers_max must be an integer from 0 to .*, or -1 for no limit, got -2"),
        ("public", {"producers_max": True}, "producers_max must be an integer .*, got True"),
        ("public", {"publish_bytes_per_s": 0}, "publish_bytes_per_s must be an integer from 1 to"),
        ("public", {"backlog_action": "drop"}, "backlog_action must be refuse or evict, got 'drop'"),
        ("public", {"connections_max": 1}, "a limit of public must be one of .*, got 'connections_max'"),
        (TOPIC, {"total_topics": 1}, "a limit of public/default/orders must be one of .*, got 'total_topics'"),
        ("role:ann", {"schemas_max": 1}, "a limit of role:ann must be one of .*, got 'schemas_max'"),
        ("a/b/c/d", {"schemas_max": 1}, "resource must be"),
    ],
)
async def test_limits_that_cannot_be(start_broker: Any, resource: str, limits: Any, text: str) -> None:
    async with start_broker() as broker:
        with pytest.raises(InvalidArgumentError, match=text):
            await broker.admin.set_limits(resource, limits)
        assert broker.limiting is None


async def test_limits_outlive_a_restart_and_a_damaged_record_limits_nothing(start_broker: Any) -> None:
    async with start_broker() as broker:
        await limited(broker, "public/default", total_topics=1)
        await broker.metadata.put(keys.limits("public"), b'{"total_topics": "many"}')
    async with start_broker() as broker:
        await broker.admin.create_topic("a")
        assert (await refused(lambda: broker.admin.create_topic("b"))).resource == "public/default"


async def test_another_brokers_change_is_heard(start_broker: Any) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        producer = await client.producer("orders", name="a")
        await producer.send(b"x")
        await broker.metadata.put(keys.limits("public"), Limits(producers_max=1).to_json())
        await until(lambda: broker.memory.limits is not None and broker.memory.limits.says(["producers_max"]))
        await until(lambda: broker.memory.limits.producers.count(TOPIC, "") == 1)
        assert (await refused(lambda: client.producer("orders", name="b"))).limit == "producers_max"
        await broker.metadata.delete(keys.limits("public"))
        await until(lambda: not broker.memory.limits.says(["producers_max"]))
        await client.producer("orders", name="b")


async def test_limits_have_metrics(start_broker: Any) -> None:
    async with start_broker() as broker:
        await limited(broker, TOPIC, publish_messages_per_s=1_000, producers_max=1)
        async with engine.AsyncClient(await listening(broker)) as client, await client.producer(TOPIC) as producer:
            await producer.send_batch([b"%d" % i for i in range(10)])
            for _ in range(2):
                assert (await refused(lambda: client.producer(TOPIC, name="b"))).limit == "producers_max"
        text = metrics_text(broker)
    scope = ("publish", TOPIC)  # by the names of the labels: direction, scope, unit
    assert samples_of(text, "engine_limit_rate") == {(*scope, "messages"): 1_000}
    assert samples_of(text, "engine_limit_granted_messages_total")[scope] >= 10
    assert samples_of(text, "engine_limit_refused_total") == {("producers_max",): 2}
    assert samples_of(text, "engine_limit_full_topics") == {(): 0}
