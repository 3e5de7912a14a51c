"""Subscriptions of all types, acknowledgements, redelivery, seek and readers."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pulsar
import pytest

from tests.pulsar.conftest import EARLIEST, WAIT_MS, close_behind_letters, connect, is_quiet, service_url, take
from tests.pulsar.raw import Raw, framed_send, greeted
from tests.reference.pulsar_reference import PulsarMessage

SHARED = pulsar.ConsumerType.Shared
FAILOVER = pulsar.ConsumerType.Failover
KEY_SHARED = pulsar.ConsumerType.KeyShared


def publish(client: pulsar.Client, topic: str, count: int, *, batched: bool = True, start: int = 0) -> list[bytes]:
    producer = client.create_producer(topic, batching_enabled=batched, batching_max_publish_delay_ms=100)
    values = [b"%d" % i for i in range(start, start + count)]
    for value in values:
        producer.send_async(value, lambda *_: None)
    producer.flush()
    producer.close()
    return values


def values_of(messages: list[Any]) -> list[bytes]:
    return [message.data() for message in messages]


def test_an_exclusive_subscription_has_one_consumer_and_goes_on_where_it_was(client, topic):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", SHARED)
    values = publish(client, topic, 10, batched=False)
    for message in take(consumer, 10)[:4]:
        consumer.acknowledge(message)
    consumer.close()
    consumer = client.subscribe(topic, "s")
    assert values_of(take(consumer, 6)) == values[4:]
    assert is_quiet(consumer)


@pytest.mark.parametrize("batched", [False, True])
def test_a_cumulative_acknowledgement_covers_all_before_it(client, topic, batched):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    values = publish(client, topic, 10, batched=batched)
    consumer.acknowledge_cumulative(take(consumer, 10)[5])
    consumer.close()
    consumer = client.subscribe(topic, "s")
    # Of a batch that is acknowledged in part, the client acknowledges nothing before the whole is.
    assert values_of(take(consumer, 10 if batched else 4)) == (values if batched else values[6:])


def test_single_messages_of_a_batch_are_acknowledged(client, topic):
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST, batch_index_ack_enabled=True)
    values = publish(client, topic, 10)
    for message in take(consumer, 10)[::2]:
        consumer.acknowledge(message)
    consumer.close()
    consumer = client.subscribe(topic, "s", SHARED, batch_index_ack_enabled=True)
    assert values_of(take(consumer, 5)) == values[1::2]
    assert is_quiet(consumer)


def test_what_is_not_acknowledged_comes_again(client, topic):
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=100)
    publish(client, topic, 4, batched=False)
    first, second, third, fourth = take(consumer, 4)
    consumer.acknowledge(first)
    consumer.acknowledge(fourth)
    consumer.negative_acknowledge(second)
    again = consumer.receive(WAIT_MS)
    assert again.data() == second.data()
    assert again.redelivery_count() == 1
    consumer.acknowledge(again)
    consumer.redeliver_unacknowledged_messages()
    assert consumer.receive(WAIT_MS).data() == third.data()


def test_a_batch_with_a_negative_acknowledgement_comes_again(client, topic):
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=100)
    publish(client, topic, 4)
    messages = take(consumer, 4)
    consumer.negative_acknowledge(messages[1])
    assert values_of(take(consumer, 4)) == values_of(messages)


def test_messages_come_again_after_the_ack_timeout(client, topic):
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST, unacked_messages_timeout_ms=10_000)
    publish(client, topic, 1)
    first = consumer.receive(WAIT_MS)
    again = consumer.receive(WAIT_MS)
    assert again.data() == first.data()


def test_a_message_goes_to_the_dead_letters(served, client, topic):
    policy = pulsar.ConsumerDeadLetterPolicy(1, f"{topic}-letters", "audit")
    consumer = client.subscribe(
        topic, "s", SHARED, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=100, dead_letter_policy=policy
    )
    letters = client.subscribe(f"{topic}-letters", "audit", initial_position=EARLIEST)
    publish(client, topic, 1)
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    assert letters.receive(WAIT_MS).data() == b"0"
    close_behind_letters(served, consumer)


def test_shared_consumers_share(client, topic):
    consumers = [
        client.subscribe(topic, "s", SHARED, initial_position=EARLIEST, receiver_queue_size=1) for _ in range(2)
    ]
    values = publish(client, topic, 20, batched=False)
    got: list[bytes] = []
    shares = [0, 0]
    while len(got) < len(values):
        for i, consumer in enumerate(consumers):
            try:
                message = consumer.receive(200)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            got.append(message.data())
            shares[i] += 1
    assert sorted(got) == sorted(values)
    assert all(shares)


def test_a_consumer_that_leaves_hands_its_messages_on(client, topic):
    first = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    values = publish(client, topic, 5, batched=False)
    take(first, 5)
    second = client.subscribe(topic, "s", SHARED)
    first.close()
    assert sorted(values_of(take(second, 5))) == values


def test_failover_has_one_active_consumer(client, topic):
    first = client.subscribe(topic, "s", FAILOVER, consumer_name="a", initial_position=EARLIEST)
    second = client.subscribe(topic, "s", FAILOVER, consumer_name="b")
    values = publish(client, topic, 5)
    got = take(first, 5)
    assert values_of(got) == values
    assert is_quiet(second)
    for message in got[:5]:
        first.acknowledge(message)
    more = publish(client, topic, 3, start=5)
    assert values_of(take(first, 3)) == more
    first.close()
    assert values_of(take(second, 3)) == more


def test_seek_by_id_and_by_time(client, topic):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    values = publish(client, topic, 10, batched=False)
    messages = take(consumer, 10)
    for message in messages:
        consumer.acknowledge(message)
    consumer.seek(messages[5].message_id())
    assert values_of(take(consumer, 4)) == values[6:]
    consumer.seek(pulsar.MessageId.earliest)
    assert values_of(take(consumer, 10)) == values
    consumer.seek(pulsar.MessageId.latest)
    assert is_quiet(consumer)
    consumer.seek(messages[0].publish_timestamp())
    assert values_of(take(consumer, 10)) == values


def test_a_reader_reads_from_where_it_is_told_to(client, topic):
    values = publish(client, topic, 10)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    got = []
    while reader.has_message_available():
        got.append(reader.read_next(WAIT_MS))
    assert values_of(got) == values
    assert not reader.has_message_available()
    later = client.create_reader(topic, got[3].message_id())
    assert later.read_next(WAIT_MS).data() == values[4]
    inclusive = client.create_reader(topic, got[3].message_id(), start_message_id_inclusive=True)
    assert inclusive.read_next(WAIT_MS).data() == values[3]
    newest = client.create_reader(topic, pulsar.MessageId.latest)
    assert not newest.has_message_available()
    more = publish(client, topic, 1, start=10)
    assert newest.read_next(WAIT_MS).data() == more[0]
    reader.seek(pulsar.MessageId.earliest)
    assert reader.read_next(WAIT_MS).data() == values[0]
    reader.seek(got[0].publish_timestamp())
    assert reader.read_next(WAIT_MS).data() == values[0]


def test_the_id_of_the_last_message(client, topic):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    publish(client, topic, 3)
    last = take(consumer, 3)[-1].message_id()
    assert consumer.get_last_message_id() == last


def test_an_id_can_be_kept(client, topic):
    values = publish(client, topic, 3)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    kept = reader.read_next(WAIT_MS).message_id().serialize()
    again = client.create_reader(topic, pulsar.MessageId.deserialize(kept))
    assert again.read_next(WAIT_MS).data() == values[1]


def test_unsubscribing_deletes_the_subscription(served, client, topic):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert "s" in served.admin.get_stats(topic)["subscriptions"]
    consumer.unsubscribe()
    assert "s" not in served.admin.get_stats(topic)["subscriptions"]


def test_a_delayed_message_waits(client, topic):
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    producer = client.create_producer(topic)
    due = int(time.time() * 1000) + 1500
    producer.send(b"later", deliver_at=due)
    producer.send(b"now")
    assert consumer.receive(WAIT_MS).data() == b"now"
    assert consumer.receive(WAIT_MS).data() == b"later"
    assert time.time() * 1000 >= due


def test_topics_by_a_pattern(client, topic):
    topics = [f"{topic}-pattern-{i}" for i in range(3)]
    for one in topics:
        publish(client, one, 1)
    consumer = client.subscribe(re.compile(f"{topic}-pattern-.*"), "s", initial_position=EARLIEST)
    got = take(consumer, 3)
    assert sorted(message.topic_name() for message in got) == topics


def test_a_topic_of_partitions(served, client, topic):
    served.admin.create_topic(topic, properties={"pulsar.partitions": "3"})
    assert len(client.get_topic_partitions(topic)) == 3
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    for i in range(30):
        producer.send(b"%d" % i, partition_key=f"k{i}")
    got = take(consumer, 30)
    assert sorted(int(m.data()) for m in got) == list(range(30))
    assert {m.topic_name().rpartition("-")[2] for m in got} == {"0", "1", "2"}
    for message in got:
        consumer.acknowledge(message)
    consumer.close()
    assert is_quiet(client.subscribe(topic, "s"))


def test_a_subscription_that_a_native_consumer_reads_is_not_removed(served, client, topic):
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    with served.queue_consumer(topic, "s") as native:
        with pytest.raises(pulsar.ConsumerBusy):
            consumer.unsubscribe()
        (value,) = publish(client, topic, 1)
        consumer.close()
        assert native.receive(10.0).value == value
    consumer = client.subscribe(topic, "s", SHARED)
    consumer.unsubscribe()
    assert "s" not in served.admin.get_stats(topic)["subscriptions"]


def test_a_native_queue_consumer_shares_with_pulsars(served, client, topic):
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    with served.queue_consumer(topic, "s") as native:
        values = publish(client, topic, 2, batched=False)
        got = {native.receive(10.0).value, consumer.receive(WAIT_MS).data()}
    assert got == set(values)


@pytest.mark.parametrize(
    ("subscribe", "error"),
    [
        ({"topic": "non-persistent://public/default/x"}, pulsar.NotAllowedError),
        ({"topic": "persistent://public/default/x", "is_read_compacted": True}, pulsar.NotAllowedError),
        (
            {"topic": "persistent://public/default/x", "replicate_subscription_state_enabled": True},
            pulsar.NotAllowedError,
        ),
    ],
)
def test_what_is_not_served_is_refused(client, subscribe, error):
    with pytest.raises(error):
        client.subscribe(subscription_name="s", **subscribe)


def test_a_deduplicated_producer_goes_on_behind_its_last_sequence(served, client, topic):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, "named")
    for i in range(3):
        producer.send(b"%d" % i, sequence_id=10 + i)
    producer.close()
    other = connect(service_url(served))
    again = other.create_producer(topic, "named")
    assert again.last_sequence_id() == 12
    again.send(b"twice", sequence_id=11)
    again.send(b"new", sequence_id=13)
    assert values_of(take(consumer, 4)) == [b"0", b"1", b"2", b"new"]
    other.close()


def test_access_modes_of_producers(served, client, topic):
    mode = pulsar.ProducerAccessMode
    first = client.create_producer(topic, access_mode=mode.Exclusive)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    fencing = client.create_producer(topic, access_mode=mode.ExclusiveWithFencing)
    fencing.send(b"v")
    with pytest.raises(pulsar.PulsarException):
        first.send(b"v")
    fencing.close()
    waiting = client.create_producer(topic, access_mode=mode.WaitForExclusive)
    waiting.send(b"w")


def drain(consumers: list[Any], count: int, keep: Any = lambda message: False) -> list[tuple[int, Any]]:
    """So many messages of all consumers, each acknowledged unless it is to be kept, with the consumer's number."""
    got: list[tuple[int, Any]] = []
    while len(got) < count:
        for number, consumer in enumerate(consumers):
            try:
                message = consumer.receive(20)
            except pulsar.Timeout:
                continue
            if not keep(message):
                consumer.acknowledge(message)
            got.append((number, message))
    return got


@pytest.mark.parametrize("batched", [False, True])
def test_key_shared_gives_each_key_to_one_consumer_in_order(client, topic, batched):
    consumers = [client.subscribe(topic, "s", KEY_SHARED, initial_position=EARLIEST) for _ in range(3)]
    producer = client.create_producer(topic, batching_enabled=batched, batching_max_publish_delay_ms=50)
    for i in range(60):
        producer.send_async(b"%d" % i, lambda *_: None, partition_key=f"k{i % 10}")
    producer.flush()
    got = drain(consumers, 60)
    owners: dict[str, set[int]] = {}
    for number, message in got:
        owners.setdefault(message.partition_key(), set()).add(number)
    assert all(len(found) == 1 for found in owners.values())
    assert len(set.union(*owners.values())) > 1
    for key in owners:
        order = [int(message.data()) for _, message in got if message.partition_key() == key]
        assert order == sorted(order)
    assert sorted(int(message.data()) for _, message in got) == list(range(60))


def test_a_key_does_not_change_hands_while_it_is_held(client, topic):
    first = client.subscribe(topic, "s", KEY_SHARED, initial_position=EARLIEST)
    producer = client.create_producer(topic)
    keys = [f"k{i}" for i in range(8)]
    for key in keys:
        producer.send(b"0", partition_key=key)
    held = take(first, 8)
    second = client.subscribe(topic, "s", KEY_SHARED)
    for key in keys:
        producer.send(b"1", partition_key=key)
    assert is_quiet(second)
    for message in held:
        first.acknowledge(message)
    got = drain([first, second], 8)
    assert {number for number, _ in got} == {0, 1}
    first.close()
    for key in keys:
        producer.send(b"2", partition_key=key)
    assert sorted(message.partition_key() for message in take(second, 8)) == keys


def test_messages_are_received_in_batches(client, topic):
    publish(client, topic, 5, batched=False)
    policy = pulsar.ConsumerBatchReceivePolicy(3, 1 << 20, WAIT_MS)
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST, batch_receive_policy=policy)
    first = consumer.batch_receive()
    assert values_of(first) == [b"0", b"1", b"2"]
    for message in first:
        consumer.acknowledge(message)
    consumer.close()
    assert values_of(take(client.subscribe(topic, "s", SHARED), 2)) == [b"3", b"4"]


def test_a_table_view_is_refused(client, topic):
    with pytest.raises(pulsar.NotAllowedError):
        client.create_table_view(topic)


async def test_a_producer_creates_the_subscription_that_it_names(served, client, topic):
    """As those of dead letters do where the policy names one: what they send waits for it."""
    async with Raw(served) as raw:
        await greeted(raw)
        await raw.say_command("producer", topic=topic, producer=1, request=1, initial_subscription="letters")
        await raw.heard("producer_success")
        await raw.say(framed_send(1, [PulsarMessage(b"before")]))
        await raw.heard("send_receipt")
    assert served.admin.get_stats(topic)["subscriptions"]["letters"]["backlog"] == 1
    consumer = client.subscribe(topic, "letters", SHARED)  # at the end, if it were new
    assert consumer.receive(WAIT_MS).data() == b"before"


async def test_a_subscription_that_others_read_is_removed_by_force(served, topic):
    shared, name = 1, f"persistent://public/default/{topic.rpartition('/')[2]}"
    async with Raw(served) as raw, Raw(served) as other:
        for one in (raw, other):
            await greeted(one)
            await one.say_command("subscribe", topic=name, subscription="s", type=shared, consumer=1, request=1)
            if one is other:
                await raw.heard("ping")  # which proves that the first consumer lives
                await raw.say_command("pong")
            await one.heard("success")
        closed = asyncio.create_task(other.heard("close_consumer"))  # which answers pings
        await raw.say_command("unsubscribe", consumer=1, request=2)
        with pytest.raises(AssertionError, match="is read by another consumer"):
            await raw.heard("success")
        await raw.say_command("unsubscribe", consumer=1, request=3, force=True)
        assert (await raw.heard("success")).request == 3
        assert (await closed).consumer == 1
    assert "s" not in served.admin.get_stats(name)["subscriptions"]
