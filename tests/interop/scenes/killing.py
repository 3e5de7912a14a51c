"""What a server still knows after kill -9. Where a program gives way, the server is killed and started again."""

from __future__ import annotations

from collections.abc import Iterator

import pulsar

from tests.interop.scenes.world import WAIT_MS, World, counts, scenario


@scenario("kill", "redelivery")
def acknowledged_messages_stay_acknowledged(w: World) -> Iterator[None]:
    consumer = w.subscribe()
    w.send(10)
    consumer.acknowledge_cumulative(w.take(consumer, 10)[5])
    consumer.close()
    yield
    w.rest("next", w.subscribe())


@scenario("kill", "redelivery")
def single_acknowledgements_outlive_a_kill(w: World) -> Iterator[None]:
    consumer = w.subscribe("Shared")
    w.send(10)
    for message in w.take(consumer, 10)[::2]:
        consumer.acknowledge(message)
    consumer.close()
    yield
    w.note("next", sorted(map(int, counts(w.take(w.subscribe("Shared"), 5)))))


@scenario("kill", "redelivery")
def acknowledgements_in_a_batch_outlive_a_kill(w: World) -> Iterator[None]:
    consumer = w.subscribe("Shared", batch_index_ack_enabled=True)
    w.send(10, batched=True)
    for message in w.take(consumer, 10)[::2]:
        consumer.acknowledge(message)
    consumer.close()
    yield
    w.rest("next", w.subscribe("Shared", batch_index_ack_enabled=True))


@scenario("kill")
def messages_are_there_after_a_kill(w: World) -> Iterator[None]:
    w.send(10)
    w.send(10, batched=True, first=10)
    yield
    w.read("came", w.subscribe(), 20)


@scenario("kill")
def sequence_ids_outlive_a_kill(w: World) -> Iterator[None]:
    producer = w.producer(producer_name="named")
    for number in range(5):
        producer.send(b"%d" % number, sequence_id=number)
    producer.close()
    yield
    producer = w.producer(producer_name="named")
    w.note("last", producer.last_sequence_id())
    for number in (3, 4, 5):
        producer.send(b"%d" % number, sequence_id=number)
    consumer = w.subscribe()
    w.read("came", consumer, 6)
    w.rest("and", consumer)


@scenario("kill", "redelivery")
def a_count_of_deliveries_after_a_kill(w: World) -> Iterator[None]:
    consumer = w.subscribe("Shared")
    w.send(1)
    consumer.negative_acknowledge(w.take(consumer, 1)[0])
    w.note("before", counts(w.take(consumer, 1)))
    consumer.close()
    yield
    w.note("after", counts(w.take(w.subscribe("Shared"), 1)))


@scenario("kill")
def a_producer_and_a_consumer_connect_again(w: World) -> Iterator[None]:
    producer, consumer = w.producer(send_timeout_millis=0), w.subscribe()
    producer.send(b"before")
    w.read("before", consumer, 1, ack=True)
    yield
    producer.send(b"after")
    w.note("after", consumer.receive(WAIT_MS * 2).data().decode())


@scenario("kill", "seek")
def a_seek_outlives_a_kill(w: World) -> Iterator[None]:
    consumer = w.subscribe()
    w.send(6)
    third = w.take(consumer, 6, ack=True)[2]
    consumer.seek(third.message_id())
    consumer.close()
    yield
    w.rest("next", w.subscribe())


@scenario("kill", "seek")
def an_id_means_the_same_after_a_kill(w: World) -> Iterator[None]:
    ids = [ident.serialize() for ident in w.send(6)]
    yield
    w.send(2, first=6)
    reader = w.client.create_reader(w.topic, pulsar.MessageId.deserialize(ids[3]))
    w.note("behind", [reader.read_next(WAIT_MS).data().decode() for _ in range(4)])
