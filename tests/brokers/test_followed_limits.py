"""A broker follows the limits of tenants and roles that something at it is of, before it is there; and no others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.broker.admin import dynamic
from engine.broker.admin.dynamic import FollowedLimits
from engine.broker.limits.limits import BrokerLimits
from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.clock import SystemClock
from engine.control.base.brokers import BrokerRecord
from engine.errors import ConnectError, LimitExceededError, TimeoutError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import Event, EventKind
from engine.model.limits import Limits
from engine.model.names import TopicName
from engine.wire.url import parse_url
from tests.brokers.test_identity import BROKERS, addresses, brokers
from tests.brokers.test_tcp import free_url
from tests.kit.peer import Peer, until

ANN = "the token of ann, twenty"
ALIKE = ("ab", "a-b", "a.b", "a_b", "a~b", "a0", "a+b", "a b", "a%2Fb", "A", "b")  # beside "a"; some are no new names
TOPIC = TopicName("a", "ns", "orders")
NO_PRODUCERS = Limits(producers_max=0).to_json()


@pytest.fixture(autouse=True)
async def _ended() -> AsyncIterator[None]:
    yield
    await Peer.end_all()


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The resources of the records that brokers are told of."""
    found: list[str] = []
    original = FollowedLimits._heard

    def hear(self: FollowedLimits, event: Event) -> None:
        if event.kind is not EventKind.SNAPSHOT_END:
            found.append(keys.limited(event.key))
        original(self, event)

    monkeypatch.setattr(FollowedLimits, "_heard", hear)
    return found


class Gate:
    """A store of one broker whose new watches below a prefix are silent until it is opened."""

    def __init__(self, store: Any, below: str = keys.LIMITS) -> None:
        self.open = asyncio.Event()
        self.waiting = 0
        self.begun: list[str] = []  # of what the watches are, in order
        self._below = below
        self._store = store
        self._watch, self._watch_key = store.watch, store.watch_key
        store.watch, store.watch_key = self.watch, self.watch_key

    def watch(self, prefix: str, from_version: int | None = None) -> Any:
        return self._behind(prefix, self._watch(prefix, from_version))

    def watch_key(self, key: str) -> Any:
        return self._behind(key, self._watch_key(key))

    def _behind(self, of: str, watch: Any) -> Any:
        if not of.startswith(self._below):
            return watch
        gate = self
        self.begun.append(of)

        class Silent:
            async def __aiter__(self) -> AsyncIterator[Event]:
                gate.waiting += 1
                await gate.open.wait()
                gate.waiting -= 1
                async for event in watch:
                    yield event

            def close(self) -> None:
                watch.close()

        return Silent()


@asynccontextmanager
async def one_of_several(path: Path, **settings: Any) -> AsyncIterator[tuple[Broker, MemoryMetadataStore]]:
    """A broker that shares its metadata store, and the store as others have it."""
    clock = SystemClock()
    root = MemoryMetadataStore(clock, leases=True)
    config = BrokerConfig(service_url=free_url(), segments=2, cluster_token=BROKERS, **settings)
    store: Any = root.client()
    broker = Broker(path, config=config, metadata=store, clock=clock)
    await broker.start()
    await broker.serve(*parse_url(config.service_url or ""))
    try:
        yield broker, root
    finally:
        await broker.close()
        await store.close()
        await root.close()


def known(broker: Broker) -> dict[str, Limits]:
    return {} if broker.memory.limits is None else broker.memory.limits._records


def limits_of(broker: Broker) -> BrokerLimits:
    assert broker.memory.limits is not None
    return broker.memory.limits


def followed(broker: Broker) -> FollowedLimits:
    assert isinstance(broker.memory.followed, FollowedLimits)
    return broker.memory.followed


async def sent(client: engine.AsyncClient, topic: str = str(TOPIC)) -> None:
    """The first message of a producer, which attaches with it."""
    async with client.producer(topic) as producer:
        await producer.send(b"x")


async def refused(attempt: Any, text: str) -> None:
    with pytest.raises(LimitExceededError, match=text):
        await attempt


# -- what is followed --------------------------------------------------------------------------------------------------


async def test_a_tenant_is_followed_and_none_whose_name_begins_alike(tmp_path: Path, heard: list[str]) -> None:
    async with one_of_several(tmp_path) as (broker, store):
        own = ["a", "a/ns", "a/ns/orders", "a/ab", "a/~", "*"]
        others = [name for tenant in ALIKE for name in (tenant, f"{tenant}/ns", f"{tenant}/ns/orders")]
        for name in (*own, *others, "role:a", "role:ab"):
            await store.put(keys.limits(name), Limits(producers_max=9).to_json())
        await until(lambda: set(known(broker)) == {"*"})
        await followed(broker).ready("a")
        assert set(known(broker)) == set(own)
        for name in (*others, "role:a", "role:ab"):
            await store.put(keys.limits(name), Limits(producers_max=8).to_json())
            await store.delete(keys.limits(name))
        for name in own:
            await store.put(keys.limits(name), Limits(producers_max=7).to_json())
        await until(lambda: [limits.producers_max for limits in known(broker).values()] == [7] * len(own))
        assert set(heard) == set(own)
        for name in own:
            await store.delete(keys.limits(name))
        await until(lambda: not known(broker))


@pytest.mark.parametrize("count", [20, 10_000])
async def test_what_is_known_does_not_grow_with_other_tenants(tmp_path: Path, heard: list[str], count: int) -> None:
    async with one_of_several(tmp_path) as (broker, store):
        names = [f"foreign-{i % 100}/ns/topic-{i}" for i in range(count)] + [f"role:foreign-{i}" for i in range(20)]
        for name in names:
            await store.put(keys.limits(name), Limits(total_producers=9, producers_max=9).to_json())
        await store.put(keys.limits("a"), Limits(total_producers=5).to_json())
        async with engine.AsyncClient(broker.service_url) as client, await client.producer(str(TOPIC)) as producer:
            await producer.send(b"x")
            for name in names[:200]:
                await store.put(keys.limits(name), Limits(producers_max=1).to_json())
            await store.put(keys.limits("a"), Limits(total_producers=6).to_json())
            await until(lambda: known(broker) == {"a": Limits(total_producers=6)})
        assert set(heard) == {"a"}
        assert len(followed(broker)._parts) == 4, "of the cluster and the tenant, and of what is below each"


# -- before the first of a tenant, or of a role ------------------------------------------------------------------------


async def test_limits_hold_for_the_first_of_a_tenant(tmp_path: Path) -> None:
    async with brokers(tmp_path / "data", 2, cluster_token=BROKERS) as found:
        metadata = found[0].metadata
        await metadata.put(keys.limits("a"), Limits(total_topics=1, message_bytes_max=100).to_json())
        await metadata.put(keys.limits("a/ns/orders"), Limits(subscriptions_max=0, schemas_max=0).to_json())
        await metadata.put(keys.limits("b"), Limits(total_topics=0).to_json())
        await metadata.put(keys.limits("c/ns"), NO_PRODUCERS)
        async with engine.AsyncClient(addresses(found[1:], "engine")) as client:
            producer = await client.producer(str(TOPIC))
            with pytest.raises(engine.MessageTooLargeError):
                await producer.send(b"x" * 1_000)
            await refused(client.queue_consumer(str(TOPIC), "s"), "subscriptions_max of a/ns/orders")
            await refused(sent(client, "topic://c/ns/t"), "producers_max of c/ns must be at most 0")
        for broker in found:
            await refused(broker.admin.create_topic("topic://b/ns/t"), "total_topics of b must be at most 0")
            await refused(broker.admin.create_topic("topic://a/ns/t"), "total_topics of a must be at most 1")
            said = await broker.admin.get_stats(str(TOPIC))
            assert said["limits"]["message_bytes_max"] == {"value": 100, "origin": "a"}


async def test_nothing_of_a_tenant_begins_before_its_limits_are_known(tmp_path: Path) -> None:
    async with one_of_several(tmp_path) as (broker, store):
        await store.put(keys.limits("a/ns"), NO_PRODUCERS)
        gate = Gate(broker.metadata)
        async with engine.AsyncClient(broker.service_url) as client:
            attempt = asyncio.ensure_future(sent(client))
            await until(lambda: gate.waiting == 2)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not attempt.done()
            assert not broker.segments.tenants()
            gate.open.set()
            await refused(attempt, "producers_max of a/ns must be at most 0")


async def test_limits_hold_for_the_first_connection_of_a_role(tmp_path: Path) -> None:
    (tmp_path / "roles").write_text(line_of("ann", ANN) + "\n")
    roles = {"roles_file": str(tmp_path / "roles"), "superusers": ("root",)}
    async with one_of_several(tmp_path / "data", **roles) as (broker, store):
        await store.put(keys.limits("role:ann"), Limits(connections_max=0).to_json())
        gate = Gate(broker.metadata)
        peer, other = [await Peer.connect(broker, hello=False) for _ in range(2)]
        hello = asyncio.ensure_future(peer.hello(token=ANN))
        await until(lambda: gate.waiting == 1)  # for "role:*", and then for its own
        await other.hello(token=BROKERS)
        assert not hello.done(), "and no other connection waits for it"
        gate.open.set()
        await refused(hello, "connections_max of role:ann must be at most 0")
        await store.put(keys.limits("role:ann"), Limits(connections_max=1).to_json())
        await until(lambda: known(broker)["role:ann"].connections_max == 1)
        again = await Peer.connect(broker, hello=False)
        await again.hello(token=ANN)
        assert limits_of(broker).connections == {"ann": 1}


async def test_a_store_that_does_not_tell_ends_it_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "roles").write_text(line_of("ann", ANN) + "\n")
    roles = {"roles_file": str(tmp_path / "roles"), "superusers": ("root",), "handshake_timeout": 1.0}
    monkeypatch.setattr(FollowedLimits.ready, "__defaults__", (0.05,))
    async with one_of_several(tmp_path / "data", **roles) as (broker, _):
        gate = Gate(broker.metadata)
        with pytest.raises(TimeoutError, match=r"did not tell the limits of a within 0.05 s; try again"):
            await broker.admin.create_topic(str(TOPIC))
        peer = await Peer.connect(broker, hello=False)
        with pytest.raises(ConnectError, match=r"did not tell the limits of role:ann within 0.\d+ s"):
            await peer.hello(token=ANN)
        await peer.lost
        gate.open.set()
        await broker.admin.create_topic(str(TOPIC))
        await (again := await Peer.connect(broker, hello=False)).hello(token=ANN)
        await again.close()


# -- dropped, and followed again ---------------------------------------------------------------------------------------


async def test_idle_tenants_are_dropped_and_followed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic, "IDLE_MAX", 3)
    monkeypatch.setattr(dynamic, "_LOOK_EACH", 1)
    async with one_of_several(tmp_path) as (broker, store):
        for i in range(10):
            await store.put(keys.limits(f"t{i}"), Limits(total_topics=i).to_json())
        await store.put(keys.limits("a"), Limits(producers_max=1).to_json())
        async with engine.AsyncClient(broker.service_url) as client, await client.producer(str(TOPIC)) as producer:
            await producer.send(b"x")
            for i in range(10):
                await followed(broker).ready(f"t{i}")
                await followed(broker).ready("t0")
            # What something is of stays, and those that were asked for last.
            assert set(known(broker)) == {"a", "t0", "t7", "t8", "t9"}
            assert set(followed(broker).told) == {"*", *known(broker)}
            assert len(followed(broker)._parts) == 2 * 6
            with pytest.raises(TimeoutError, match="the limits of t1 are not known at this broker yet"):
                limits_of(broker).of_topic(TopicName("t1", "ns", "t"))
            with pytest.raises(TimeoutError, match="not known"):
                limits_of(broker).totals(TopicName("t1", "ns", "t"), "total_topics")
            await store.put(keys.limits("t1"), Limits(total_topics=0).to_json())
            await store.delete(keys.limits("t2"))
            await refused(broker.admin.create_topic("topic://t1/ns/t"), "total_topics of t1 must be at most 0")
            await broker.admin.create_topic("topic://t2/ns/t")
            assert "t2" not in known(broker)
            await producer.send(b"x")
            await refused(sent(client), "producers_max of a must be at most 1")


@pytest.mark.parametrize("seed", range(5))
async def test_limits_are_as_in_the_store_whatever_is_dropped_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(dynamic, "IDLE_MAX", 2)
    monkeypatch.setattr(dynamic, "_LOOK_EACH", 1)
    rng = random.Random(seed)
    tenants = [f"t{i}" for i in range(6)]
    async with one_of_several(tmp_path) as (broker, store):
        wanted: dict[str, int] = {}

        async def look(tenant: str) -> None:
            is_new = tenant not in followed(broker).told
            limits = await followed(broker).ready(tenant)
            if is_new and tenant in wanted:
                assert limits is not None
                assert limits.totals(TopicName(tenant, "ns", "t"), "total_topics")

        for _ in range(60):
            tenant = rng.choice(tenants)
            if rng.random() < 0.4:
                wanted[tenant] = rng.randrange(100)
                await store.put(keys.limits(tenant), Limits(total_topics=wanted[tenant]).to_json())
            await asyncio.gather(*(look(one) for one in rng.sample(tenants, 3)))
        for tenant in tenants:
            await followed(broker).ready(tenant)
            said = None if tenant not in wanted else Limits(total_topics=wanted[tenant])
            await until(lambda tenant=tenant, said=said: known(broker).get(tenant) == said)


# -- what brokers show each other --------------------------------------------------------------------------------------


async def test_what_is_shown_is_of_each_tenant_and_gone_with_its_limits(tmp_path: Path) -> None:
    async with brokers(tmp_path / "data", 2, cluster_token=BROKERS) as found:
        metadata = found[0].metadata
        for tenant in ("a", "b"):
            await found[0].admin.create_topic(f"topic://{tenant}/ns/orders", segments=4)
            await found[0].admin.set_limits(tenant, {"total_producers": 5, "total_storage_bytes": 1 << 40})

        async def shown(prefix: str) -> dict[str, int]:
            """How many brokers show something of each group."""
            groups = [keys.shown_of(key)[0] for key in await metadata.list_keys(prefix, keys.prefix_end(prefix))]
            return {group: groups.count(group) for group in groups}

        async def shows(wanted: dict[str, int]) -> None:
            async with asyncio.timeout(60):
                while await shown(keys.PRESENT) != wanted or await shown(keys.USAGE) != wanted:  # noqa: ASYNC110
                    await asyncio.sleep(0)

        async with engine.AsyncClient(addresses(found, "engine")) as client:
            producers = [await client.producer(f"topic://{tenant}/ns/orders") for tenant in ("a", "b")]
            for producer in producers:
                for i in range(30):
                    await producer.send(b"x", key=f"key-{i}")
            await shows({"a": 2, "b": 2})
            await found[1].admin.remove_limits("a")
            await shows({"b": 2})
            await found[0].admin.set_limits("*", {"total_producers": 9, "total_storage_bytes": 1 << 40})
            await shows({"*": 2, "b": 2})
            for name in ("*", "b"):
                await found[1].admin.remove_limits(name)
            await shows({})


async def test_a_broker_reads_what_others_show_of_what_it_has_itself(tmp_path: Path) -> None:
    async with one_of_several(tmp_path) as (broker, store):
        other = await store.session(60)
        url = "engine://127.0.0.1:1"
        await store.put(keys.broker(url), BrokerRecord(url, None, other.id, draining=True).to_json(), session=other)
        await until(lambda: not broker.parts.members.brokers.alone)
        shown = b'{"names":{"producers\\na":"AAAAAAAAAAE=","producers\\nb":"AAAAAAAAAAI="},"more":{}}'
        for tenant in ("a", "b"):
            await store.put(keys.limits(tenant), Limits(total_producers=1).to_json())
            await store.put(keys.shown(keys.PRESENT, tenant, url), shown, session=other)
        async with engine.AsyncClient(broker.service_url) as client:
            # What is at the other broker counts for the very first one here.
            await refused(sent(client), "total_producers of a must be at most 1, got 2")
            assert broker.limiting is not None
            assert set(broker.limiting.attendance._records._found) == {"a"}
            await other.close()
            await until(lambda: not limits_of(broker)._others)
            await sent(client)
