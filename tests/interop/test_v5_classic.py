"""Apache Pulsar's V5 client on classic topics, also beside a classic client and one of ours."""

from __future__ import annotations

import asyncio

import pytest

from tests.interop.agent import AgentError
from tests.interop.conftest import service_url
from tests.reference.batcher_reference import murmur3

pytestmark = pytest.mark.asyncio(loop_scope="module")

EARLIEST = {"from": "earliest"}
QUIET_MS = 1_000
COUNT = 40
VALUES = sorted(f"v{n}" for n in range(COUNT))


@pytest.fixture
def topic(topic: str) -> str:
    return topic.replace("topic://", "persistent://")


async def send_all(agent, first: int = 0, stop: int = COUNT) -> None:
    asked = [
        agent.begin(
            "send", now=True, name="p", value=f"v{n}", key=f"k{n % 7}", properties={"n": str(n)}, event_time=1000 + n
        )
        for n in range(first, stop)
    ]
    await asyncio.wait_for(asyncio.gather(*asked), 60)


def values_of(messages) -> list[str]:
    return sorted(message["value"] for message in messages)


@pytest.mark.parametrize("partitions", [0, 3])
async def test_queue_and_checkpoint_consumers_read_what_was_sent(served, agent, topic, partitions):
    if partitions:
        await served.admin.create_topic(topic, properties={"pulsar.partitions": str(partitions)})
    await agent.ask("producer", name="p", topic=topic)
    await send_all(agent)
    await agent.ask("queue", name="q", topic=topic, subscription="q", **EARLIEST)
    got = await agent.receive("q", COUNT, ack=True)
    assert values_of(got) == VALUES
    assert all(one["properties"] == {"n": one["value"][1:]} for one in got)
    assert all(one["event_time"] == 1000 + int(one["value"][1:]) for one in got)
    names = [topic] if not partitions else [f"{topic}-partition-{n}" for n in range(partitions)]
    assert {one["topic"] for one in got} == set(names)
    for key in {one["key"] for one in got}:  # one partition each
        assert len({one["topic"] for one in got if one["key"] == key}) == 1
    assert await agent.receive("q", 1, quiet_ms=QUIET_MS) == []
    await agent.ask("checkpoint_consumer", name="c", topic=topic, start="earliest")
    assert values_of(await agent.receive("c", COUNT)) == VALUES
    kept = await agent.ask("checkpoint", name="c")
    await send_all(agent, COUNT, COUNT + 5)
    await agent.ask("checkpoint_consumer", name="d", topic=topic, start=kept)
    assert values_of(await agent.receive("d", 6, quiet_ms=QUIET_MS)) == [f"v{n}" for n in range(COUNT, COUNT + 5)]


async def test_keys_go_where_classic_clients_with_murmur3_send_them(served, agent, topic):
    await served.admin.create_topic(topic, properties={"pulsar.partitions": "3"})
    await agent.ask("producer", name="p", topic=topic)
    for n in range(20):
        await agent.ask("send", name="p", value="v", key=f"k{n}")
    await agent.ask("queue", name="q", topic=topic, subscription="q", **EARLIEST)
    got = await agent.receive("q", 20, ack=True)
    by_hash = {key: (murmur3(key.encode()) & 0x7FFFFFFF) % 3 for key in (f"k{n}" for n in range(20))}
    assert {m["key"]: int(m["topic"].rpartition("-")[2]) for m in got} == by_hash


async def test_a_native_consumer_reads_it_and_the_other_way_round(served, agent, topic):
    await agent.ask("producer", name="p", topic=topic, **{"as": "maker"})
    await agent.ask("send", name="p", value="from Java", key="ünïcödé", properties={"p": "q"}, event_time=1234)
    async with served.stream_consumer(topic, "native", initial_position="earliest") as consumer:
        message = await consumer.receive()
        assert (message.value, message.key, message.properties) == (b"from Java", "ünïcödé".encode(), {"p": "q"})
        assert (int(message.event_time.timestamp() * 1000), message.sequence_id) == (1234, 0)
    async with served.producer(topic) as producer:
        await producer.send(b"from Python", key="k", properties={"r": "s"})
    await agent.ask("queue", name="q", topic=topic, subscription="q", **EARLIEST)
    _, second = await agent.receive("q", 2, ack=True)
    assert (second["value"], second["key"], second["properties"]) == ("from Python", "k", {"r": "s"})


async def test_what_a_queue_refuses_comes_again(agent, topic):
    await agent.ask("producer", name="p", topic=topic)
    await agent.ask("queue", name="q", topic=topic, subscription="q", nack_ms=100, **EARLIEST)
    await agent.ask("send", name="p", value="v", key="k")
    (message,) = await agent.receive("q", 1)
    await agent.ask("nack", name="q", message=message["message"])
    (again,) = await agent.receive("q", 1, ack=True)
    assert (again["value"], again["redelivered"]) == ("v", 1)


async def test_transactions(served, agent, topic):
    await agent.ask("client", name="tc", url=service_url(served), transactions=60)
    await agent.ask("producer", name="p", client="tc", topic=topic)
    await agent.ask("queue", name="q", client="tc", topic=topic, subscription="q", **EARLIEST)
    await agent.ask("send", name="p", value="before", key="k")
    (first,) = await agent.receive("q", 1)
    for end, seen in (("abort", ["before"]), ("commit", ["commit"])):
        await agent.ask("begin", name="t", client="tc")
        await agent.ask("send", name="p", value=end, key="k", transaction="t")
        await agent.ask("ack", name="q", message=first["message"], transaction="t")
        await agent.ask(end, name="t")
        found = await agent.receive("q", 2, quiet_ms=QUIET_MS)
        assert values_of(found) == seen
    await agent.ask("ack", name="q", message=found[0]["message"])
    await agent.ask("close", name="q")
    await agent.ask("queue", name="q", client="tc", topic=topic, subscription="q", **EARLIEST)
    assert await agent.receive("q", 1, quiet_ms=QUIET_MS) == []


async def test_a_name_without_a_scheme(served, agent, topic):
    """It is the classic topic, or the scalable one where only that is there."""
    local = topic.rpartition("/")[2]
    await agent.ask("producer", name="p", topic=local)
    await agent.ask("send", name="p", value="v", key="k")
    assert topic in await served.admin.list_topics("public/default")
    await served.admin.create_topic(f"topic://public/default/{local}-s", segments=2, key_hash="murmur3-low")
    await agent.ask("producer", name="p", topic=f"{local}-s")
    await send_all(agent)
    await agent.ask("stream", name="s", topic=f"{local}-s", subscription="s", **EARLIEST)
    assert values_of(await agent.receive("s", COUNT, ack=True)) == VALUES
    assert f"{topic}-s" not in await served.admin.list_topics("public/default")


async def test_a_stream_consumer_is_told_what_reads_it(agent, topic):
    await agent.ask("producer", name="p", topic=topic)
    await agent.ask("send", name="p", value="v", key="k")
    with pytest.raises(AgentError, match="queue consumers, and checkpoint consumers alone, read classic ones"):
        await agent.ask("stream", name="s", topic=topic, subscription="s", **EARLIEST)
