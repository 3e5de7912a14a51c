"""Classic topics by the V5 client of Java, alone and beside a classic client."""

from __future__ import annotations

import asyncio

from tests.interop.agent import place_of
from tests.interop.scenes.java_world import JavaWorld, by_key, classic, numbers
from tests.interop.scenes.world import scenario

KEYS = [f"k{n}" for n in range(12)] + ["", "ünïcödé", "customer-0001"]


@scenario()
async def clients_of_both_kinds_share_a_classic_topic(w: JavaWorld) -> None:
    await w.producer(topic=classic(w.topic))
    await w.classic_producer("old")
    await w.consumer("queue", topic=classic(w.topic), subscription="new")
    await w.classic_consumer(name="c-old", kind="Exclusive")
    for number in range(6):
        await w.send(
            f"new{number}", f"k{number % 2}", event_time=1_700_000_000_000 + number, properties={"n": f"{number}"}
        )
        await w.classic_send(f"old{number}", producer="old", key=f"k{number % 2}")
    new, old = await w.take(12), await w.take(12, "c-old")
    w.note("new", [by_key(new), [[one["value"], one["properties"], one.get("event_time")] for one in new]])
    w.note("old", by_key(old))


@scenario()
async def keys_go_to_partitions(w: JavaWorld) -> None:
    await asyncio.to_thread(w.side.create_partitioned, classic(w.topic), 4)
    await w.producer(topic=classic(w.topic))
    await w.consumer("queue", topic=classic(w.topic))
    for key in KEYS:
        await w.send("v", key)
    places = {one["key"]: int(one["topic"].rpartition("-")[2]) for one in await w.take(len(KEYS))}
    w.note("partitions", dict(sorted(places.items())))


@scenario()
async def a_checkpoint_is_kept_on_partitions(w: JavaWorld) -> None:
    await asyncio.to_thread(w.side.create_partitioned, classic(w.topic), 3)
    await w.producer(topic=classic(w.topic))
    await w.send_all(0, 20)
    await w.checkpoint("earliest", topic=classic(w.topic))
    w.note("first", numbers(await w.take(20, ack=False)))
    kept = await w.ask("checkpoint", "c")
    await w.send_all(20, 26)
    await w.checkpoint(kept, "d", topic=classic(w.topic))
    w.note("next", numbers(await w.take(6, "d", ack=False)))


@scenario("redelivery")
async def a_refused_message_of_a_classic_topic_comes_again(w: JavaWorld) -> None:
    await w.producer(topic=classic(w.topic))
    await w.consumer("queue", topic=classic(w.topic), nack_ms=200)
    await w.send("v")
    for _ in range(2):
        (message,) = await w.take(1, ack=False)
        w.note("came", [message["value"], message["redelivered"]])
        await w.ask("nack", "c", message=message["message"])
    (message,) = await w.take(1)
    w.note("came", [message["value"], message["redelivered"]])
    await w.quiet("more")


@scenario()
async def a_name_that_only_a_scalable_topic_has(w: JavaWorld) -> None:
    await w.create(4)
    await w.producer(topic=classic(w.topic))
    w.note("segments", {key: place_of(await w.send("v", key))[0] for key in KEYS})
    await w.consumer("queue", topic=classic(w.topic))
    w.note("came", sorted(one["key"] or "" for one in await w.take(len(KEYS))))


@scenario()
async def a_stream_consumer_of_a_classic_topic(w: JavaWorld) -> None:
    await w.producer(topic=classic(w.topic))
    await w.send("v")
    await w.outcome("stream", "stream", "s", topic=classic(w.topic), subscription="s", client="plain")
