"""Apache Pulsar's V5 client on scalable topics: what it sends and receives, also while the topic changes its shape."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

import engine
from engine.testing.checker import check, describe
from engine.testing.history import History, value_of
from tests.interop.agent import UNBATCHED, Agent, AgentError, place_of
from tests.interop.conftest import service_url

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY_HASH = "murmur3-low"  # what 5.0.0-M1 routes by
FIXED = {"enabled": False}
EARLIEST = {"from": "earliest"}
QUIET_MS = 1_000
WAIT_S = 60.0


async def created(served: engine.AsyncEngine, topic: str, segments: int, **more: Any) -> None:
    await served.admin.create_topic(topic, segments=segments, key_hash=KEY_HASH, auto_scale=FIXED, **more)


async def send_all(agent: Agent, count: int, *, of: str = "p", name: str = "v", keys: int = 7) -> list[str]:
    asked = [
        agent.begin("send", now=True, name=of, value=f"{name}{number}", key=f"k{number % keys}")
        for number in range(count)
    ]
    await asyncio.wait_for(asyncio.gather(*asked), WAIT_S)
    return [f"{name}{number}" for number in range(count)]


def in_order(messages: list[Any]) -> dict[str, list[int]]:
    """The numbers of values, by key, as they came."""
    found: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        found[message["key"]].append(int(message["value"].lstrip("abcdefghijklmnopqrstuvwxyz")))
    return found


def assert_each_key_in_order(messages: list[Any]) -> None:
    assert all(numbers == sorted(numbers) for numbers in in_order(messages).values()), in_order(messages)


async def active(served: engine.AsyncEngine, topic: str) -> list[int]:
    segments = (await served.admin.get_metadata(topic))["segments"]
    found = segments.values() if isinstance(segments, dict) else segments
    return sorted(one["segmentId"] for one in found if one["state"] == "ACTIVE")


async def test_all_three_kinds_of_consumers_read_what_was_sent(served, agent, topic):
    await created(served, topic, 4)
    await agent.ask("producer", name="p", topic=topic)
    values = await send_all(agent, 100)
    await agent.ask("stream", name="s", topic=topic, subscription="s", **EARLIEST)
    await agent.ask("queue", name="q", topic=topic, subscription="q", **EARLIEST)
    await agent.ask("checkpoint_consumer", name="c", topic=topic, start="earliest")
    streamed = await agent.receive("s", 100, ack=True)
    assert_each_key_in_order(streamed)
    for messages in (streamed, await agent.receive("q", 100, ack=True), await agent.receive("c", 100)):
        assert sorted(message["value"] for message in messages) == sorted(values)
    assert await agent.receive("s", 1, quiet_ms=QUIET_MS) == []


async def test_a_native_consumer_reads_what_the_client_sent_and_the_other_way_round(served, agent, topic):
    await created(served, topic, 2)
    await agent.ask("producer", name="p", topic=topic, **{"as": "maker"})
    await agent.ask("send", name="p", value="from Java", key="ünïcödé", properties={"p": "q"}, event_time=1234)
    async with served.stream_consumer(topic, "native", initial_position="earliest") as consumer:
        message = await consumer.receive()
        assert (message.value, message.key, message.properties) == (b"from Java", "ünïcödé".encode(), {"p": "q"})
        assert int(message.event_time.timestamp() * 1000) == 1234
        assert message.producer_name.startswith("maker-seg-")
    async with served.producer(topic) as producer:
        await producer.send(b"from Python", key="ünïcödé", properties={"r": "s"})
    await agent.ask("queue", name="q", topic=topic, subscription="q", **EARLIEST)
    first, second = await agent.receive("q", 2, ack=True)
    assert (first["value"], second["value"]) == ("from Java", "from Python")
    assert (second["key"], second["properties"]) == ("ünïcödé", {"r": "s"})
    assert place_of(first["message"])[0] == place_of(second["message"])[0]  # one key, one segment


async def test_a_missing_topic_is_created_with_the_hash_of_the_client(served, agent, topic):
    await agent.ask("producer", name="p", topic=topic)
    await agent.ask("send", name="p", value="v", key="k")
    assert (await served.admin.get_metadata(topic))["keyHash"] == KEY_HASH


async def test_a_producer_that_would_route_otherwise_is_refused(served, agent, topic):
    await served.admin.create_topic(topic, key_hash="xxh64")
    await agent.ask("producer", name="p", topic=topic)
    with pytest.raises(AgentError, match=r"key hash of .* must be murmur3-low"):
        await agent.ask("send", name="p", value="v", key="k")


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_new_stream_subscription_begins_where_its_consumer_says(served, agent, topic, start):
    await created(served, topic, 2)
    await agent.ask("producer", name="p", topic=topic)
    await send_all(agent, 10, name="before")
    await agent.ask("stream", name="s", topic=topic, subscription="s", **{"from": start})
    await send_all(agent, 10, name="after")
    got = [message["value"] for message in await agent.receive("s", 20, quiet_ms=QUIET_MS, ack=True)]
    assert sorted(got) == sorted(
        [f"after{n}" for n in range(10)] + [f"before{n}" for n in range(10)] * (start != "latest")
    )


async def test_consumers_follow_splits_merges_and_rebuckets(served, agent, topic):
    """Per-key order, and nothing lost, by what was acknowledged, what a stream was given, and what is stored."""
    await created(served, topic, 2, entry_buckets=4)
    history = History(asyncio.get_running_loop().time)
    await agent.ask("producer", name="p", topic=topic, **UNBATCHED)
    await agent.ask("stream", name="s", topic=topic, subscription="s", **EARLIEST)
    await agent.ask("queue", name="q", topic=topic, subscription="q", **EARLIEST)
    attached = history.invoke("s", "attach", subscription="s", kind="stream", topic=topic)
    attached.ok()
    total, keys = 600, 12
    sending = asyncio.ensure_future(_send_by_key(agent, history, topic, total, keys))
    streamed: list[Any] = []

    async def read_stream() -> None:
        while len(streamed) < total:
            for message in await agent.receive("s", 50, quiet_ms=2_000, ack=True):
                segment, offset = place_of(message["message"])
                streamed.append(message)
                place = {"segment": segment, "offset": offset}
                history.record(
                    "s", "deliver", attachment=attached.number, value=message["value"], key=message["key"], **place
                )

    reading = asyncio.ensure_future(read_stream())
    queue = asyncio.ensure_future(_read_queue(agent, "q", total))
    for change in ("split", "rebucket", "merge", "split"):
        await asyncio.sleep(1.0)
        segments = await active(served, topic)
        if change == "split":
            await served.admin.split_segment(topic, segments[0])
        elif change == "rebucket":
            await served.admin.rebucket_segment(topic, segments[-1], 4)
        else:
            await _merge_some(served, topic)
    await asyncio.wait_for(sending, WAIT_S)
    await asyncio.wait_for(reading, WAIT_S)
    queued = await asyncio.wait_for(queue, WAIT_S)
    assert {message["value"] for message in queued} == {message["value"] for message in streamed}
    await _read_all(served, topic, history, total)
    assert not (violations := check(history.events)), describe(violations)


async def _send_by_key(agent: Agent, history: History, topic: str, total: int, keys: int) -> None:
    """Each key by a task of its own, one message after the other: the client may reorder what it sends again."""

    async def send_key(key: str, numbers: range) -> None:
        for number in numbers:
            value = value_of("p", number, key).decode()
            call = history.invoke("p", "send", value=value, key=key, topic=topic)
            await agent.ask("send", name="p", value=value, key=key)
            call.ok(segment=-1, offset=-1)
            await asyncio.sleep(0.05)

    await asyncio.gather(*(send_key(f"k{k}", range(k, total, keys)) for k in range(keys)))


async def _read_queue(agent: Agent, name: str, total: int) -> list[Any]:
    found: dict[str, Any] = {}
    while len(found) < total:
        for message in await agent.receive(name, 50, quiet_ms=2_000, ack=True):
            found[message["value"]] = message
    return list(found.values())


async def _merge_some(served: engine.AsyncEngine, topic: str) -> None:
    segments = (await served.admin.get_metadata(topic))["segments"]
    found = segments.values() if isinstance(segments, dict) else segments
    ordered = sorted((s for s in found if s["state"] == "ACTIVE"), key=lambda s: s["hashRange"]["start"])
    await served.admin.merge_segments(topic, ordered[0]["segmentId"], ordered[1]["segmentId"])


async def _read_all(served: engine.AsyncEngine, topic: str, history: History, total: int) -> None:
    """A whole reading by a client of ours."""
    async with served.checkpoint_consumer(topic, start=engine.Checkpoint.earliest()) as consumer:
        history.record("reader", "reading", reading=1)
        for _ in range(total):
            message = await asyncio.wait_for(consumer.receive(), WAIT_S)
            place = {"segment": message.segment_id, "offset": message.offset, "topic": topic}
            key = message.key.decode()
            history.record("reader", "final", reading=1, value=message.value.decode(), key=key, **place)


async def test_more_stream_consumers_than_segments_share_its_buckets(served, agent, topic):
    await created(served, topic, 1, entry_buckets=4)
    await agent.ask("producer", name="p", topic=topic)
    for name in ("a", "b"):
        await agent.ask("stream", name=name, topic=topic, subscription="s", **EARLIEST, **{"as": name})
    await send_all(agent, 200, keys=40)
    found: dict[str, list[Any]] = {"a": [], "b": []}
    while sum(map(len, found.values())) < 200:
        for name, got in found.items():
            got.extend(await agent.receive(name, 200, quiet_ms=300, ack=True))
    assert all(found.values())
    assert not set(in_order(found["a"])) & set(in_order(found["b"]))  # each key at one consumer
    for got in found.values():
        assert_each_key_in_order(got)


async def test_a_consumer_that_closes_leaves_its_segments_to_the_others(served, agent, topic):
    await created(served, topic, 2)
    await agent.ask("producer", name="p", topic=topic)
    for name in ("a", "b"):
        await agent.ask("stream", name=name, topic=topic, subscription="s", **EARLIEST, **{"as": name})
    await agent.ask("close", name="b")
    values = await send_all(agent, 40)
    assert sorted(m["value"] for m in await agent.receive("a", 40, ack=True)) == sorted(values)


async def test_a_queue_message_comes_again_and_ends_with_the_dead_letters(served, agent, topic):
    await created(served, topic, 1)
    await created(served, f"{topic}-DLQ", 1)
    await agent.ask("producer", name="p", topic=topic)
    await agent.ask("queue", name="q", topic=topic, subscription="q", redeliveries=1, nack_ms=200, **EARLIEST)
    await agent.ask("send", name="p", value="bad", key="k")
    for count in (0, 1):
        (message,) = await agent.receive("q", 1, quiet_ms=30_000)
        assert (message["value"], message["redelivered"]) == ("bad", count)
        await agent.ask("nack", name="q", message=message["message"])
    async with served.stream_consumer(f"{topic}-DLQ", "dead", initial_position="earliest") as letters:
        assert (await asyncio.wait_for(letters.receive(), WAIT_S)).value == b"bad"


async def test_exclusive_access_is_of_one_producer(served, agent, topic):
    await created(served, topic, 2)
    await agent.ask("producer", name="p", topic=topic, access="EXCLUSIVE")
    with pytest.raises(AgentError, match=r"(?i)exclusive|busy|fenced"):
        await agent.ask("producer", name="other", topic=topic, access="EXCLUSIVE")
    await agent.ask("close", name="p")
    await agent.ask("producer", name="other", topic=topic, access="EXCLUSIVE")


async def test_a_checkpoint_goes_on_behind_what_was_received_also_through_a_split(served, agent, topic):
    await created(served, topic, 2)
    await agent.ask("producer", name="p", topic=topic, **UNBATCHED)
    values = await send_all(agent, 50)
    await agent.ask("checkpoint_consumer", name="c", topic=topic, start="earliest")
    first = await agent.receive("c", 20)
    kept = await agent.ask("checkpoint", name="c")
    await agent.ask("close", name="c")
    await served.admin.split_segment(topic, (await active(served, topic))[0])
    values += await send_all(agent, 50, name="w")
    await agent.ask("checkpoint_consumer", name="d", topic=topic, start=kept)
    rest = await agent.receive("d", 80)
    assert sorted(m["value"] for m in first + rest) == sorted(values)


async def test_a_checkpoint_from_the_end_reads_what_comes(served, agent, topic):
    await created(served, topic, 2)
    await agent.ask("producer", name="p", topic=topic)
    await send_all(agent, 10, name="before")
    await agent.ask("checkpoint_consumer", name="c", topic=topic, start="latest")
    values = await send_all(agent, 10, name="after")
    assert sorted(m["value"] for m in await agent.receive("c", 10)) == sorted(values)


async def test_the_members_of_a_checkpoint_group_share_the_segments(served, agent, topic):
    await created(served, topic, 2)
    await agent.ask("producer", name="p", topic=topic)
    for name in ("a", "b"):
        await agent.ask("checkpoint_consumer", name=name, topic=topic, start="earliest", group="g")
    values = await send_all(agent, 40)
    got = [await agent.receive(name, 40, quiet_ms=2_000) for name in ("a", "b")]
    assert all(got)
    assert sorted(m["value"] for m in got[0] + got[1]) == sorted(values)


async def visible(agent: Agent, name: str, count: int) -> list[str]:
    """What a stream consumer has received, acknowledged, and that nothing more comes."""
    got = [message["value"] for message in await agent.receive(name, count + 1, quiet_ms=QUIET_MS, ack=True)]
    assert len(got) == count, got
    return got


async def test_a_transaction_is_seen_as_a_whole_or_not_at_all(served, agent, topic):
    other = f"{topic}-other"
    await created(served, topic, 2)
    await created(served, other, 2)
    await agent.ask("client", name="tc", url=service_url(served), transactions=30)
    for name, of in (("p1", topic), ("p2", other)):
        await agent.ask("producer", name=name, topic=of, client="tc")
        await agent.ask("stream", name=f"s-{name}", topic=of, subscription="s", **EARLIEST)
    for name in ("aborted", "committed"):
        await agent.ask("begin", name=name, client="tc")
        for of in ("p1", "p2"):
            await agent.ask("send", name=of, value=name, key="k", transaction=name)
    assert await visible(agent, "s-p1", 0) == []
    await agent.ask("abort", name="aborted")
    await agent.ask("commit", name="committed")
    for of in ("p1", "p2"):
        assert (await agent.receive(f"s-{of}", 1, ack=True))[0]["value"] == "committed"
        await visible(agent, f"s-{of}", 0)


async def operated(served: engine.AsyncEngine, topic: str) -> None:
    """An open transaction has an operation in the topic: the client does not say when its acknowledgement has come."""
    segment = f"segment://{topic.removeprefix('topic://')}/0000-ffff-0"
    async with asyncio.timeout(WAIT_S):
        while not await served.admin.list_transactions(segment=segment):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_acknowledgements_in_a_transaction_take_effect_with_it(served, agent, topic, kind):
    await created(served, topic, 1)
    await agent.ask("client", name="tc", url=service_url(served), transactions=30)
    await agent.ask("producer", name="p", topic=topic)
    await agent.ask(kind, name="c", topic=topic, subscription="s", client="tc", **EARLIEST)
    await agent.ask("send", name="p", value="v", key="k")
    for end, comes_again in (("abort", True), ("commit", False)):
        (message,) = await agent.receive("c", 1)
        await agent.ask("begin", name="t", client="tc")
        await agent.ask("ack", name="c", message=message["message"], transaction="t")
        await operated(served, topic)
        await agent.ask(end, name="t")
        await agent.ask("close", name="c")
        await agent.ask(kind, name="c", topic=topic, subscription="s", client="tc", **EARLIEST)
        if not comes_again:
            assert await agent.receive("c", 1, quiet_ms=QUIET_MS) == []
