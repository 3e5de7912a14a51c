"""What is sent, and how it is received: order, attributes, receipts, deduplication, access, schemas, partitions."""

from __future__ import annotations

import itertools
import re
from datetime import timedelta

import pulsar
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema

from tests.interop.scenes.world import World, scenario, values


class Small(Record):  # type: ignore[misc]
    name = String()


class Other(Record):  # type: ignore[misc]
    name = Integer(required=True)


GOLDEN_KEYS = ("", "a", "order-42", "key-0", "ünïcödé", "日本", "k1", "k2", "k3", "k4", "k5")


@scenario()
def single_messages_keep_their_order(w: World) -> None:
    consumer = w.subscribe()
    w.send(20)
    w.read("came", consumer, 20)


@scenario()
def a_batch_keeps_its_order(w: World) -> None:
    consumer = w.subscribe()
    w.send(20, batched=True)
    w.read("came", consumer, 20)


@scenario()
def a_batch_of_mixed_keys_keeps_its_order(w: World) -> None:
    consumer = w.subscribe()
    w.send(20, batched=True, keys=3)
    w.note("keys", [m.partition_key() for m in w.read("came", consumer, 20)])


@scenario()
def a_message_keeps_its_attributes(w: World) -> None:
    consumer = w.subscribe()
    for batched in (False, True):
        producer = w.producer(batched=batched)
        producer.send_async(
            b"v", None, properties={"p": "q", "": "ü"}, partition_key="ünïcödé", ordering_key="o", event_timestamp=1234
        )
        producer.flush()
        (message,) = w.take(consumer, 1)
        w.note("properties", message.properties())
        w.note("key", [message.partition_key(), message.ordering_key(), message.event_timestamp()])


@scenario()
def an_empty_value_comes_as_it_is(w: World) -> None:
    consumer = w.subscribe()
    w.producer().send(b"")
    w.read("came", consumer, 1)


@scenario()
def each_compression_is_read(w: World) -> None:
    consumer = w.subscribe()
    for name in ("LZ4", "ZLib", "ZSTD", "SNAPPY"):
        producer = w.producer(batched=True, compression_type=getattr(pulsar.CompressionType, name))
        for number in range(3):
            producer.send_async(f"{name}{number}".encode() * 50, None)
        producer.flush()
        w.note(name, [len(m.data()) for m in w.take(consumer, 3)])


@scenario()
def sequence_ids_go_on_under_a_name(w: World) -> None:
    producer = w.producer(producer_name="named")
    w.note("at first", producer.last_sequence_id())
    for number in (3, 7):
        producer.send(b"v", sequence_id=number)
    w.note("then", producer.last_sequence_id())
    producer.close()
    w.note("again", w.producer(producer_name="named").last_sequence_id())


@scenario()
def what_was_sent_before_is_stored_once(w: World) -> None:
    consumer = w.subscribe()
    producer = w.producer(producer_name="named")
    for number, value in ((1, b"a"), (2, b"b"), (2, b"again"), (1, b"again"), (3, b"c")):
        w.outcome(f"sequence {number}", lambda n=number, v=value: producer.send(v, sequence_id=n))  # type: ignore[misc]
    w.read("came", consumer, 3)
    w.rest("and", consumer)


@scenario()
def a_name_is_of_one_producer(w: World) -> None:
    first = w.producer(producer_name="named")
    w.outcome("second", lambda: w.producer(producer_name="named"))
    first.close()
    w.outcome("third", lambda: w.producer(producer_name="named"))


@scenario()
def exclusive_access_shuts_others_out(w: World) -> None:
    exclusive = pulsar.ProducerAccessMode.Exclusive
    first = w.producer(access_mode=exclusive)
    w.outcome("exclusive", lambda: w.producer(access_mode=exclusive))
    w.outcome("shared", w.producer)
    first.close()
    w.outcome("shared afterwards", w.producer)
    w.outcome("exclusive beside it", lambda: w.producer(access_mode=exclusive))


@scenario()
def an_exclusive_producer_with_fencing_takes_over(w: World) -> None:
    first = w.producer(access_mode=pulsar.ProducerAccessMode.Exclusive)
    second = w.producer(access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing)
    w.outcome("second sends", lambda: second.send(b"v"))
    w.outcome("first sends", lambda: first.send(b"w"))


@scenario()
def the_last_message_id_is_that_of_the_last_message(w: World) -> None:
    consumer = w.subscribe()
    for batched in (False, True):
        w.send(5, batched=batched)
        last = w.take(consumer, 5)[-1].message_id()
        w.note("same", consumer.get_last_message_id() == last)


@scenario()
def ids_of_one_topic_are_ordered(w: World) -> None:
    consumer = w.subscribe()
    w.send(5)
    w.send(5, batched=True, first=5)
    w.send(5, first=10)
    ids = [m.message_id() for m in w.take(consumer, 15)]
    w.note("ordered", all(a < b for a, b in itertools.pairwise(ids)))
    w.note("batch indexes", [i.batch_index() for i in ids])


@scenario()
def a_receipt_names_the_message(w: World) -> None:
    consumer = w.subscribe()
    told = w.send(3) + w.send(3, batched=True, first=3)
    w.note("same", [m.message_id() == ident for m, ident in zip(w.take(consumer, 6), told, strict=True)])


@scenario()
def a_schema_that_does_not_fit_is_refused(w: World) -> None:
    w.outcome("first", lambda: w.client.create_producer(w.topic, schema=AvroSchema(Small)))
    w.outcome("other fields", lambda: w.client.create_producer(w.topic, schema=AvroSchema(Other)))
    w.outcome("same", lambda: w.client.create_producer(w.topic, schema=AvroSchema(Small)))
    w.outcome("consumer of other fields", lambda: w.client.subscribe(w.topic, "t", schema=AvroSchema(Other)))


@scenario()
def schemas_of_another_type_are_refused(w: World) -> None:
    w.outcome("first", lambda: w.client.create_producer(w.topic, schema=JsonSchema(Small)))
    w.outcome("text", lambda: w.client.create_producer(w.topic, schema=StringSchema()))
    w.outcome("bytes", w.producer)


@scenario()
def a_late_message_lets_others_pass(w: World) -> None:
    consumer = w.subscribe("Shared")
    producer = w.producer()
    producer.send(b"late", deliver_after=timedelta(seconds=2))
    producer.send(b"now")
    w.read("came", consumer, 2, ack=True)


@scenario()
def a_late_message_is_not_late_for_one_consumer(w: World) -> None:
    consumer = w.subscribe("Exclusive")
    producer = w.producer()
    producer.send(b"late", deliver_after=timedelta(seconds=2))
    producer.send(b"now")
    w.read("came", consumer, 2, ack=True)


@scenario()
def golden_keys_go_to_their_partitions(w: World) -> None:
    w.side.create_partitioned(w.topic, 4)
    consumer = w.subscribe()
    producer = w.client.create_producer(w.topic)
    for key in GOLDEN_KEYS[1:]:
        producer.send(key.encode(), partition_key=key)
    found = {m.data().decode(): m.topic_name().rpartition("-")[2] for m in w.take(consumer, len(GOLDEN_KEYS) - 1)}
    w.note("partitions", sorted(found.items()))
    w.note("all", len(w.client.get_topic_partitions(w.topic)))


@scenario()
def a_pattern_finds_the_topics_that_are_there(w: World) -> None:
    for end in ("-a", "-b", "-other"):
        w.send(1, topic=w.topic + end)
    consumer = w.client.subscribe(re.compile(f"{w.topic}-[ab]"), "s", initial_position=pulsar.InitialPosition.Earliest)
    found = w.take(consumer, 2)
    w.note("topics", sorted(m.topic_name().removeprefix(w.topic) for m in found))
    w.note("values", values(found))
    w.rest("and", consumer)
