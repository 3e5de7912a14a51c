"""What comes again, how often it says so, and to whom."""

from __future__ import annotations

import pulsar

from tests.interop.scenes.world import World, counts, scenario, values


@scenario("redelivery")
def a_negative_acknowledgement_is_counted(w: World) -> None:
    consumer = w.subscribe("Shared")
    w.send(1)
    for _ in range(3):
        (message,) = w.take(consumer, 1)
        w.note("count", message.redelivery_count())
        consumer.negative_acknowledge(message)
    w.take(consumer, 1, ack=True)
    w.backlog("backlog", 0)


@scenario("redelivery")
def one_message_of_a_batch_is_refused(w: World) -> None:
    consumer = w.subscribe("Shared")
    w.send(4, batched=True)
    consumer.negative_acknowledge(w.take(consumer, 4)[1])
    w.note("again", counts(w.take(consumer, 4)))


@scenario("redelivery")
def one_message_of_a_batch_is_refused_and_the_others_acknowledged(w: World) -> None:
    consumer = w.subscribe("Shared", batch_index_ack_enabled=True)
    w.send(4, batched=True)
    messages = w.take(consumer, 4)
    for number in (0, 2, 3):
        consumer.acknowledge(messages[number])
    consumer.negative_acknowledge(messages[1])
    w.rest("again", consumer)


@scenario("redelivery")
def an_exclusive_consumer_refuses_one(w: World) -> None:
    consumer = w.subscribe()
    w.send(4)
    messages = w.take(consumer, 4)
    consumer.negative_acknowledge(messages[1])
    w.note("again", counts(w.rest("values", consumer)))


@scenario("redelivery")
def a_failover_consumer_refuses_one(w: World) -> None:
    consumer = w.subscribe("Failover")
    w.send(4)
    messages = w.take(consumer, 4)
    consumer.acknowledge(messages[0])
    consumer.negative_acknowledge(messages[2])
    w.note("again", counts(w.rest("values", consumer)))


@scenario("redelivery")
def a_key_shared_consumer_refuses_one(w: World) -> None:
    consumer = w.subscribe("KeyShared")
    w.send(6, keys=2)
    messages = w.take(consumer, 6)
    consumer.negative_acknowledge(messages[2])
    w.note("again", counts(w.rest("values", consumer)))


@scenario("redelivery")
def an_exclusive_consumer_asks_for_all_again(w: World) -> None:
    consumer = w.subscribe()
    w.send(5)
    consumer.acknowledge(w.take(consumer, 5)[1])
    consumer.redeliver_unacknowledged_messages()
    w.note("again", counts(w.rest("values", consumer)))


@scenario("redelivery")
def a_shared_consumer_asks_for_all_again(w: World) -> None:
    consumer = w.subscribe("Shared")
    w.send(5)
    consumer.acknowledge(w.take(consumer, 5)[1])
    w.backlog("backlog", 4)
    consumer.redeliver_unacknowledged_messages()
    w.note("again", sorted(counts(w.take(consumer, 4)).items()))


@scenario("redelivery")
def what_a_shared_consumer_leaves_goes_to_the_others(w: World) -> None:
    first = w.subscribe("Shared")
    w.send(6)
    for message in w.take(first, 6)[:2]:
        first.acknowledge(message)
    second = w.subscribe("Shared")
    first.close()
    w.note("second", sorted(counts(w.take(second, 4)).items()))


@scenario("redelivery")
def what_a_key_shared_consumer_leaves_goes_to_the_others_in_order(w: World) -> None:
    first = w.subscribe("KeyShared")
    w.send(6, keys=2)
    for message in w.take(first, 6)[:2]:
        first.acknowledge(message)
    second = w.subscribe("KeyShared")
    first.close()
    messages = w.take(second, 4)
    for key in ("k0", "k1"):
        w.note(key, values([m for m in messages if m.partition_key() == key]))


@scenario("redelivery")
def a_dead_letter_has_its_origin(w: World) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(1, f"{w.topic}-letters", "audit")
    consumer = w.subscribe("Shared", dead_letter_policy=policy)
    letters = w.subscribe(topic=f"{w.topic}-letters", name="audit")
    w.send(1)
    for _ in range(2):
        consumer.negative_acknowledge(w.take(consumer, 1)[0])
    (letter,) = w.read("letter", letters, 1)
    w.note("properties", sorted(letter.properties()))
    w.backlog("backlog", 0)


@scenario("redelivery")
def an_acknowledged_message_cannot_be_refused(w: World) -> None:
    consumer = w.subscribe("Shared")
    w.send(2)
    first, second = w.take(consumer, 2)
    consumer.acknowledge(first)
    w.backlog("backlog", 1)
    consumer.negative_acknowledge(first)
    w.rest("again", consumer)
    consumer.acknowledge(second)


@scenario("redelivery")
def a_count_of_deliveries_outlives_a_consumer(w: World) -> None:
    consumer = w.subscribe("Shared")
    w.send(1)
    consumer.negative_acknowledge(w.take(consumer, 1)[0])
    w.note("second", counts(w.take(consumer, 1)))
    consumer.close()
    w.note("third", counts(w.take(w.subscribe("Shared"), 1)))


@scenario("redelivery")
def a_refused_message_does_not_hold_up_new_ones(w: World) -> None:
    consumer = w.subscribe("Shared")
    w.send(2)
    first, second = w.take(consumer, 2)
    consumer.acknowledge(second)
    consumer.negative_acknowledge(first)
    w.send(2, first=2)
    w.note("all", sorted(counts(w.take(consumer, 3)).items()))
