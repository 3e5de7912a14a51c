"""Consumers of scalable topics while their layout changes: by the V5 client of Java."""

from __future__ import annotations

from typing import Any

from tests.interop.scenes.java_world import JavaWorld, by_key, numbers
from tests.interop.scenes.world import scenario


@scenario("split")
async def a_queue_reads_both_sides_of_a_split(w: JavaWorld) -> None:
    await w.create(1)
    await w.producer()
    await w.consumer("queue")
    await w.send_all(0, 10)
    w.note("split", await w.split(0))
    await w.send_all(10, 20)
    w.note("came", numbers(await w.take_once(20)))


@scenario("split")
async def a_queue_reads_both_sides_of_a_merge(w: JavaWorld) -> None:
    await w.create(2)
    await w.producer()
    await w.consumer("queue")
    await w.send_all(0, 10)
    w.note("merge", await w.merge(0, 1))
    await w.send_all(10, 20)
    w.note("came", numbers(await w.take_once(20)))


@scenario("split")
async def a_queue_that_comes_later_reads_sealed_segments(w: JavaWorld) -> None:
    await w.create(1)
    await w.producer()
    await w.send_all(0, 10)
    w.note("split", await w.split(0))
    w.note("split", await w.split(1))
    await w.send_all(10, 20)
    await w.consumer("queue")
    w.note("came", numbers(await w.take_once(20)))


@scenario("split")
async def a_stream_keeps_the_order_of_keys_over_a_split(w: JavaWorld) -> None:
    await w.create(1)
    await w.producer()
    await w.consumer("stream")
    await w.send_all(0, 15)
    w.note("split", await w.split(0))
    await w.send_all(15, 30)
    w.note("came", by_key(await w.take(30)))


@scenario("split")
async def a_stream_keeps_the_order_of_keys_over_a_merge(w: JavaWorld) -> None:
    await w.create(2)
    await w.producer()
    await w.consumer("stream")
    await w.send_all(0, 15)
    w.note("merge", await w.merge(0, 1))
    await w.send_all(15, 30)
    w.note("came", by_key(await w.take(30)))


@scenario("split", by_chance=["each key in order"])  # a parent whose messages come before its children's is luck there
async def a_stream_that_comes_later_reads_parents_first(w: JavaWorld) -> None:
    await w.create(1)
    await w.producer()
    await w.send_all(0, 10)
    w.note("split", await w.split(0))
    await w.send_all(10, 20)
    w.note("merge", await w.merge(1, 2))
    await w.send_all(20, 30)
    await w.consumer("stream")
    came = await w.take(30)
    w.note("came", numbers(came))
    w.note("each key in order", all(values == sorted(values, key=int) for values in by_key(came).values()))


@scenario("split", "redelivery")
async def a_stream_goes_on_where_it_was_before_a_split(w: JavaWorld) -> None:
    await w.create(1)
    await w.producer()
    await w.consumer("stream", **{"as": "c"})
    await w.send_all(0, 10)
    messages = await w.take(10, ack=False)
    await w.ask("ack", "c", message=messages[5]["message"])
    await w.pause()
    await w.close_one("c")
    w.note("split", await w.split(0))
    await w.send_all(10, 20)
    await w.consumer("stream", **{"as": "c"})
    w.note("came", by_key(await w.take(14)))


@scenario("split")
async def two_streams_share_what_splits(w: JavaWorld) -> None:
    await w.create(2)
    await w.producer()
    await w.consumer("stream", name="a", **{"as": "a"})
    await w.consumer("stream", name="b", **{"as": "b"})
    await w.send_all(0, 20)
    w.note("split", await w.split(0))
    await w.send_all(20, 40)
    found: dict[str, Any] = {}
    while len(found) < 40:
        for name in "ab":
            for one in await w.receive(40, 200, name, ack=True):
                found.setdefault(one["value"], one)
    w.note("came", by_key(list(found.values())))


@scenario("split")
async def a_checkpoint_reads_on_over_a_split(w: JavaWorld) -> None:
    await w.create(1)
    await _checkpointed(w, w.split(0))


@scenario("split")
async def a_checkpoint_reads_on_over_a_merge(w: JavaWorld) -> None:
    await w.create(2)
    await _checkpointed(w, w.merge(0, 1))


async def _checkpointed(w: JavaWorld, change: Any) -> None:
    await w.producer()
    await w.send_all(0, 10)
    await w.checkpoint("earliest")
    first = await w.take(6, ack=False)
    kept = await w.ask("checkpoint", "c")
    await w.close_one("c")
    w.note("change", await change)
    await w.send_all(10, 20)
    await w.checkpoint(kept)
    w.note("all", numbers(first + await w.take(14, ack=False)))


@scenario("redelivery", "split")
async def a_refused_message_comes_again_from_a_sealed_segment(w: JavaWorld) -> None:
    await w.create(1)
    await w.producer()
    await w.consumer("queue", nack_ms=200)
    await w.send("v")
    (message,) = await w.take(1, ack=False)
    w.note("split", await w.split(0))
    await w.ask("nack", "c", message=message["message"])
    (again,) = await w.take(1)
    w.note("again", [again["value"], again["redelivered"]])


@scenario("redelivery", "split")
async def what_a_queue_leaves_in_a_sealed_segment_comes_again(w: JavaWorld) -> None:
    await w.create(1)
    await w.producer()
    await w.consumer("queue")
    await w.send_all(0, 6)
    messages = {one["value"]: one for one in await w.take(6, ack=False)}
    for value in "024":
        await w.ask("ack", "c", message=messages[value]["message"])
    await w.pause()
    w.note("split", await w.split(0))
    await w.close_one("c")
    await w.consumer("queue")
    w.note("again", numbers(await w.rest()))


@scenario("redelivery")
async def a_message_of_a_queue_ends_with_the_dead_letters(w: JavaWorld) -> None:
    await w.create(1)
    await w.create(1, f"{w.topic}-DLQ")
    await w.producer()
    await w.consumer("queue", nack_ms=200, redeliveries=2)
    await w.consumer("queue", name="dead", topic=f"{w.topic}-DLQ")
    await w.send("bad")
    for _ in range(3):
        (message,) = await w.take(1, ack=False)
        w.note("count", message["redelivered"])
        await w.ask("nack", "c", message=message["message"])
    (letter,) = await w.take(1, "dead")
    w.note("letter", [letter["value"], letter["key"]])


@scenario("seek", "split")
async def a_seek_to_the_start_goes_over_a_split(w: JavaWorld) -> None:
    await w.create(1)
    await w.producer()
    await w.consumer("queue")
    await w.send_all(0, 6)
    w.note("split", await w.split(0))
    await w.send_all(6, 12)
    await w.take_once(12)
    await w.pause()
    await w.close_one("c")
    w.note("seek", (await w.admin("POST", "/subscriptions/s/seek?timestamp=0"))[0])
    await w.consumer("queue")
    w.note("came", numbers(await w.take_once(12)))


@scenario("seek", "split")
async def what_is_skipped_does_not_come(w: JavaWorld) -> None:
    await w.create(1)
    await w.producer()
    await w.consumer("queue")
    await w.close_one("c")
    await w.send_all(0, 6)
    w.note("split", await w.split(0))
    await w.send_all(6, 12)
    w.note("skip", (await w.admin("POST", "/subscriptions/s/skip-all"))[0])
    await w.send_all(12, 14)
    await w.consumer("queue")
    w.note("came", numbers(await w.rest()))
