"""Which consumers may subscribe, what each type is dealt, and what acknowledgements leave."""

from __future__ import annotations

from typing import Any

import pulsar

from tests.interop.scenes.world import WAIT_MS, World, scenario, values

LATEST = {"initial_position": pulsar.InitialPosition.Latest}


@scenario()
def an_exclusive_subscription_is_busy(w: World) -> None:
    first = w.subscribe()
    for kind in ("Exclusive", "Shared", "Failover", "KeyShared"):
        w.outcome(kind, lambda k=kind: w.subscribe(k))  # type: ignore[misc]
    first.close()
    w.outcome("afterwards", lambda: w.subscribe("Shared"))


@scenario()
def a_shared_subscription_takes_its_own_type_alone(w: World) -> None:
    keep = w.subscribe("Shared")
    for kind in ("Shared", "Exclusive", "Failover", "KeyShared"):
        w.outcome(kind, lambda k=kind: w.subscribe(k))  # type: ignore[misc]
    keep.close()


@scenario()
def a_subscription_may_change_its_type_while_it_is_idle(w: World) -> None:
    w.send(6)
    for kind in ("Exclusive", "Shared", "Failover", "KeyShared"):
        consumer = w.subscribe(kind)
        w.read(kind, consumer, 1, ack=True)
        consumer.close()


@scenario("redelivery")
def what_was_not_acknowledged_comes_to_the_next_consumer(w: World) -> None:
    consumer = w.subscribe()
    w.send(10)
    for message in w.take(consumer, 10)[:4]:
        consumer.acknowledge(message)
    consumer.close()
    w.read("next", w.subscribe(), 6)


@scenario("redelivery")
def acknowledgements_with_holes_leave_the_holes(w: World) -> None:
    consumer = w.subscribe()
    w.send(10)
    for message in w.take(consumer, 10)[::2]:
        consumer.acknowledge(message)
    w.backlog("backlog", 5)
    consumer.close()
    consumer = w.subscribe()
    w.read("next", consumer, 5)
    w.rest("and", consumer)


@scenario("redelivery")
def a_cumulative_acknowledgement_covers_what_is_before(w: World) -> None:
    consumer = w.subscribe()
    w.send(10)
    consumer.acknowledge_cumulative(w.take(consumer, 10)[5])
    consumer.close()
    consumer = w.subscribe()
    w.read("next", consumer, 4)
    w.rest("and", consumer)


@scenario("redelivery")
def a_cumulative_acknowledgement_inside_of_a_batch(w: World) -> None:
    consumer = w.subscribe(batch_index_ack_enabled=True)
    w.send(10, batched=True)
    consumer.acknowledge_cumulative(w.take(consumer, 10)[5])
    consumer.close()
    consumer = w.subscribe(batch_index_ack_enabled=True)
    w.rest("next", consumer)


@scenario("redelivery")
def single_acknowledgements_inside_of_a_batch(w: World) -> None:
    consumer = w.subscribe("Shared", batch_index_ack_enabled=True)
    w.send(10, batched=True)
    for message in w.take(consumer, 10)[::2]:
        consumer.acknowledge(message)
    consumer.close()
    w.rest("next", w.subscribe("Shared", batch_index_ack_enabled=True))


@scenario("redelivery")
def a_batch_without_acknowledgement_by_index_comes_whole(w: World) -> None:
    consumer = w.subscribe("Shared")
    w.send(4, batched=True)
    for message in w.take(consumer, 4)[:2]:
        consumer.acknowledge(message)
    consumer.close()
    w.rest("next", w.subscribe("Shared"))


@scenario()
def shared_consumers_acknowledge_one_by_one(w: World) -> None:
    consumer = w.subscribe("Shared")
    w.send(2)
    message = w.take(consumer, 2)[-1]
    w.outcome("cumulative", lambda: consumer.acknowledge_cumulative(message))
    w.outcome("one", lambda: consumer.acknowledge(message))
    w.outcome("twice", lambda: consumer.acknowledge(message))
    w.backlog("backlog", 1)


@scenario()
def a_new_subscription_begins_where_it_says(w: World) -> None:
    w.send(3)
    latest = w.subscribe(name="latest", **LATEST)
    earliest = w.subscribe(name="earliest")
    w.send(2, first=3)
    w.read("latest", latest, 2)
    w.read("earliest", earliest, 5)


@scenario()
def an_unsubscribed_name_begins_anew(w: World) -> None:
    consumer = w.subscribe()
    w.send(3)
    w.take(consumer, 3, ack=True)
    w.outcome("unsubscribe", consumer.unsubscribe)
    w.read("again", w.subscribe(), 3)


@scenario()
def a_subscription_with_others_on_it_is_not_removed(w: World) -> None:
    consumers = [w.subscribe("Shared") for _ in range(2)]
    w.outcome("unsubscribe", consumers[0].unsubscribe)
    consumers[1].close()
    w.outcome("alone", consumers[0].unsubscribe)


@scenario("redelivery")
def failover_goes_to_the_next_consumer(w: World) -> None:
    active, other, _ = _failover(w, 6)
    w.rest("other before", other)
    active.close()
    w.read("other after", other, 6)


@scenario("redelivery")
def failover_goes_on_behind_what_is_acknowledged(w: World) -> None:
    active, other, messages = _failover(w, 6)
    active.acknowledge_cumulative(messages[2])
    w.backlog("backlog", 3)
    active.close()
    w.read("other", other, 3)
    w.rest("and", other)


def _failover(w: World, count: int) -> tuple[Any, Any, list[Any]]:
    """The active one of two consumers, the other one, and what has come. Apache Pulsar goes by a hash of the name."""
    consumers = [w.subscribe("Failover", consumer_name=name) for name in "ab"]
    w.send(count)
    while True:
        for active, other in (consumers, consumers[::-1]):
            try:
                first = active.receive(200)
            except pulsar.Timeout:
                continue
            return active, other, [first, *w.take(active, count - 1)]


@scenario()
def shared_consumers_receive_each_message_once(w: World) -> None:
    consumers = [w.subscribe("Shared", receiver_queue_size=1) for _ in range(2)]
    w.send(20)
    found: list[Any] = []
    while len(found) < 20:
        for consumer in consumers:
            try:
                message = consumer.receive(50)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            found.append(message)
    w.note("came", sorted(map(int, values(found))))
    w.backlog("backlog", 0)


@scenario()
def each_key_is_of_one_consumer(w: World) -> None:
    consumers = [w.subscribe("KeyShared") for _ in range(2)]
    w.send(60, keys=20)
    found: list[list[Any]] = [[], []]
    while sum(map(len, found)) < 60:
        for consumer, got in zip(consumers, found, strict=True):
            try:
                got.append(consumer.receive(100))
            except pulsar.Timeout:
                continue
            consumer.acknowledge(got[-1])
    keys = [{m.partition_key() for m in got} for got in found]
    w.note("both keys", sorted(keys[0] & keys[1]))
    w.note("ordered", all(_ordered(got) for got in found))
    w.backlog("backlog", 0)


def _ordered(messages: list[Any]) -> bool:
    by_key: dict[str, list[int]] = {}
    for message in messages:
        by_key.setdefault(message.partition_key(), []).append(int(message.data()))
    return all(numbers == sorted(numbers) for numbers in by_key.values())


@scenario()
def a_subscription_has_its_figures(w: World) -> None:
    consumer = w.subscribe("Shared")
    w.send(10)
    w.backlog("all", 10)
    w.take(consumer, 4, ack=True)
    w.backlog("some", 6)
    consumer.acknowledge(consumer.receive(WAIT_MS))
    w.backlog("one more", 5)


@scenario()
def names_that_are_no_topics_are_refused(w: World) -> None:
    for topic in ("non-persistent://public/default/t", "persistent://public/nothing-here/t", "persistent://nobody/n/t"):
        w.outcome(topic, lambda t=topic: w.client.create_producer(t))  # type: ignore[misc]
        w.outcome(f"subscribe {topic}", lambda t=topic: w.client.subscribe(t, "s"))  # type: ignore[misc]
