"""Data directories that earlier builds wrote, killed and closed: this build opens each, finds everything, goes on."""

from __future__ import annotations

import asyncio
import json
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import engine
from engine import embedded
from engine.clock import SystemClock
from tests.golden.directories.write_golden_directory import AVRO, FAR_MS, KEPT, value_of

ARCHIVES = sorted(Path(__file__).parent.glob("[0-9]*.tar.xz"))  # of releases; the others: test_early_directories.py
SCHEMAS: dict[str, Callable[[], engine.Schema]] = {
    "schema-avro": lambda: engine.Schema.avro(AVRO),
    "schema-json": engine.Schema.json,
    "schema-string": engine.Schema.string,
}
RECEIVE_S_MAX = 60.0  # only a failure waits for so long
Place = tuple[int, int]


class Later(SystemClock):
    """The wall clock of a time when everything that was delayed is due."""

    def time_ms(self) -> int:
        """Three hours behind the last of it."""
        return FAR_MS + 10_000_000


def test_there_is_one_of_each_ending() -> None:
    assert {"0.1.0-killed.tar.xz", "0.1.0-closed.tar.xz"} <= {path.name for path in ARCHIVES}


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
async def test_a_directory_of_an_earlier_build(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "expected.json").read_text())
    opened = partial(engine.open_async, tmp_path / "data", config=expected["config"])
    topics = expected["topics"]
    async with opened() as e:
        await check_records(e, expected)
        for topic, facts in topics.items():
            await check_messages(e, topic, facts)
            await check_numbered(e, topic, facts)
        await check_transactions(e, expected)
        for topic, facts in topics.items():
            for subscription in facts["subscriptions"]:
                await check_subscription(e, topic, facts, subscription)
            await send_and_receive(e, topic, facts, "new")
    async with opened() as e:
        for topic, facts in topics.items():
            await check_numbered(e, topic, facts)
            await send_and_receive(e, topic, facts, "newer")
    e = await embedded.open_engine(tmp_path / "data", None, None, expected["config"], threadsafe=False, clock=Later())
    async with e:
        await check_what_was_delayed(e, topics["delayed"])


async def check_records(e: engine.AsyncEngine, expected: dict[str, Any]) -> None:
    """Layouts, properties, policies; and what was deleted is gone."""
    for topic, facts in expected["topics"].items():
        found = await e.admin.get_metadata(topic)
        assert {name: found.get(name) for name in facts["metadata"]} == facts["metadata"]
    namespace = expected["namespace"]
    assert await e.admin.get_namespace_policies(KEPT) == namespace["policies"] | {
        "auto_create_topics": True,
        "encryption_required": False,
        "flush_interval_ms": 100,
        "message_ttl_s": -1,
    }
    assert await e.admin.get_namespace_auto_scale_policy(KEPT) == namespace["auto_scale"]
    for topic, policy in namespace["topic_auto_scale"].items():
        assert await e.admin.get_auto_scale_policy(topic) == policy
    listed = await e.admin.list_topics() + await e.admin.list_topics(KEPT)
    assert {engine_name(topic) for topic in expected["topics"]} == set(listed)
    assert await e.admin.list_topics(properties={"team": "golden"}) == [engine_name("plain")]


def engine_name(topic: str) -> str:
    """The full name."""
    return f"topic://{topic}" if "/" in topic else f"topic://public/default/{topic}"


async def check_messages(e: engine.AsyncEngine, topic: str, facts: dict[str, Any]) -> None:
    """Every message in its place, whole; those of one key in order."""
    if topic in SCHEMAS:
        await check_values(e, topic, facts["values"])
        return
    async with await e.checkpoint_consumer(topic, start=engine.Checkpoint.earliest()) as c:
        received = [await receive(c) for _ in facts["messages"]]
    sent = {place(m): m for m in facts["messages"]}
    found = {at(m): m for m in received}
    assert found.keys() == sent.keys()
    for where, message in found.items():
        check_message(message, sent[where])
    for key in {m["key"] for m in facts["messages"]} - {None}:
        order = [place(m) for m in facts["messages"] if m["key"] == key]
        assert [at(m) for m in received if m.key == key.encode()] == order
    if "checkpoint" in facts:
        rest = sent.keys() - {tuple(seen) for seen in facts["checkpoint"]["seen"]}
        start = engine.Checkpoint.from_bytes(bytes.fromhex(facts["checkpoint"]["bytes"]))
        async with await e.checkpoint_consumer(topic, start=start) as c:
            assert {at(await receive(c)) for _ in rest} == rest


def check_message(found: engine.Message, sent: dict[str, Any]) -> None:
    """All that was said of it."""
    assert found.value == value_of(sent["label"], sent["size"])
    assert found.key == (sent["key"].encode() if sent["key"] else None)
    assert dict(found.properties) == sent.get("properties", {})
    when = found.event_time
    assert (round(when.timestamp() * 1000) if when else None) == sent.get("event_time")
    if "sequence_id" in sent:
        assert found.sequence_id == sent["sequence_id"]
        assert found.producer_name == sent["label"].split()[0]


async def check_values(e: engine.AsyncEngine, topic: str, values: list[Any]) -> None:
    """They come back by the schema, and another schema is refused."""
    async with await e.checkpoint_consumer(topic, start=engine.Checkpoint.earliest(), schema=SCHEMAS[topic]()) as c:
        assert [(await receive(c)).value for _ in values] == values
    with pytest.raises(engine.SchemaError):
        await e.producer(topic, schema=engine.Schema.msgpack())


async def check_numbered(e: engine.AsyncEngine, topic: str, facts: dict[str, Any]) -> None:
    """What a named producer has sent is known, and is not stored again: check_subscription() sees what is there."""
    for name, known in facts["producers"].items():
        numbers = known["sequences"]
        async with await e.producer(topic, name=name, initial_sequence_id=-1) as p:
            for n in numbers:
                p.send_nowait(b"once more", key=f"key-{n % 11}", sequence_id=n)
            await p.flush()
        async with await e.producer(topic, name=name) as p:
            assert p.last_sequence_id == numbers[-1]


async def check_transactions(e: engine.AsyncEngine, expected: dict[str, Any]) -> None:
    """The outcome of a named one is remembered. What the others did, messages and subscriptions show."""
    known = await e.transaction(name=expected["committed_transaction"])
    assert known.state == "COMMITTED"


async def check_subscription(e: engine.AsyncEngine, topic: str, facts: dict[str, Any], name: str) -> None:
    """It gets what it has not acknowledged, and acknowledges that. What is due later it does not get."""
    subscription = facts["subscriptions"][name]
    async with await consumer(e, topic, facts, name) as c:
        if topic in SCHEMAS:
            assert [m.value for m in await take(c, len(facts["values"]))] == facts["values"]
            return
        done = {tuple(where) for where in subscription["acknowledged"]}
        due = {place(m): m for m in facts["messages"] if m.get("deliver_at", 0) < FAR_MS and place(m) not in done}
        received = await take(c, len(due))
    assert {at(m) for m in received} == due.keys()
    for message in received:
        check_message(message, due[at(message)])
    if subscription["kind"] == "stream":
        for key in {m.key for m in received} - {None}:
            order = [where for where, m in due.items() if m["key"] == key.decode()]
            assert [at(m) for m in received if m.key == key] == order


async def send_and_receive(e: engine.AsyncEngine, topic: str, facts: dict[str, Any], label: str) -> None:
    """New messages reach each subscription, and nothing else does."""
    values = [value_of(f"{label} {n} ", 400) for n in range(24)]
    if topic in SCHEMAS:
        values = facts["values"]
    async with await e.producer(topic, schema=SCHEMAS[topic]() if topic in SCHEMAS else None) as p:
        sent = await asyncio.gather(*(p.send(value, key=f"key-{n}") for n, value in enumerate(values)))
    places = {(m.segment_id, m.offset) for m in sent}
    assert len(places) == len(values)
    assert places.isdisjoint(place(m) for m in facts["messages"])
    for name in facts["subscriptions"]:
        async with await consumer(e, topic, facts, name) as c:
            received = await take(c, len(values))
        assert {at(m) for m in received} == places
        assert sorted(map(repr, (m.value for m in received))) == sorted(map(repr, values))


async def check_what_was_delayed(e: engine.AsyncEngine, facts: dict[str, Any]) -> None:
    """In another century it is due, in every queue."""
    late = {place(m): m for m in facts["messages"] if m.get("deliver_at", 0) >= FAR_MS}
    for name in facts["subscriptions"]:
        async with await consumer(e, "delayed", facts, name) as c:
            received = await take(c, len(late))
        assert {at(m) for m in received} == late.keys()
        for message in received:
            check_message(message, late[at(message)])


async def consumer(e: engine.AsyncEngine, topic: str, facts: dict[str, Any], subscription: str) -> Any:
    """The one that the subscription had, or has."""
    known = facts["subscriptions"][subscription]
    make = e.stream_consumer if known["kind"] == "stream" else e.queue_consumer
    schema = SCHEMAS[topic]() if topic in SCHEMAS else None
    return await make(topic, subscription, name=known["consumer"], schema=schema)


async def receive(c: Any) -> engine.Message:
    """The next message."""
    message = await c.receive(timeout=RECEIVE_S_MAX)
    assert message is not None, f"nothing more comes to {c}"
    return message


async def take(c: Any, count: int) -> list[engine.Message]:
    """So many messages, each acknowledged when it is received: children come when their parents are done with."""
    acknowledge = c.acknowledge_cumulative if isinstance(c, engine.AsyncStreamConsumer) else c.acknowledge
    received = []
    async with asyncio.TaskGroup() as acknowledging:
        for _ in range(count):
            received.append(await receive(c))
            acknowledging.create_task(acknowledge(received[-1]))
    return received


def place(sent: dict[str, Any]) -> Place:
    """Where it was stored."""
    return sent["segment"], sent["offset"]


def at(found: engine.Message) -> Place:
    """Where it was found."""
    return found.id.segment_id, found.id.offset
