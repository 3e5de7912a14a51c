"""Layouts of scalable topics, and where producers send: by the V5 client of Java and the admin API."""

from __future__ import annotations

import asyncio

from tests.interop.agent import place_of
from tests.interop.scenes.java_world import JavaWorld
from tests.interop.scenes.world import scenario

GOLDEN_KEYS = ("a", "order-42", "key-0", "ünïcödé", "日本", *(f"k{number}" for number in range(20)))


@scenario()
async def golden_keys_go_to_their_segments(w: JavaWorld) -> None:
    await w.create(4)
    await w.producer()
    w.note("segments", {key: place_of(await w.send("v", key))[0] for key in GOLDEN_KEYS})


@scenario("split")
async def golden_keys_after_a_split(w: JavaWorld) -> None:
    await w.create(2)
    w.note("split", await w.split(1))
    await w.producer()
    w.note("segments", {key: place_of(await w.send("v", key))[0] for key in GOLDEN_KEYS})


@scenario()
async def the_dag_of_a_new_topic(w: JavaWorld) -> None:
    await w.create(3)
    await w.shape("new")


@scenario("split")
async def the_dag_after_a_split(w: JavaWorld) -> None:
    await w.create(2)
    w.note("split", await w.split(0))
    await w.shape("after")


@scenario("split")
async def the_dag_after_a_merge(w: JavaWorld) -> None:
    await w.create(3)
    w.note("merge", await w.merge(1, 2))
    await w.shape("after")


@scenario("split")
async def the_dag_after_splits_and_merges(w: JavaWorld) -> None:
    await w.create(2)
    for one in (0, 3):
        w.note("split", await w.split(one))
    for pair in ((2, 4), (5, 1)):
        w.note("merge", await w.merge(*pair))
    await w.shape("after")


@scenario("split")
async def changes_that_cannot_be_made(w: JavaWorld) -> None:
    await w.create(4)
    w.note("missing", (await w.admin("POST", "-missing/split/0"))[0] >= 400)
    w.note("unknown", (await w.admin("POST", "/split/99"))[0] >= 400)
    w.note("apart", (await w.admin("POST", "/merge/0/2"))[0] >= 400)
    w.note("itself", (await w.admin("POST", "/merge/1/1"))[0] >= 400)
    w.note("split", await w.split(0))
    w.note("sealed", (await w.admin("POST", "/split/0"))[0] >= 400)
    await w.shape("after")


@scenario()
async def a_topic_is_created_once_and_deleted(w: JavaWorld) -> None:
    w.note("missing", (await w.admin("GET"))[0])
    await w.create(1)
    w.note("again", await asyncio.to_thread(w.side.create, w.topic, 1))
    w.note("delete", (await w.admin("DELETE"))[0] // 100)
    w.note("gone", (await w.admin("GET"))[0])


@scenario("split")
async def golden_keys_after_a_merge(w: JavaWorld) -> None:
    await w.create(4)
    w.note("merge", await w.merge(1, 2))
    await w.producer()
    w.note("segments", {key: place_of(await w.send("v", key))[0] for key in GOLDEN_KEYS})


@scenario("split")
async def a_producer_follows_splits_and_merges(w: JavaWorld) -> None:
    await w.create(1)
    await w.producer()
    places = [place_of(await w.send("v", "k1"))[0]]
    for change in (w.split(0), w.merge(1, 2), w.split(3)):
        w.note("change", await change)
        places.append(place_of(await w.send("v", "k1"))[0])
    w.note("segments", places)


@scenario("split")
async def exclusive_access_holds_over_a_split(w: JavaWorld) -> None:
    await w.create(1)
    await w.producer(access="EXCLUSIVE")
    await w.send("0")
    other = {"topic": w.topic, "client": "plain", "access": "EXCLUSIVE"}
    await w.outcome("other", "producer", "other", **other)
    w.note("split", await w.split(0))
    await w.send("1")
    await w.outcome("other, then", "producer", "other", **other)
    await w.close_one("p")
    await w.outcome("at last", "producer", "other", **other)


@scenario()
async def subscriptions_are_made_and_removed(w: JavaWorld) -> None:
    await w.create(2)
    path = "/subscriptions/s"
    w.note("make", (await w.admin("PUT", f"{path}?type=QUEUE"))[0])
    w.note("again", (await w.admin("PUT", f"{path}?type=QUEUE"))[0])
    w.note("of a missing topic", (await w.admin("PUT", f"-missing{path}?type=QUEUE"))[0])
    w.note("remove", (await w.admin("DELETE", path))[0])
    w.note("twice", (await w.admin("DELETE", path))[0])


@scenario("split")
async def the_stats_count_segments(w: JavaWorld) -> None:
    await w.create(3)
    w.note("split", await w.split(1))
    w.note("merge", await w.merge(3, 4))
    _, found = await w.admin("GET", "/stats")
    for name in ("epoch", "totalSegments", "activeSegments", "sealedSegments"):
        w.note(name, found.get(name, "is not there"))
    w.note("segments", sorted(found["segments"]))
