"""Segments change their owner in order, while clients use them; brokers drain, join, and are balanced.

Over real frames, on virtual time: three brokers that share a metadata store and a disk.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import InvalidArgumentError, NotFoundError, NotOwnerError
from engine.metadata import keys
from engine.model.names import TopicName
from engine.testing.cluster import DEFAULT_CONFIG, SimBroker, SimCluster, simulate
from tests.brokers.test_shared_store import everything, names_of, owners, receive, send

TOPIC = TopicName.parse("orders")
NAMES = ("b1", "b2", "b3")
CONFIG = replace(DEFAULT_CONFIG, balance_enabled=False)
Body = Callable[[SimCluster], Coroutine[Any, Any, None]]


def run(body: Body, segments: int = 6, **config: Any) -> None:
    async def scenario(cluster: SimCluster) -> None:
        for name in NAMES:
            await cluster.start(name)
        await cluster.brokers["b1"].broker.admin.create_topic(str(TOPIC), segments=segments)
        await body(cluster)
        assert not cluster.loop.problems
        assert not cluster.stuck

    simulate(1, scenario, config=replace(CONFIG, **config), shared=True)


def owner_of(cluster: SimCluster, segment: int) -> SimBroker:
    (name,) = [name for name, found in owners(cluster).items() if segment in found]
    return cluster.brokers[name]


def other_than(cluster: SimCluster, broker: SimBroker) -> SimBroker:
    return next(b for b in cluster.brokers.values() if b is not broker and b.broker is not None)


def admin(cluster: SimCluster, name: str = "b1") -> Any:
    return cluster.brokers[name].broker.admin


async def nothing() -> None:
    """Is left to the heir."""


class Traffic:
    """A named producer that sends on and on, and a stream consumer; what was sent is read once, in order per key."""

    def __init__(self, cluster: SimCluster, pause_s: float = 0.05) -> None:
        """`pause_s`: between two batches."""
        self._cluster = cluster
        self._pause_s = pause_s
        self.sent = 0
        self.got: list[int] = []
        self.slowest = 0.0
        self._stopped = False

    async def begin(self) -> None:
        client = self._cluster.client("traffic")
        self._producer = await client.producer(str(TOPIC), name="p")
        self._consumer = await client.stream_consumer(str(TOPIC), "s", initial_position="earliest")
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._receive())]
        await self.go_on(100)

    async def _send(self) -> None:
        time = self._cluster.loop.time
        while not self._stopped:
            begun = time()
            await asyncio.gather(*(self._producer.send(b"%d" % (self.sent + i), key=f"k{i}") for i in range(20)))
            self.slowest = max(self.slowest, time() - begun)
            self.sent += 20
            await asyncio.sleep(self._pause_s)

    async def _receive(self) -> None:
        while not self._stopped or len(set(self.got)) < self.sent:
            batch = await self._consumer.receive_batch(timeout=10)
            self.got += [int(m.value) for m in batch]
            if len(batch):
                await self._consumer.acknowledge_cumulative(batch)

    async def go_on(self, count: int) -> None:
        """Until so many more were sent."""
        upto = self.sent + count
        while self.sent < upto:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        """Check everything."""
        self._stopped = True
        await asyncio.wait_for(asyncio.gather(*self._tasks), 120)
        assert set(self.got) == set(range(self.sent))
        firsts = {value: at for at, value in reversed(list(enumerate(self.got)))}
        for key in range(20):
            of_key = sorted((v for v in firsts if v % 20 == key), key=firsts.__getitem__)
            assert of_key == sorted(of_key), f"the order of key {key}"
        assert await everything(self._cluster, "reader") == list(range(self.sent)), "each is stored once"


def test_o1_a_handover_loses_and_doubles_nothing_and_keeps_the_order() -> None:
    async def body(cluster: SimCluster) -> None:
        traffic = Traffic(cluster)
        await traffic.begin()
        traffic.slowest = 0.0
        for i in range(12):
            owner = owner_of(cluster, i % 6)
            name = (await names_of(cluster))[i % 6]
            to = other_than(cluster, owner)
            await owner.broker.parts.cluster.handovers.hand_over(name, to.url)
            assert owner_of(cluster, i % 6) is to, "it is open at the next owner"
            await traffic.go_on(100)
        assert traffic.slowest < 0.1, "no lease lapses, and no pause before another attempt is waited for"
        await traffic.end()

    run(body)


def test_a_layout_names_the_heir_before_it_has_opened_the_segment() -> None:
    async def body(cluster: SimCluster) -> None:
        await send(await cluster.client("p").producer(str(TOPIC)), range(60))
        (name, *_) = await names_of(cluster)
        owner = owner_of(cluster, 0)
        to, third = [b for b in cluster.brokers.values() if b is not owner]
        hosted = owner.broker.segments.get(name)
        await owner.broker.segments.hand_over(hosted, to.url, nothing)  # the heir was not told
        await asyncio.sleep(0.1)
        assert [await b.broker.members.ownership.resolve(name) for b in cluster.brokers.values()] == [to.url] * 3
        with pytest.raises(NotOwnerError, match=to.url):
            await third.broker.segments.open(await third.broker.service.segment_spec(TOPIC, 0), create=True)
        assert len(await everything(cluster, "reader")) == 60
        assert owner_of(cluster, 0) is to

    run(body)


def test_an_heir_that_dies_is_replaced() -> None:
    async def body(cluster: SimCluster) -> None:
        await send(await cluster.client("p").producer(str(TOPIC)), range(60))
        (name, *_) = await names_of(cluster)
        owner = owner_of(cluster, 0)
        to = other_than(cluster, owner)
        await owner.broker.segments.hand_over(owner.broker.segments.get(name), to.url, nothing)
        await to.kill()
        assert len(await everything(cluster, "reader")) == 60
        assert b'"heir"' not in (await cluster.metadata.get(keys.segment(name))).value

    run(body)


def test_a_broker_that_cannot_be_reached_gets_nothing_and_the_segment_stays() -> None:
    async def body(cluster: SimCluster) -> None:
        traffic = Traffic(cluster)
        await traffic.begin()
        (name, *_) = await names_of(cluster)
        owner = owner_of(cluster, 0)
        to = other_than(cluster, owner)
        cluster.network.partition(owner.name, to.name)
        handovers = owner.broker.parts.cluster.handovers
        with pytest.raises(Exception, match=to.url):
            await handovers.hand_over(name, to.url)
        assert (handovers.given, handovers.failed) == (0, 1)
        assert owner_of(cluster, 0) is owner
        cluster.network.heal()
        await traffic.end()

    run(body)


@pytest.mark.parametrize("strike", ["kill", "isolate"])
def test_an_owner_that_goes_in_the_middle_of_a_handover_loses_nothing(strike: str) -> None:
    async def body(cluster: SimCluster) -> None:
        traffic = Traffic(cluster)
        await traffic.begin()
        (name, *_) = await names_of(cluster)
        owner = owner_of(cluster, 0)
        to = other_than(cluster, owner)
        handovers = owner.broker.parts.cluster.handovers
        owner.workers.stall()
        handing = owner.process.run(asyncio.ensure_future, handovers.hand_over(name, to.url))
        await asyncio.sleep(1)
        assert not handing.done(), "it waits for the disk"
        if strike == "kill":
            await owner.kill()
        else:
            owner.isolate()
            owner.workers.resume()
            await asyncio.sleep(20)
            owner.rejoin()
            await asyncio.wait([handing])
            handing.exception()
        await traffic.go_on(100)
        await traffic.end()

    run(body)


def test_a_new_topic_is_spread_over_all_brokers() -> None:
    async def body(cluster: SimCluster) -> None:
        for number in range(4):
            topic = f"t{number}"
            await admin(cluster).create_topic(topic, segments=8)
            producer = await cluster.client(f"c{number}").producer(topic)
            await send(producer, range(200))
        counts = {name: len(found) for name, found in _open(cluster).items()}
        assert sum(counts.values()) == 32
        assert max(counts.values()) - min(counts.values()) <= 3, counts

    run(body)


def _open(cluster: SimCluster) -> dict[str, list[str]]:
    running = {name: b.broker for name, b in cluster.brokers.items() if b.broker is not None}
    return {name: [str(h.name) for h in broker.segments] for name, broker in running.items()}


def test_a_broker_with_much_traffic_gets_no_new_segments() -> None:
    async def body(cluster: SimCluster) -> None:
        await admin(cluster).create_topic("busy", segments=1)
        producer = await cluster.client("busy").producer("busy")
        await producer.send(b"0")
        busy = next(b for b in cluster.brokers.values() if len(b.broker.segments))
        payload = b"x" * (1 << 20)
        for _ in range(80):
            await asyncio.gather(*(producer.send(payload) for _ in range(8)))
            await asyncio.sleep(0.5)
        said = next(row for row in await admin(cluster).list_brokers() if row["url"] == busy.url)
        assert said["load"] > 10
        assert said["bytesRateIn"] > 10 << 20
        await send(await cluster.client("p").producer(str(TOPIC)), range(60))
        assert len(busy.broker.segments) == 1
        assert sorted(map(len, owners(cluster).values())) == [1, 3, 3]

    run(body)


async def drained(cluster: SimCluster, name: str) -> None:
    broker = cluster.brokers[name].broker
    while broker.parts.cluster.draining.left:  # noqa: ASYNC110 - in virtual time
        await asyncio.sleep(0.1)


def test_a_broker_that_drains_hands_all_over_and_gets_nothing_more() -> None:
    async def body(cluster: SimCluster) -> None:
        traffic = Traffic(cluster)
        await traffic.begin()
        traffic.slowest = 0.0
        leader = next(b for b in cluster.brokers.values() if b.broker.service.led())
        await admin(cluster).drain_broker(leader.url)
        await asyncio.wait_for(drained(cluster, leader.name), 5)
        await traffic.go_on(200)
        assert traffic.slowest < 0.2
        assert not leader.broker.service.led()
        found = {row["url"]: row for row in await admin(cluster, "b2").list_brokers()}
        assert [url for url, row in found.items() if row["draining"]] == [leader.url]
        assert (found[leader.url]["segments"], found[leader.url]["topicsLed"]) == (0, 0)
        assert sum(row["segments"] for row in found.values()) == 6
        await admin(cluster).create_topic("other", segments=6)
        await send(await cluster.client("later").producer("other"), range(60))
        assert not len(leader.broker.segments)
        await admin(cluster).undrain_broker(leader.url)
        await admin(cluster).create_topic("third", segments=6)
        await send(await cluster.client("last").producer("third"), range(60))
        assert len(leader.broker.segments) >= 3, "it has the least load"
        await traffic.end()

    run(body)


def test_the_last_broker_that_takes_segments_is_not_drained() -> None:
    async def body(cluster: SimCluster) -> None:
        for name in ("b1", "b2"):
            await admin(cluster).drain_broker(cluster.brokers[name].url)
        with pytest.raises(InvalidArgumentError, match="alone"):
            await admin(cluster).drain_broker(cluster.brokers["b3"].url)
        with pytest.raises(NotFoundError, match="engine://nowhere"):
            await admin(cluster).drain_broker("engine://nowhere:6650")
        await cluster.brokers["b1"].close()
        await cluster.brokers["b1"].start()
        await asyncio.sleep(0.1)
        assert not cluster.brokers["b1"].broker.members.brokers.draining, (
            "a broker that is started again does not drain"
        )

    run(body)


def test_a_broker_that_is_closed_hands_over_first() -> None:
    """Also while all of them are stopped: the last one has no other to hand over to."""

    async def body(cluster: SimCluster) -> None:
        traffic = Traffic(cluster)
        await traffic.begin()
        traffic.slowest = 0.0
        await cluster.brokers["b2"].close()
        await traffic.go_on(200)
        assert traffic.slowest < 0.2
        assert sum(map(len, owners(cluster).values())) == 6
        await traffic.end()
        begun = cluster.loop.time()
        await asyncio.gather(cluster.brokers["b1"].close(), cluster.brokers["b3"].close())
        assert cluster.loop.time() - begun < CONFIG.drain_timeout

    run(body)


def test_a_broker_that_is_closed_passes_over_one_that_has_just_died() -> None:
    """Its session lives on for a while."""

    async def body(cluster: SimCluster) -> None:
        await send(await cluster.client("p").producer(str(TOPIC)), range(60))
        await cluster.brokers["b2"].kill()
        begun = cluster.loop.time()
        mine = owners(cluster)["b1"]
        await cluster.brokers["b1"].close()
        assert cluster.loop.time() - begun < CONFIG.session_timeout
        assert mine <= owners(cluster)["b3"]
        assert len(await everything(cluster, "reader")) == 60

    run(body)


def test_a_topic_and_a_segment_are_unloaded() -> None:
    async def body(cluster: SimCluster) -> None:
        traffic = Traffic(cluster)
        await traffic.begin()
        b3 = cluster.brokers["b3"]
        before = len(b3.broker.segments)
        moves = await admin(cluster).unload_topic(str(TOPIC), to=b3.url)
        assert len(moves) == 6 - before
        assert owners(cluster)["b3"] == set(range(6))
        assert await admin(cluster).unload_topic(str(TOPIC), to=b3.url) == []
        name = (await names_of(cluster))[2]
        (move,) = await admin(cluster, "b2").unload_segment(str(name))
        assert (move["segment"], move["source"]) == (str(name), b3.url)
        assert owner_of(cluster, 2).url == move["target"] != b3.url
        with pytest.raises(NotFoundError, match="one of"):
            await admin(cluster).unload_topic(str(TOPIC), to="engine://nowhere:6650")
        with pytest.raises(NotFoundError):
            await admin(cluster).unload_segment("segment://public/default/orders/0000-0001-77")
        await traffic.end()

    run(body)


def test_a_topic_is_unloaded_on_the_last_broker_that_is_left_although_it_drains() -> None:
    async def body(cluster: SimCluster) -> None:
        b1 = cluster.brokers["b1"]
        await send(await cluster.client("p").producer(str(TOPIC)), range(60))
        await admin(cluster).drain_broker(b1.url)
        await asyncio.wait_for(drained(cluster, "b1"), 5)
        for name in ("b2", "b3"):
            await cluster.brokers[name].close()
        for first in (60, 120):
            await send(await cluster.client(f"p{first}").producer(str(TOPIC)), range(first, first + 60))
            assert b1.broker.members.brokers.draining
            assert {move["target"] for move in await admin(cluster).unload_topic(str(TOPIC))} == {b1.url}
            assert await admin(cluster).unload_topic(str(TOPIC)) == []
        assert len(await everything(cluster, "reader")) == 180

    run(body)


def test_a_broker_that_joins_gets_segments_from_the_balancer() -> None:
    async def body(cluster: SimCluster) -> None:
        traffic = Traffic(cluster, 1.0)
        await traffic.begin()
        await cluster.start("b4")
        await asyncio.sleep(30)
        counts = {name: len(found) for name, found in owners(cluster).items()}
        assert counts["b4"] >= 2, counts
        assert max(counts.values()) - min(counts.values()) <= 1, counts
        rows = await admin(cluster).list_brokers()
        assert sum(row["balancer"] for row in rows) == 1
        at_rest = owners(cluster)
        await asyncio.sleep(30)
        assert owners(cluster) == at_rest, "nothing goes back and forth"
        await traffic.end()

    run(body, 12, balance_enabled=True, balance_interval=2.0, balance_cooldown=5.0)


def test_a_balancer_that_dies_is_replaced() -> None:
    async def body(cluster: SimCluster) -> None:
        await send(await cluster.client("p").producer(str(TOPIC)), range(100))
        await asyncio.sleep(10)
        first = next(b for b in cluster.brokers.values() if b.broker.parts.cluster.balancer.leading)
        await first.kill()
        await asyncio.sleep(20)
        leading = [b.name for b in cluster.brokers.values() if b.broker and b.broker.parts.cluster.balancer.leading]
        assert len(leading) == 1
        second = cluster.brokers[leading[0]]
        assert (await cluster.metadata.get(keys.BALANCER)).value.decode() == second.url

    run(body, balance_enabled=True, balance_interval=2.0)


def test_a_round_by_command_says_what_it_does_and_waits_for_no_cooldown() -> None:
    async def body(cluster: SimCluster) -> None:
        await send(await cluster.client("p").producer(str(TOPIC)), range(100))
        await admin(cluster).unload_topic(str(TOPIC), to=cluster.brokers["b3"].url)
        would = await admin(cluster, "b2").balance_brokers(dry_run=True)
        assert owners(cluster)["b3"] == set(range(6)), "it was a dry run"
        assert would["imbalance"] == pytest.approx(2.0)
        found = await admin(cluster, "b1").balance_brokers()
        assert found == would
        assert len(found["moves"]) == 4
        assert Counter(map(len, owners(cluster).values())) == {2: 3}
        assert (await admin(cluster, "b3").balance_brokers())["moves"] == []

    run(body)


async def moved(cluster: SimCluster, segment: int = 0) -> SimBroker:
    """Hand a segment over to another broker, which is returned."""
    name = (await names_of(cluster))[segment]
    owner = owner_of(cluster, segment)
    to = other_than(cluster, owner)
    await owner.broker.cluster.handovers.hand_over(name, to.url)
    return to


def test_c2_a_queue_goes_on_at_the_next_owner() -> None:
    """What was acknowledged is not delivered again, what was not comes again."""

    async def body(cluster: SimCluster) -> None:
        client = cluster.client("q")
        await send(await client.producer(str(TOPIC)), range(100))
        consumer = await client.queue_consumer(str(TOPIC), "q", initial_position="earliest")
        first = [await consumer.receive(timeout=5) for _ in range(60)]
        await consumer.acknowledge(first[:40])
        for segment in range(6):
            await moved(cluster, segment)
        rest: set[int] = set()
        while (message := await consumer.receive(timeout=3)) is not None:
            rest.add(int(message.value))
            await consumer.acknowledge(message)
        done = {int(m.value) for m in first[:40]}
        assert not rest & done
        assert rest >= set(range(100)) - {int(m.value) for m in first}
        assert rest | {int(m.value) for m in first} == set(range(100))

    run(body)


@pytest.mark.parametrize("mode", ["exclusive", "wait_for_exclusive", "exclusive_with_fencing"])
def test_a_producer_keeps_its_exclusive_access_over_handovers(mode: str) -> None:
    async def body(cluster: SimCluster) -> None:
        producer = await cluster.client("p").producer(str(TOPIC), access_mode=mode)
        waiting = asyncio.create_task(cluster.client("w").producer(str(TOPIC), access_mode="wait_for_exclusive"))
        await send(producer, range(60))
        for segment in range(6):
            await moved(cluster, segment)
            await send(producer, range(60 + 60 * segment, 120 + 60 * segment))
        assert not waiting.done()
        await producer.close()
        await asyncio.wait_for(waiting, 30)
        await send(waiting.result(), range(420, 480))
        assert await everything(cluster, "reader") == list(range(480))

    run(body)


@pytest.mark.parametrize("commits", [True, False])
def test_t1_a_transaction_goes_on_over_handovers(commits: bool) -> None:
    async def body(cluster: SimCluster) -> None:
        client = cluster.client("t")
        producer = await client.producer(str(TOPIC))
        consumer = await client.stream_consumer(str(TOPIC), "s", initial_position="earliest")
        await send(producer, range(60))
        assert await receive(consumer, 60) == set(range(60))
        transaction = await client.transaction()
        for i in range(60, 120):
            await producer.send(b"%d" % i, key=f"key-{i}", transaction=transaction)
        for segment in range(6):
            await moved(cluster, segment)
        for i in range(120, 180):
            await producer.send(b"%d" % i, key=f"key-{i}", transaction=transaction)
        await (transaction.commit() if commits else transaction.abort())
        for segment in range(6):
            await moved(cluster, segment)
        await send(producer, range(180, 240))
        expected = set(range(60, 240)) if commits else set(range(180, 240))
        assert await receive(consumer, len(expected)) == expected
        everything_there = set(range(60)) | expected
        assert await everything(cluster, "reader") == sorted(everything_there)

    run(body)


def test_a_sealed_segment_with_a_backlog_is_handed_over() -> None:
    async def body(cluster: SimCluster) -> None:
        client = cluster.client("c")
        await send(await client.producer(str(TOPIC)), range(100))
        consumer = await client.stream_consumer(str(TOPIC), "s", initial_position="earliest")
        await admin(cluster).split_segment(str(TOPIC), 0)
        to = await moved(cluster, 0)
        assert to.broker.segments.peek((await names_of(cluster))[0]).segment.sealed
        assert await receive(consumer, 100) == set(range(100))

    run(body)


def test_a_split_while_its_parent_is_handed_over() -> None:
    """One of the two is first; both are done, or the handover is refused."""

    async def body(cluster: SimCluster) -> None:
        traffic = Traffic(cluster)
        await traffic.begin()
        for parent in range(4):
            owner, name = owner_of(cluster, parent), (await names_of(cluster))[parent]
            handing = owner.broker.cluster.handovers.hand_over(name, other_than(cluster, owner).url)
            splitting = admin(cluster).split_segment(str(TOPIC), parent)
            handed, split = await asyncio.gather(handing, splitting, return_exceptions=True)
            assert handed is None or isinstance(handed, NotOwnerError), handed
            assert not isinstance(split, BaseException), split
        await traffic.go_on(200)
        await traffic.end()

    run(body)
