"""Limits hold at all brokers of a directory: changes reach each of them, and what is stored is counted over all."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.broker.limits.limits import BrokerLimits
from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.errors import LimitExceededError
from engine.wire.commands import Command
from tests.broker.transacting import begin
from tests.brokers.test_identity import BROKERS, addresses, brokers
from tests.kit.peer import Peer, until

BIG = 50_000
ANN, ROOT = "the token of ann, twenty", "the token of root, twenty"
RANDOM = random.Random(1)
TOPIC = "public/default/orders"


@pytest.fixture(autouse=True)
async def _ended() -> AsyncIterator[None]:
    yield
    await Peer.end_all()


def quotas(broker: Broker) -> Any:
    assert broker.limiting is not None
    return broker.limiting.quotas


async def everywhere(found: list[Broker], name: str) -> None:
    await until(lambda: all(b.memory.limits is not None and b.memory.limits.says([name]) for b in found))


async def test_a_limit_that_is_set_at_one_broker_holds_at_all_for_what_is_attached(tmp_path: Path) -> None:
    async with brokers(tmp_path / "data", 2, cluster_token=BROKERS) as found:
        await found[0].admin.create_topic("orders", segments=4)
        async with engine.AsyncClient(addresses(found, "engine")) as client:
            producer = await client.producer("orders")
            for i in range(30):
                await producer.send(b"x", key=f"key-{i}")
            assert all(any(c.producers for c in b.connections) for b in found)
            await found[0].admin.set_limits("public", {"publish_bytes_per_s": 1})
            for broker in found:
                await until(
                    lambda broker=broker: any(
                        p.limited is not None and p.limited._throttle is not None
                        for c in broker.connections
                        for p in c.producers.values()
                    )
                )
            await found[1].admin.remove_limits("public")
            for i in range(30):
                await producer.send(b"y", key=f"key-{i}")


async def test_what_is_stored_is_counted_over_all_brokers(tmp_path: Path) -> None:
    async with brokers(tmp_path / "data", 2, cluster_token=BROKERS) as found:
        await found[0].admin.create_topic("orders", segments=4)
        async with engine.AsyncClient(addresses(found, "engine")) as client:
            producer = await client.producer("orders")
            for i in range(30):
                await producer.send(RANDOM.randbytes(BIG), key=f"key-{i}")
            here = [sum(h.segment.size_bytes for h in b.segments) for b in found]
            assert all(here)
            # None of the brokers has as much alone.
            await found[0].admin.set_limits(TOPIC, {"storage_bytes_max": max(here) + min(here) // 2})
            await everywhere(found, "storage_bytes_max")
            await until(lambda: all(b.memory.limits is not None and b.memory.limits.full for b in found))
            with pytest.raises(LimitExceededError, match="storage_bytes_max of public/default/orders must be at most"):
                await producer.send(b"x", key="key-1")
            await found[1].admin.remove_limits(TOPIC)
            await until(lambda: not any(b.memory.limits.full for b in found if b.memory.limits is not None))
            await producer.send(b"x", key="key-1")


async def test_an_evicted_backlog_is_not_evicted_by_each_broker_once_more(tmp_path: Path) -> None:
    async with brokers(tmp_path / "data", 2, cluster_token=BROKERS) as found:
        await found[0].admin.create_topic("orders", segments=4)
        await found[0].admin.create_subscription("orders", "slow", initial_position="earliest")
        async with engine.AsyncClient(addresses(found, "engine")) as client:
            producer = await client.producer("orders")
            for i in range(40):
                await producer.send(RANDOM.randbytes(BIG), key=f"key-{i}")

        async def backlog() -> int:
            return int((await found[0].service.get_stats("orders"))["subscriptions"]["slow"]["backlog"])

        assert await backlog() == 40
        limits = {"backlog_bytes_max": 20 * BIG, "backlog_action": "evict"}
        await found[0].admin.set_limits(TOPIC, limits)
        await everywhere(found, "backlog_bytes_max")
        rounds = [quotas(b).rounds for b in found]
        await until(lambda: all(quotas(b).rounds >= n + 6 for b, n in zip(found, rounds, strict=True)))
        assert 12 <= await backlog() <= 20


# -- numbers -----------------------------------------------------------------------------------------------------------


def known_elsewhere(broker: Broker, key: str) -> int:
    """How many of "what\\nscope" a broker knows of at the others."""
    others = limits_of(broker)._others.get(key)
    return 0 if others is None else others.most


def limits_of(broker: Broker) -> BrokerLimits:
    assert broker.memory.limits is not None
    return broker.memory.limits


async def known_everywhere(found: list[Broker], key: str, count: int) -> None:
    await until(lambda: all(known_elsewhere(b, key) == count for b in found))


async def refused(attempt: Any, text: str) -> None:
    with pytest.raises(LimitExceededError, match=text):
        await attempt


async def test_producers_and_consumers_of_a_topic_are_counted_over_all_brokers(tmp_path: Path) -> None:
    """Each of them is attached at both brokers, and counts once."""
    async with brokers(tmp_path / "data", 2, cluster_token=BROKERS) as found:
        await found[0].admin.create_topic("orders", segments=4)
        await found[0].admin.set_limits(TOPIC, {"producers_max": 2, "consumers_max": 2})
        async with engine.AsyncClient(addresses(found, "engine")) as client:
            producers = [await client.producer("orders", name=name) for name in ("p1", "p2")]
            for producer in producers:
                for i in range(30):
                    await producer.send(b"x", key=f"key-{i}")
            consumers = [await client.queue_consumer("orders", "q", name=name) for name in ("c1", "c2")]
            await known_everywhere(found, f"producers\n{TOPIC}", 2)
            await known_everywhere(found, f"consumers\n{TOPIC}", 2)
            await refused(client.producer("orders", name="p3"), "producers_max of public/default/orders")
            await refused(client.queue_consumer("orders", "q", name="c3"), "consumers_max of public/default/orders")
            await producers[0].close()
            await consumers[0].close()
            await known_everywhere(found, f"producers\n{TOPIC}", 1)
            third = await client.producer("orders", name="p3")
            for i in range(30):
                await third.send(b"x", key=f"key-{i}")


async def test_the_sum_of_a_tenant_is_counted_over_topics_of_several_brokers(tmp_path: Path) -> None:
    async with brokers(tmp_path / "data", 2, cluster_token=BROKERS) as found:
        await found[0].admin.set_limits("public", {"total_producers": 4})
        async with engine.AsyncClient(addresses(found, "engine")) as client:
            kept = [await client.producer(f"topic-{i}") for i in range(4)]
            for producer in kept:
                await producer.send(b"x", key="key-1")
            assert all(any(c.producers for c in b.connections) for b in found)
            await until(lambda: all(limits_of(b).producers.count("public", b"") == 4 for b in found))

            async def one_more(name: str) -> None:
                await (await client.producer(name)).send(b"x", key="key-1")

            for i in range(4, 8):  # at either broker
                await refused(one_more(f"topic-{i}"), "total_producers of public must be at most 4")


async def test_connections_and_transactions_of_a_role_are_counted_over_all_brokers(tmp_path: Path) -> None:
    (tmp_path / "roles").write_text(f"{line_of('ann', ANN)}\n{line_of('root', ROOT)}\n")
    roles = {"roles_file": str(tmp_path / "roles"), "superusers": ("root",)}
    async with brokers(tmp_path / "data", 2, cluster_token=BROKERS, **roles) as found:
        await found[0].admin.set_limits("role:ann", {"connections_max": 3, "open_transactions_max": 3})
        first, second = [await as_ann(broker) for broker in found]
        one, two = await begin(first), await begin(second)
        named = await begin(first, name="nightly")
        await until(lambda: known_elsewhere(found[0], "transactions\nrole:ann") == 1)
        await until(lambda: known_elsewhere(found[1], "transactions\nrole:ann") == 2)
        for peer in (first, second):
            await refused(begin(peer), "open_transactions_max of role:ann must be at most 3, got 4")
            assert await begin(peer, name="nightly") == named  # it counts already, wherever it was begun
        await ended(second, one)  # the broker that has begun it does not hear of it, and looks
        await until(lambda: known_elsewhere(found[1], "transactions\nrole:ann") == 1)
        await begin(second)
        await ended(second, two)

        third = await as_ann(found[0])
        await until(lambda: known_elsewhere(found[1], "connections\nrole:ann") == 2)
        await refused(as_ann(found[1]), "connections_max of role:ann must be at most 3, got connection 4")
        await third.close()
        await until(lambda: known_elsewhere(found[1], "connections\nrole:ann") == 1)
        await as_ann(found[1])


async def as_ann(broker: Broker) -> Peer:
    peer = await Peer.connect(broker, hello=False)
    await peer.hello(token=ANN)
    return peer


async def ended(peer: Peer, transaction: str) -> None:
    await peer.ask(Command.END_TXN, id=transaction, action="abort")


async def test_who_was_at_a_broker_that_is_gone_is_gone(tmp_path: Path) -> None:
    async with brokers(tmp_path / "data", 2, cluster_token=BROKERS) as found:
        await found[0].admin.create_topic("orders", segments=4)
        await found[0].admin.set_limits(TOPIC, {"producers_max": 5})
        async with engine.AsyncClient(addresses(found, "engine")) as client:
            producer = await client.producer("orders")
            for i in range(30):
                await producer.send(b"x", key=f"key-{i}")
            await known_everywhere(found, f"producers\n{TOPIC}", 1)
            await found[1].close()
            await until(lambda: not known_elsewhere(found[0], f"producers\n{TOPIC}"))
