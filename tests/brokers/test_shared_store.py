"""Three brokers over real frames that share a metadata store and a disk, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.errors import EngineError, NotFoundError, NotOwnerError
from engine.metadata import keys
from engine.model.names import SegmentName, TopicName
from engine.model.positions import Checkpoint
from engine.testing.cluster import SimBroker, SimCluster, simulate

TOPIC = TopicName.parse("orders")
NAMES = ("b1", "b2", "b3")
Body = Callable[[SimCluster], Coroutine[Any, Any, None]]


@pytest.fixture(params=["shared", "served", "objects"], autouse=True)
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers have the store in their process, or reach it over the network; or share no disk, but objects."""
    monkeypatch.setitem(OPTIONS, request.param, True)
    monkeypatch.setitem(OPTIONS, "shared", request.param != "objects")


OPTIONS = {"shared": True}


def run(body: Body, seed: int = 1) -> None:
    """A cluster of three with a topic of six segments."""

    async def scenario(cluster: SimCluster) -> None:
        for name in NAMES:
            await cluster.start(name)
        await cluster.brokers["b1"].broker.admin.create_topic(str(TOPIC), segments=6)
        await body(cluster)
        assert not cluster.loop.problems
        assert not cluster.stuck

    simulate(seed, scenario, **OPTIONS)


async def names_of(cluster: SimCluster) -> list[SegmentName]:
    record = await cluster.metadata.get(keys.topic(TOPIC))
    assert record is not None
    broker = next(b.broker for b in cluster.brokers.values() if b.broker is not None)
    view = await broker.service.ensure_topic(TOPIC)
    return [TOPIC.segment(s.hash_range, s.segment_id) for s in view.layout.segments.values()]


def owners(cluster: SimCluster) -> dict[str, set[int]]:
    """Which segments each running broker has open."""
    running = {name: b.broker for name, b in cluster.brokers.items() if b.broker is not None}
    return {name: {h.name.segment_id for h in broker.segments} for name, broker in running.items()}


async def send(producer: Any, numbers: range) -> None:
    for i in numbers:
        await producer.send(str(i).encode(), key=f"key-{i}")


async def receive(consumer: Any, count: int) -> set[int]:
    found: set[int] = set()
    while len(found) < count:
        batch = await consumer.receive_batch(timeout=30)
        assert len(batch), f"only {len(found)} of {count} came"
        found.update(int(m.value) for m in batch)
        await consumer.acknowledge_cumulative(batch)
    return found


async def everything(cluster: SimCluster, name: str) -> list[int]:
    client = cluster.client(name)
    consumer = await client.checkpoint_consumer(str(TOPIC), start=Checkpoint.earliest())
    found = []
    while len(batch := await consumer.receive_batch(timeout=5)):
        found += [int(m.value) for m in batch]
    await client.close()
    return sorted(found)


async def owner_of(cluster: SimCluster, key: str) -> tuple[SimBroker, int]:
    """Who owns the segment that a key's messages go to."""
    producer = await cluster.client(f"probe {key}").producer(str(TOPIC))
    segment = (await producer.send(b"0", key=key)).segment_id
    (name,) = [n for n, found in owners(cluster).items() if segment in found]
    return cluster.brokers[name], segment


def test_every_segment_has_one_owner_and_messages_go_through_all_of_them() -> None:
    async def body(cluster: SimCluster) -> None:
        client = cluster.client("c")
        await send(await client.producer(str(TOPIC)), range(100))
        shares = owners(cluster)
        assert sorted(s for share in shares.values() for s in share) == list(range(6))
        assert sum(map(bool, shares.values())) >= 2, shares
        stream = await client.stream_consumer(str(TOPIC), "stream", initial_position="earliest")
        assert await receive(stream, 100) == set(range(100))
        assert await everything(cluster, "reader") == list(range(100))

    run(body)


def test_one_queue_over_several_owners() -> None:
    """A subscription that is not there yet is made by the topic's leader, whoever is asked for it."""

    async def body(cluster: SimCluster) -> None:
        await send(await cluster.client("p").producer(str(TOPIC)), range(50))
        consumer = await cluster.client("q").queue_consumer(str(TOPIC), "q", initial_position="earliest")
        found = set()
        while len(found) < 50:
            message = await consumer.receive(timeout=5)
            assert message is not None
            found.add(int(message.value))
            await consumer.acknowledge(message)

    run(body)


@pytest.mark.parametrize("how", ["kill", "power_cut", "close"])
def test_d1_nothing_acknowledged_is_lost_when_an_owner_goes(how: str) -> None:
    async def body(cluster: SimCluster) -> None:
        client = cluster.client("c")
        producer = await client.producer(str(TOPIC))
        stream = await client.stream_consumer(str(TOPIC), "stream", initial_position="earliest")
        await send(producer, range(60))
        assert await receive(stream, 60) == set(range(60))
        victim = max(cluster.brokers.values(), key=lambda b: len(b.broker.segments))
        await getattr(victim, how)()
        started = cluster.loop.time()
        await send(producer, range(60, 120))
        if how == "close":
            assert cluster.loop.time() - started < 2, "it has let go of its segments: nobody waits for its session"
        assert await receive(stream, 60) == set(range(60, 120)), "what was acknowledged stays so"
        assert await everything(cluster, "reader") == list(range(120))
        await victim.start()
        assert await everything(cluster, "reader again") == list(range(120))

    run(body)


@pytest.mark.parametrize("seed", range(4))
def test_l1_a_zombie_owner_confirms_nothing_after_its_lease(seed: int) -> None:
    """Stopped with an append on its way to the disk, it goes on when others own the segment."""

    async def body(cluster: SimCluster) -> None:
        zombie, segment = await owner_of(cluster, "k")
        client = cluster.client("pinned", zombie)
        producer = await client.producer(str(TOPIC))
        await producer.send(b"1", key="k")
        zombie.workers.stall()
        late = asyncio.ensure_future(producer.send(b"2", key="k"))
        await asyncio.sleep(0.1)
        zombie.suspend()
        await asyncio.sleep(cluster.config.session_timeout + 0.5)
        other = await cluster.client("other", _another(cluster, zombie)).producer(str(TOPIC))
        first = await other.send(b"3", key="k")
        zombie.workers.resume()  # the write and its sync have long succeeded
        await asyncio.sleep(0.1)
        zombie.resume()
        second = await late  # it is sent again, to the new owner
        assert first.segment_id == second.segment_id == segment
        assert first.offset != second.offset, "two messages were acknowledged at one place"
        assert await everything(cluster, "reader") == [0, 1, 2, 3]

    run(body, seed)


def _another(cluster: SimCluster, broker: SimBroker) -> SimBroker:
    return next(b for b in cluster.brokers.values() if b is not broker)


def test_c4_a_fenced_owner_saves_no_acknowledgement() -> None:
    async def body(cluster: SimCluster) -> None:
        zombie, _ = await owner_of(cluster, "k")
        (hosted,) = list(zombie.broker.segments)
        await cluster.brokers["b1"].broker.admin.create_subscription(str(TOPIC), "s", initial_position="earliest")
        subscription = await zombie.broker.subscriptions.open(hosted, "s")
        zombie.isolate()
        await asyncio.sleep(cluster.config.session_timeout + 0.5)
        with pytest.raises(EngineError):
            await subscription.ack_cumulative(1)
        assert not len(zombie.broker.segments), "it has let go of everything"
        zombie.rejoin()
        await asyncio.sleep(5)
        assert zombie.broker.members.brokers.lives(zombie.url, None), "it is back, with nothing"

    run(body)


def test_the_leader_moves_with_its_consumers() -> None:
    async def body(cluster: SimCluster) -> None:
        client = cluster.client("c")
        stream = await client.stream_consumer(str(TOPIC), "stream", initial_position="earliest")
        producer = await client.producer(str(TOPIC))
        await send(producer, range(30))
        assert await receive(stream, 30) == set(range(30))
        leader = await _leader(cluster)
        await leader.kill()
        await send(producer, range(30, 60))
        assert await receive(stream, 30) == set(range(30, 60))
        await asyncio.sleep(10)
        assert await _leader(cluster) is not leader

    run(body)


async def _leader(cluster: SimCluster) -> SimBroker:
    record = await cluster.metadata.get(keys.controller(TOPIC))
    assert record is not None
    return next(b for b in cluster.brokers.values() if b.url == record.value.decode())


def test_an_administrator_may_ask_any_broker() -> None:
    async def body(cluster: SimCluster) -> None:
        admins = [b.broker.admin for b in cluster.brokers.values()]
        for i, admin in enumerate(admins):
            await admin.create_subscription(str(TOPIC), f"s{i}", initial_position="earliest")
        await send(await cluster.client("p").producer(str(TOPIC)), range(20))
        stats = [await admin.get_stats(str(TOPIC)) for admin in admins]
        assert stats[0]["subscriptions"].keys() == {"s0", "s1", "s2"}
        assert len({str(s["subscriptions"].keys()) for s in stats}) == 1
        await admins[2].clear_backlog(str(TOPIC), "s0")
        await admins[1].delete_subscription(str(TOPIC), "s1")
        for admin in admins:
            with pytest.raises(NotFoundError):
                await admin.delete_subscription(str(TOPIC), "s1")
        await admins[1].delete_topic(str(TOPIC))
        disks = [broker.disk for broker in cluster.brokers.values()]
        assert not [p for disk in disks for p in disk.paths() if p.endswith(".log")]

    run(body)


@pytest.mark.parametrize("at", NAMES)
def test_a_split_is_asked_for_anywhere_and_done_where_the_segments_are(at: str) -> None:
    async def body(cluster: SimCluster) -> None:
        client = cluster.client("c")
        producer = await client.producer(str(TOPIC))
        stream = await client.stream_consumer(str(TOPIC), "stream", initial_position="earliest")
        await send(producer, range(40))
        admin = cluster.brokers[at].broker.admin
        for segment in (0, 3):
            await admin.split_segment(str(TOPIC), segment)
        metadata = await admin.merge_segments(str(TOPIC), 1, 2)
        assert metadata["epoch"] == 3
        await send(producer, range(40, 80))
        assert await receive(stream, 80) == set(range(80))
        assert await everything(cluster, "reader") == list(range(80))

    run(body)


def test_a_broker_without_the_store_says_so_and_the_same_may_be_asked_again() -> None:
    async def body(cluster: SimCluster) -> None:
        broker = cluster.brokers["b2"]
        await broker.broker.admin.create_subscription(str(TOPIC), "s")
        broker.metadata.partition()
        for _ in range(2):
            with pytest.raises(EngineError) as caught:
                async with asyncio.timeout(60):
                    await broker.broker.admin.delete_subscription(str(TOPIC), "s")
            assert caught.value.retryable, repr(caught.value)
        broker.metadata.heal()
        await asyncio.sleep(10)
        await broker.broker.admin.delete_subscription(str(TOPIC), "s")

    run(body)


def test_a_segment_stays_with_its_owner_while_that_lives() -> None:
    """Also when placement, after another broker came, names another."""

    async def body(cluster: SimCluster) -> None:
        await send(await cluster.client("p").producer(str(TOPIC)), range(60))
        before = owners(cluster)
        for name in ("b4", "b5", "b6"):
            await cluster.start(name)
        await send(await cluster.client("p2").producer(str(TOPIC)), range(60))
        assert {n: s for n, s in owners(cluster).items() if s} == {n: s for n, s in before.items() if s}
        names = await names_of(cluster)
        for broker in cluster.brokers.values():
            urls = await broker.broker.members.ownership.urls(names)
            assert urls == [cluster.brokers[n].url for s in range(6) for n, found in before.items() if s in found]

    run(body)


def test_who_does_not_own_a_segment_names_the_owner() -> None:
    async def body(cluster: SimCluster) -> None:
        owner, segment = await owner_of(cluster, "k")
        other = _another(cluster, owner).broker
        spec = await other.service.segment_spec(TOPIC, segment)
        with pytest.raises(NotOwnerError, match=owner.url):
            await other.segments.open(spec, create=True)
        found = await other.members.host.statistics(spec)
        assert found.next_offset == 1

    run(body)


def test_an_idle_segment_is_released_for_whoever_placement_names() -> None:
    async def body(cluster: SimCluster) -> None:
        owner, segment = await owner_of(cluster, "k")
        await asyncio.sleep(1)
        for client in list(cluster._clients):
            await client.close()
        await asyncio.sleep(1)
        (hosted,) = [h for h in owner.broker.segments if h.name.segment_id == segment]
        assert await owner.broker.segments.unload(hosted)
        record = await cluster.metadata.get(keys.segment(hosted.name))
        assert b'"owner": null' in record.value
        await owner.kill()
        started = cluster.loop.time()
        assert await everything(cluster, "reader") == [0]
        assert cluster.loop.time() - started < 30

    run(body)


def test_a_broker_that_comes_back_waits_for_its_earlier_session() -> None:
    """Its earlier life may still write: nobody is the same broker twice at a time."""

    async def body(cluster: SimCluster) -> None:
        broker = cluster.brokers["b1"]
        started = cluster.loop.time()
        await broker.kill()
        await broker.start()
        assert cluster.loop.time() - started > cluster.config.session_timeout / 2
        started = cluster.loop.time()
        await broker.close()
        await broker.start()
        assert cluster.loop.time() - started < 1

    run(body)
