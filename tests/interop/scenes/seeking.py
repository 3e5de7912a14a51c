"""Cursors after a seek, and readers."""

from __future__ import annotations

import time

import pulsar

from tests.interop.scenes.world import WAIT_MS, World, counts, scenario, values

START, END = pulsar.MessageId.earliest, pulsar.MessageId.latest


@scenario("seek")
def a_seek_to_the_start(w: World) -> None:
    consumer = w.subscribe()
    w.send(5)
    w.take(consumer, 5, ack=True)
    consumer.seek(START)
    w.backlog("backlog", 5)
    w.note("again", counts(w.take(consumer, 5)))
    w.rest("and", consumer)


@scenario("seek")
def a_seek_to_the_end(w: World) -> None:
    consumer = w.subscribe()
    w.send(5)
    consumer.seek(END)
    w.send(2, first=5)
    w.rest("came", consumer)


@scenario("seek")
def a_seek_to_a_message(w: World) -> None:
    consumer = w.subscribe()
    w.send(6)
    third = w.take(consumer, 6, ack=True)[2]
    consumer.seek(third.message_id())
    w.rest("came", consumer)


@scenario("seek")
def a_seek_to_a_message_and_it_too(w: World) -> None:
    consumer = w.subscribe(start_message_id_inclusive=True)
    w.send(6)
    third = w.take(consumer, 6, ack=True)[2]
    consumer.seek(third.message_id())
    w.rest("came", consumer)


@scenario("seek")
def a_seek_into_a_batch(w: World) -> None:
    consumer = w.subscribe()
    w.send(6, batched=True)
    consumer.seek(w.take(consumer, 6, ack=True)[2].message_id())
    w.rest("came", consumer)


@scenario("seek")
def a_seek_into_a_batch_and_it_too(w: World) -> None:
    consumer = w.subscribe(start_message_id_inclusive=True)
    w.send(6, batched=True)
    consumer.seek(w.take(consumer, 6, ack=True)[2].message_id())
    w.rest("came", consumer)


@scenario("seek")
def a_seek_to_a_time(w: World) -> None:
    consumer = w.subscribe()
    producer = w.producer()
    for number in range(6):
        producer.send(b"%d" % number)
        time.sleep(0.01)  # each has a publish time of its own
    fourth = w.take(consumer, 6, ack=True)[3]
    consumer.seek(fourth.publish_timestamp())
    w.rest("came", consumer)


@scenario("seek")
def a_seek_to_the_beginning_of_time(w: World) -> None:
    consumer = w.subscribe()
    w.send(3)
    w.take(consumer, 3, ack=True)
    consumer.seek(1)
    w.read("came", consumer, 3)


@scenario("seek")
def a_seek_to_a_time_that_is_to_come(w: World) -> None:
    consumer = w.subscribe()
    w.send(3)
    last = w.take(consumer, 3)[-1]
    consumer.seek(last.publish_timestamp() + 3_600_000)
    w.rest("came", consumer)
    w.send(2, first=3)
    w.rest("then", consumer)


@scenario("seek")
def a_seek_of_a_shared_subscription(w: World) -> None:
    consumer = w.subscribe("Shared")
    w.send(6)
    w.take(consumer, 6, ack=True)
    w.backlog("before", 0)
    consumer.seek(START)
    w.note("again", sorted(counts(w.take(consumer, 6)).items()))
    w.backlog("after", 6)


@scenario("seek")
def a_seek_of_a_key_shared_subscription(w: World) -> None:
    consumer = w.subscribe("KeyShared")
    w.send(6, keys=2)
    third = w.take(consumer, 6, ack=True)[2]
    consumer.seek(third.message_id())
    w.rest("came", consumer)


@scenario("seek")
def a_seek_with_two_consumers(w: World) -> None:
    consumers = [w.subscribe("Shared") for _ in range(2)]
    w.send(6)
    w.outcome("seek", lambda: consumers[0].seek(START))


@scenario("seek", "redelivery")
def a_seek_forgets_what_was_refused(w: World) -> None:
    consumer = w.subscribe("Shared")
    w.send(3)
    for message in w.take(consumer, 3):
        consumer.negative_acknowledge(message)
    w.note("refused", sorted(counts(w.take(consumer, 3)).items()))
    consumer.seek(START)
    w.note("again", sorted(counts(w.take(consumer, 3)).items()))


@scenario("seek")
def a_seek_holds_for_the_next_consumer(w: World) -> None:
    consumer = w.subscribe()
    w.send(6)
    fifth = w.take(consumer, 6, ack=True)[4]
    consumer.seek(fifth.message_id())
    consumer.close()
    w.rest("next", w.subscribe())


@scenario("seek")
def a_reader_begins_behind_a_message(w: World) -> None:
    ids = w.send(6)
    for inclusive in (False, True):
        reader = w.client.create_reader(w.topic, ids[2], start_message_id_inclusive=inclusive)
        w.note(f"inclusive {inclusive}", _all(reader))


@scenario("seek")
def a_reader_begins_inside_of_a_batch(w: World) -> None:
    ids = w.send(6, batched=True)
    for inclusive in (False, True):
        reader = w.client.create_reader(w.topic, ids[2], start_message_id_inclusive=inclusive)
        w.note(f"inclusive {inclusive}", _all(reader))


@scenario("seek")
def a_reader_seeks(w: World) -> None:
    ids = w.send(6)
    reader = w.client.create_reader(w.topic, START)
    w.note("all", _all(reader))
    reader.seek(ids[3])
    w.note("available", reader.has_message_available())
    w.note("behind", _all(reader))
    reader.seek(END)
    w.note("at the end", reader.has_message_available())
    reader.seek(START)
    w.note("from the start", _all(reader))


@scenario()
def a_reader_of_an_empty_topic_has_nothing(w: World) -> None:
    w.producer().close()
    for where in (START, END):
        w.note("available", w.client.create_reader(w.topic, where).has_message_available())


def _all(reader: object) -> list[str]:
    found = []
    while reader.has_message_available():  # type: ignore[attr-defined]
        found.append(reader.read_next(WAIT_MS))  # type: ignore[attr-defined]
    return values(found)
