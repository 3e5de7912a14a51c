"""Limits at every level and in every unit: what the topic, its namespace, its tenant, the cluster and a role say."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import aiohttp
import pytest

import engine
from engine.broker.metrics.catalogue import metrics_text
from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.errors import InvalidArgumentError
from engine.metadata import keys
from engine.model.names import TopicName
from engine.storage.dedup.dedup import producer_id
from tests.broker.test_expiry import backlog
from tests.broker.test_limits import TOPIC, later_sent, limited, refused
from tests.broker.test_slow_topics import publish
from tests.kit.peer import Peer, listening
from tests.kit.prometheus import samples_of

LEVELS = [TOPIC, "public/default", "public", "*"]
MANY = 100
BLOBS = [random.Random(seed).randbytes(1_000) for seed in range(MANY)]
UNITS = ["messages", "bytes"]
SLOW = {"messages": 1, "bytes": 1_000}  # a second: more than a minute for all of BLOBS
ONE_BY_ONE = engine.Batching(max_messages=1)
RATES = [
    *itertools.product([TOPIC], [""], UNITS),  # a topic has no sums
    *itertools.product(LEVELS[1:], ["", "total_"], UNITS),
]
HOUR_S = 3_600


@pytest.fixture
def roles(tmp_path: Any) -> dict[str, Any]:
    lines = [line_of(role, f"token-of-{role}") for role in ("ann", "bob")]
    (tmp_path / "roles").write_text("\n".join(lines) + "\n")
    return {"roles_file": str(tmp_path / "roles"), "superusers": ["ann", "bob"]}


async def stored(client: Any, topic: str = "orders") -> Any:
    """A producer that has sent all of BLOBS, each in an entry of its own."""
    producer = await client.producer(topic, batching=ONE_BY_ONE, compression="none")
    await asyncio.gather(*(later_sent(producer, blob) for blob in BLOBS))
    return producer


def all_wanted(consumer: Any) -> list[asyncio.Future[Any]]:
    """All of BLOBS are asked for at once, so that the client has room for them."""
    return [asyncio.ensure_future(consumer.receive()) for _ in BLOBS]


# -- rates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("resource", "total", "unit"), RATES)
async def test_what_is_sent_to_consumers(start_broker: Any, resource: str, total: str, unit: str) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        await stored(client)
        free = await stored(client, "topic://else/default/free")
        await limited(broker, resource, **{f"{total}dispatch_{unit}_per_s": SLOW[unit]})
        await limited(broker, "else", **{f"dispatch_{unit}_per_s": -1})
        slow = await client.queue_consumer("orders", "s", initial_position="earliest")
        wanted = all_wanted(slow)
        await wanted[0]
        beside = await client.queue_consumer("topic://else/default/free", "s", initial_position="earliest")
        also_wanted = all_wanted(beside)  # over the same connection
        if not (resource == "*" and total):  # which holds for all topics
            await asyncio.gather(*also_wanted)
        for _ in BLOBS:  # time enough for a consumer that is not limited
            await free.send(b"x")
        assert sum(one.done() for one in wanted) < MANY // 2
        await broker.admin.remove_limits(resource)
        await asyncio.gather(*wanted, *also_wanted)


@pytest.mark.parametrize(("resource", "total", "unit"), RATES)
async def test_what_is_published(start_broker: Any, resource: str, total: str, unit: str) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        await limited(broker, resource, **{f"{total}publish_{unit}_per_s": SLOW[unit]})
        await limited(broker, "else", **{f"publish_{unit}_per_s": -1})
        slow = await client.producer("orders", batching=ONE_BY_ONE, compression="none")
        sent = [later_sent(slow, blob) for blob in BLOBS]
        await sent[0]
        if not (resource == "*" and total):
            await stored(client, "topic://else/default/free")
        assert sum(one.done() for one in sent) < MANY // 2
        (connection,) = [c for c in broker.connections if c.producers]
        assert not connection.held, "it is read from, for what else comes over it"
        await broker.admin.remove_limits(resource)
        await asyncio.gather(*sent)


@pytest.mark.parametrize("resource", ["role:ann", "role:*"])
@pytest.mark.parametrize("unit", UNITS)
async def test_what_is_sent_to_a_role(start_broker: Any, roles: Any, resource: str, unit: str) -> None:
    async with start_broker(**roles) as broker:
        url = await listening(broker)
        await limited(broker, resource, **{f"total_dispatch_{unit}_per_s": SLOW[unit]})
        await limited(broker, "role:bob", **{f"total_dispatch_{unit}_per_s": -1})
        async with (
            engine.AsyncClient(url, token="token-of-ann") as ann,
            engine.AsyncClient(url, token="token-of-bob") as bob,
        ):
            producer = await stored(ann)
            slow = await ann.queue_consumer("orders", "ann", initial_position="earliest")
            free = await bob.queue_consumer("orders", "bob", initial_position="earliest")
            wanted = all_wanted(slow)
            await wanted[0]
            await asyncio.gather(*all_wanted(free))
            await producer.send(b"x")
            assert sum(one.done() for one in wanted) < MANY // 2
            await broker.admin.remove_limits(resource)
            await asyncio.gather(*wanted)


@pytest.mark.parametrize("unit", UNITS)
async def test_what_a_role_publishes(start_broker: Any, roles: Any, unit: str) -> None:
    async with start_broker(**roles) as broker:
        url = await listening(broker)
        await limited(broker, "role:ann", **{f"total_publish_{unit}_per_s": SLOW[unit]})
        async with (
            engine.AsyncClient(url, token="token-of-ann") as ann,
            engine.AsyncClient(url, token="token-of-bob") as bob,
        ):
            slow = await ann.producer("orders", batching=ONE_BY_ONE, compression="none")
            sent = [later_sent(slow, blob) for blob in BLOBS]
            await sent[0]
            await stored(bob)
            assert sum(one.done() for one in sent) < MANY // 2
            await broker.admin.remove_limits("role:ann")
            await asyncio.gather(*sent)


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", LEVELS[1:])
async def test_the_sum_of_producers(start_broker: Any, resource: str) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        await limited(broker, resource, total_producers=2)
        kept = [await client.producer(topic) for topic in ("a", "b")]
        for producer in kept:
            await producer.send(b"x")

        async def third() -> None:
            async with client.producer("c") as producer:
                await producer.send(b"x")

        error = await refused(third)
        assert str(error) == f"total_producers of {resource} must be at most 2, got 3 producers of {resource}"
        await kept[0].close()
        await third()


@pytest.mark.parametrize("resource", LEVELS[1:])
async def test_the_sum_of_consumers(start_broker: Any, resource: str) -> None:
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        await limited(broker, resource, total_consumers=2)
        producer = await client.producer("c")
        await producer.send(b"x")
        kept = [await client.queue_consumer(topic, "s") for topic in ("a", "b")]
        third = lambda: client.queue_consumer("c", "s", initial_position="earliest")  # noqa: E731
        error = await refused(third)
        assert str(error) == f"total_consumers of {resource} must be at most 2, got 3 consumers of {resource}"
        await kept[0].close()
        await (await third()).receive()


async def test_the_names_of_producers_of_a_role(start_broker: Any, tmp_path: Any) -> None:
    (tmp_path / "roles").write_text(line_of("ann", "token-of-ann") + "\n")
    async with start_broker(roles_file=str(tmp_path / "roles")) as broker:
        await broker.admin.grant("public", "ann", ["produce", "consume"])
        await broker.admin.create_topic("orders")
        await limited(broker, "role:*", producer_names_max=2)
        async with engine.AsyncClient(await listening(broker), token="token-of-ann") as ann:

            async def named(name: str) -> None:
                async with ann.producer("orders", name=name) as producer:
                    await producer.send(b"x")

            for name in ("a", "b", "a"):
                await named(name)
            error = await refused(lambda: named("c"))
            assert (error.limit, error.resource, error.value) == ("producer_names_max", "role:*", 2)
            assert "got 3 names of producers of the role 'ann' in public/default/orders" in str(error)
            ident = keys.producer_id(TopicName.parse("orders"), producer_id("c"))
            assert await broker.metadata.get(ident) is None, "what is refused leaves no record"
            counted = samples_of(metrics_text(broker), "engine_limit_refused_total")
            assert counted == {("producer_names_max",): 1.0}
            await limited(broker, "role:ann", producer_names_max=3)
            await named("c")
            await refused(lambda: named("d"))
            await limited(broker, "role:ann", producer_names_max=-1)
            await named("d")


# -- how long messages live and are kept -------------------------------------------------------------------------------


async def say(broker: Broker, level: str, name: str, value: int | None) -> None:
    """As that level says it: namespaces and topics in their policies."""
    if level == TOPIC:
        await broker.admin.set_topic_policies("orders", {name: value})
    elif level == "public/default":
        await broker.admin.set_namespace_policies("public/default", {name: value})
    else:
        await limited(broker, level, **{name: value})


@pytest.mark.parametrize("level", [*LEVELS, "configuration"])
async def test_the_time_to_live(start_broker: Any, later: Any, level: str) -> None:
    settings = {"message_ttl": HOUR_S} if level == "configuration" else {}
    async with start_broker(**settings) as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        await broker.service.ensure_subscription("orders", "s", initial_position="earliest")
        await publish(peer, segment)
        for above in LEVELS[LEVELS.index(level) + 1 :] if level in LEVELS else []:
            await say(broker, above, "message_ttl_s", 1)
        if level in LEVELS:
            await say(broker, level, "message_ttl_s", HOUR_S)
        later(broker, 0.5)
        await broker.parts.retention.sweep()
        assert await backlog(broker) == 5, "none of the levels above holds"
        later(broker, 0.6)
        await broker.parts.retention.sweep()
        assert await backlog(broker) == 0
        shown = {"message_ttl_s": {"value": HOUR_S, "origin": level}} if level in LEVELS else {}
        assert (await broker.admin.get_stats("orders"))["limits"] == shown
        assert (await broker.admin.get_topic_policies("orders"))["message_ttl_s"] == HOUR_S
        if level != TOPIC:
            assert (await broker.admin.get_namespace_policies("public/default"))["message_ttl_s"] == HOUR_S


@pytest.mark.parametrize("level", LEVELS)
async def test_a_level_that_says_no_end_goes_before_those_above(start_broker: Any, later: Any, level: str) -> None:
    async with start_broker(message_ttl=1) as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        await broker.service.ensure_subscription("orders", "s", initial_position="earliest")
        await publish(peer, segment)
        for above in LEVELS[LEVELS.index(level) + 1 :]:
            await say(broker, above, "message_ttl_s", 1)
        await say(broker, level, "message_ttl_s", -1)
        later(broker, 1)
        await broker.parts.retention.sweep()
        assert await backlog(broker) == 5
        await say(broker, level, "message_ttl_s", None)
        await broker.parts.retention.sweep()
        assert await backlog(broker) == 0, "what is above holds again"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("name", "value"), [("retention_time_s", HOUR_S), ("retention_size_bytes", 0)])
async def test_retention(start_broker: Any, later: Any, level: str, name: str, value: int) -> None:
    async with start_broker(retention_time=None) as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        await publish(peer, segment)
        for above in LEVELS[LEVELS.index(level) + 1 :]:
            await say(broker, above, name, -1)

        async def first_kept() -> int:
            later(broker, 2)
            for _ in range(2):
                await broker.parts.retention.sweep()
            (hosted,) = broker.segments
            return int(hosted.segment.first_offset)

        assert await first_kept() == 0
        await say(broker, level, name, value)
        assert await first_kept() == 5
        assert (await broker.admin.get_stats("orders"))["limits"] == {name: {"value": value, "origin": level}}


@pytest.mark.parametrize("resource", ["public/default", TOPIC])
async def test_namespaces_and_topics_say_it_in_their_policies(start_broker: Any, resource: str) -> None:
    async with start_broker() as broker:
        with pytest.raises(InvalidArgumentError, match=f"message_ttl_s of {resource} must be set as its policy"):
            await broker.admin.set_limits(resource, {"message_ttl_s": 1})
        with pytest.raises(InvalidArgumentError, match="a limit of role:ann must be one of"):
            await broker.admin.set_limits("role:ann", {"message_ttl_s": 1})
        with pytest.raises(InvalidArgumentError, match="message_ttl_s must be at most 100000000000"):
            await broker.admin.set_limits("public", {"message_ttl_s": 10**12})
        with pytest.raises(InvalidArgumentError, match="message_ttl_s must be an integer from 1"):
            await broker.admin.set_limits("public", {"message_ttl_s": 0})


# -- records -----------------------------------------------------------------------------------------------------------


async def test_over_http_patch_merges_and_put_replaces(broker: Broker, http: aiohttp.ClientSession) -> None:
    async def ask(verb: str, resource: str, body: dict[str, Any]) -> int:
        async with http.request(verb, f"/admin/v2/limits/{resource}", json=body) as answer:
            return answer.status

    async def said(resource: str) -> dict[str, Any]:
        async with http.get(f"/admin/v2/limits/{resource}") as answer:
            assert answer.status == 200
            return {name: value for name, value in (await answer.json()).items() if value is not None}

    before, change = {"producers_max": 1, "consumers_max": 2}, {"producers_max": None, "schemas_max": 3}
    for resource in ("merged", "replaced"):
        assert await ask("PUT", resource, before) == 204
        assert await said(resource) == before
    assert await ask("PATCH", "merged", change) == 204
    assert await ask("PUT", "replaced", change) == 204
    assert await said("merged") == {"consumers_max": 2, "schemas_max": 3}
    assert await said("replaced") == {"schemas_max": 3}
    for verb in ("PATCH", "PUT"):  # one that is wrong changes nothing
        assert await ask(verb, "merged", {"consumers_max": 5, "producers_max": -2}) == 400
    assert await said("merged") == {"consumers_max": 2, "schemas_max": 3}
    async with http.delete("/admin/v2/limits/merged") as answer:
        assert answer.status == 204
    assert await said("merged") == {}


async def test_all_of_them_outlive_a_restart(start_broker: Any, later: Any) -> None:
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        await broker.service.ensure_topic("orders")
        await broker.service.ensure_subscription("orders", "s", initial_position="earliest")
        await publish(peer, await peer.segment("orders"))
        await limited(broker, "public", message_ttl_s=HOUR_S, total_publish_messages_per_s=1, total_producers=1)
        await limited(broker, "role:*", connections_max=7)
        await limited(broker, TOPIC, dispatch_bytes_per_s=5, consumers_max=0)
        before = await broker.admin.list_limits()
    async with start_broker() as broker, engine.AsyncClient(await listening(broker)) as client:
        assert await broker.admin.list_limits() == before
        assert (await broker.admin.get_stats("orders"))["limits"] == {
            "dispatch_bytes_per_s": {"value": 5, "origin": TOPIC},
            "consumers_max": {"value": 0, "origin": TOPIC},
            "total_publish_messages_per_s": {"value": 1, "origin": "public"},
            "total_producers": {"value": 1, "origin": "public"},
            "message_ttl_s": {"value": HOUR_S, "origin": "public"},
        }
        producer = await client.producer("orders", batching=ONE_BY_ONE)
        sent = [later_sent(producer, b"x") for _ in range(MANY)]
        await sent[0]
        error = await refused(lambda: client.queue_consumer("orders", "s"))
        assert (error.limit, error.value) == ("consumers_max", 0)
        assert sum(one.done() for one in sent) < MANY // 2
        later(broker, 2)
        await broker.parts.retention.sweep()
        assert await backlog(broker) <= MANY // 2, "what was there before"
        await broker.admin.remove_limits("public")
        await asyncio.gather(*sent)
