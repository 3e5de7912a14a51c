"""Brokers that share no disk, but an object store: their records, what they refuse, what survives a machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.broker.hosting.object_logs import ObjectLogs
from engine.broker.hosting.ownership import INDEX_LOGS, Owner
from engine.errors import EngineError, FencedError, InvalidArgumentError, UnsupportedError
from engine.metadata import keys
from engine.model.names import TopicName
from engine.model.positions import Checkpoint
from engine.storage.objects import records
from engine.storage.objects.references import Reference, SegmentObjects
from engine.testing.cluster import SimBroker, SimCluster, simulate

TOPIC = TopicName.parse("orders")
Body = Callable[[SimCluster], Coroutine[Any, Any, None]]


def run(body: Body, *names: str, seed: int = 1, segments: int = 1) -> None:
    """A cluster with a topic."""

    async def scenario(cluster: SimCluster) -> None:
        for name in names or ("b1",):
            await cluster.start(name)
        await cluster.brokers["b1"].broker.admin.create_topic(str(TOPIC), segments=segments)
        await body(cluster)
        assert not cluster.loop.problems

    simulate(seed, scenario, objects=True)


async def send(cluster: SimCluster, numbers: range, **options: Any) -> None:
    producer = await cluster.client(f"p{numbers.start}").producer(str(TOPIC), **options)
    for i in numbers:
        await producer.send(str(i).encode(), key=f"key-{i}")
    await producer.close()


async def everything(cluster: SimCluster) -> list[int]:
    consumer = await cluster.client("reader").checkpoint_consumer(str(TOPIC), start=Checkpoint.earliest())
    found: list[int] = []
    while len(batch := await consumer.receive_batch(timeout=5)):
        found += [int(m.value) for m in batch]
    await consumer.close()
    return sorted(found)


async def record(cluster: SimCluster, segment: int = 0) -> tuple[Owner, SegmentObjects]:
    found = await cluster.metadata.get(f"{keys.segments(TOPIC)}{segment}")
    owner = Owner.of(found)
    assert owner.objects is not None
    indexed = await cluster.metadata.list_index(INDEX_LOGS, "", "~")
    mine = [index_key for index_key, each in indexed if found is not None and each.key == found.key]
    assert mine == sorted({each.session for each in owner.objects.wal}), "the index says which logs it refers to"
    return owner, owner.objects


def logs(broker: SimBroker) -> ObjectLogs:
    found = broker.broker.parts.cluster.members.objects
    assert found is not None
    return found


async def lose(broker: SimBroker) -> None:
    """The machine is lost, and another one takes its place."""
    await broker.lose_machine()
    await broker.start()


def test_r1_r2_r3_each_owner_adds_its_log_to_the_list() -> None:
    async def body(cluster: SimCluster) -> None:
        broker, terms, sessions = cluster.brokers["b1"], [], []
        for life in range(3):
            await send(cluster, range(10 * life, 10 * life + 10))
            owner, objects = await record(cluster)
            terms.append(objects.wal[-1].term)
            sessions.append(objects.wal[-1].session)
            assert [each.session for each in objects.wal] == sessions
            assert [each.term for each in objects.wal] == terms == sorted(terms)
            assert [each.end is None for each in objects.wal] == [*[False] * life, True]
            assert owner.born == terms[0], "the segment is that of its first owner"
            await lose(broker)
        assert await everything(cluster) == list(range(30))
        assert len(set(sessions)) == 3, "no session is used twice"
        for session in sessions:
            assert (await records.read(cluster.metadata, session)).record.fenced is not None

    run(body)


def test_r9_what_is_handed_over_or_unloaded_has_an_end() -> None:
    async def body(cluster: SimCluster) -> None:
        await send(cluster, range(10))
        first, _ = await record(cluster)
        heir = next(b for b in cluster.brokers.values() if b.url != first.url)
        owner = next(b for b in cluster.brokers.values() if b.url == first.url)
        (hosted,) = owner.broker.segments
        assert logs(owner).of(hosted.name) is not None
        await owner.broker.parts.cluster.handovers.hand_over(hosted.name, heir.url)
        assert logs(owner).of(hosted.name) is None, "nothing is kept of what is not open"
        _, objects = await record(cluster)
        assert objects.wal[0].end is not None
        assert (await records.read(cluster.metadata, objects.wal[0].session)).record.fenced is None, "it goes on"
        await send(cluster, range(10, 20))
        (hosted,) = heir.broker.segments
        while not await heir.broker.segments.unload(hosted):
            await cluster.client("c").close()
            hosted = heir.broker.segments.peek(hosted.name)
        assert logs(heir).of(hosted.name) is None
        _, objects = await record(cluster)
        assert objects.open_sessions() == []
        assert await everything(cluster) == list(range(20))

    run(body, "b1", "b2")


def test_the_footer_of_an_empty_file_is_not_taken_for_its_beginning() -> None:
    """Else the next owner would look for the header behind the object that has it."""

    async def body(cluster: SimCluster) -> None:
        broker = cluster.brokers["b1"]
        producer = await cluster.client("p").producer(str(TOPIC), access_mode="exclusive")  # opens the segment
        (hosted,) = broker.broker.segments
        backing = logs(broker).of(hosted.name)
        assert backing is not None
        while backing.begun(0) is None or backing.wal.writer.acknowledged <= backing.begun(0):
            await hosted.segment.end_file()
            await asyncio.sleep(1)
        header = backing.begun(0)
        await producer.close()
        await broker.broker.admin.split_segment(str(TOPIC), 0)
        assert hosted.segment.sealed
        assert backing.wal.next_n > header + 1, "the footer is in another object"
        assert backing.begun(0) == header
        await lose(broker)
        await send(cluster, range(5))
        assert await everything(cluster) == list(range(5))

    run(body)


def test_r8_a_broker_whose_session_is_over_goes_on_with_another() -> None:
    async def body(cluster: SimCluster) -> None:
        broker = cluster.brokers["b1"].broker
        await send(cluster, range(10), name="p")
        over = broker.members.objects.wal
        over.writer.end(FencedError("as by another broker"))
        await send(cluster, range(10, 20), name="q")
        assert broker.members.objects.wal is not over
        assert await everything(cluster) == list(range(20))

    run(body, segments=3)


def test_r2_nothing_is_served_by_a_session_that_was_fenced() -> None:
    async def body(cluster: SimCluster) -> None:
        broker = cluster.brokers["b1"].broker
        over = broker.members.objects.wal
        await records.set_fenced(cluster.metadata, over.session, 0)
        await send(cluster, range(10))
        _, objects = await record(cluster)
        assert over.session not in [each.session for each in objects.wal]
        assert await everything(cluster) == list(range(10))

    run(body)


def test_a_store_that_accepts_both_is_refused_at_the_start() -> None:
    async def body(cluster: SimCluster) -> None:
        cluster.objects.accepts_both = True
        with pytest.raises(UnsupportedError, match="accepts two conditional PUTs"):
            await cluster.start("b2")

    run(body)


def test_the_durability_is_object_and_others_are_refused_with_the_reason() -> None:
    async def body(cluster: SimCluster) -> None:
        admin = cluster.brokers["b1"].broker.admin
        assert (await admin.get_metadata(str(TOPIC)))["durability"] == "object"
        for refused in ("fsync", "os"):
            with pytest.raises(UnsupportedError, match=f"got '{refused}': its brokers share no disk"):
                await admin.create_topic("other", durability=refused)
        with pytest.raises(InvalidArgumentError, match="durability must be"):
            await admin.create_topic("other", durability="none")

    run(body)


def test_object_is_refused_where_there_is_no_store() -> None:
    async def scenario(cluster: SimCluster) -> None:
        admin = (await cluster.start("b1")).broker.admin
        with pytest.raises(UnsupportedError, match="got 'object': it has no object store"):
            await admin.create_topic("other", durability="object")

    simulate(1, scenario, shared=True)


def test_what_is_acknowledged_costs_no_write_of_metadata_and_no_sync() -> None:
    async def body(cluster: SimCluster) -> None:
        producer = await cluster.client("p").producer(str(TOPIC))
        await producer.send(b"opens the segment")
        (hosted,) = cluster.brokers["b1"].broker.segments

        async def counts() -> tuple[dict[str, int], int, int]:
            found = await cluster.metadata.list("", "\U0010ffff")
            versions = {each.key: each.stat.version for each in found if not each.key.startswith(keys.BROKERS)}
            counters = hosted.segment._commit.counters
            return versions, counters.syncs, counters.commits

        versions, syncs, commits = await counts()
        for number in range(50):
            await producer.send(b"%d" % number)
        assert await counts() == (versions, syncs, commits + 50)
        await producer.close()

    run(body)


def test_requests_are_counted_by_kind() -> None:
    async def body(cluster: SimCluster) -> None:
        await send(cluster, range(10))
        page = await cluster.brokers["b1"].broker.admin.get_metrics()
        lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("engine_object_requests"))
        puts = int(float(lines['engine_object_requests_total{kind="put"}']))
        assert puts >= 10, "a message each, one by one"
        assert {line.split('"')[1] for line in lines} == {"put", "get", "list", "delete", "multipart"}

    run(body)


def test_shapes_transactions_delays_seeks_and_duplicates_outlive_the_machine() -> None:
    async def body(cluster: SimCluster) -> None:
        broker, client = cluster.brokers["b1"], cluster.client("t")
        await send(cluster, range(20), name="p")
        await broker.broker.admin.split_segment(str(TOPIC), 0)
        await send(cluster, range(20, 40), name="p")
        producer = await client.producer(str(TOPIC), name="q")
        async with client.transaction() as transaction:
            for i in range(40, 50):
                await producer.send(str(i).encode(), key=f"key-{i}", transaction=transaction)
        queue = await client.queue_consumer(str(TOPIC), "q", initial_position="latest")
        await producer.send(b"50", key="late", deliver_after=30.0)
        await lose(broker)
        assert await everything(cluster) == list(range(51))
        late = await queue.receive(timeout=120)
        assert late.value == b"50"
        await queue.acknowledge(late)
        first, second = await children(broker)
        for segment in (first, second):
            _, objects = await record(cluster, segment)
            assert objects.inherited is not None, "what the parent knew of producers"
        await broker.broker.admin.merge_segments(str(TOPIC), first, second)
        await lose(broker)
        assert not await duplicates(cluster, broker, "p")
        stream = await client.stream_consumer(str(TOPIC), "s", initial_position="latest")
        await stream.close()
        await broker.broker.admin.seek_subscription(str(TOPIC), "s", "earliest")
        stream = await client.stream_consumer(str(TOPIC), "s")
        found: set[int] = set()
        while len(found) < 51:
            batch = await stream.receive_batch(timeout=30)
            assert len(batch)
            found.update(int(message.value) for message in batch)
            await stream.acknowledge_cumulative(batch)

    run(body)


async def children(broker: SimBroker) -> list[int]:
    view = await broker.broker.service.ensure_topic(TOPIC)
    return [info.segment_id for info in view.layout.active]


async def duplicates(cluster: SimCluster, broker: SimBroker, producer: str) -> bool:
    """Whether the segment that is active now has forgotten what a producer had sent."""
    (active,) = await children(broker)
    again = await cluster.client("again").producer(str(TOPIC), name=producer)
    (hosted,) = [h for h in broker.broker.segments if h.name.segment_id == active]
    known = hosted.segment.last_sequence(producer)
    await again.close()
    return known < 39


def test_the_record_is_what_the_page_says() -> None:
    owner = Owner("engine://a", 7, 3, 5, objects=SegmentObjects((Reference("s", 1, None, 5),)))
    assert json.loads(owner.to_json()) == {
        "owner": "engine://a", "session": 7, "term": 3, "born": 5, "wal": [["s", 1, None, 5]],
    }  # fmt: skip
    assert issubclass(FencedError, EngineError)


def test_messages_wait_as_long_as_their_topic_says_for_others_to_be_stored_with_them() -> None:
    async def scenario(cluster: SimCluster) -> None:
        broker = (await cluster.start("b1")).broker
        assert broker is not None
        assert broker.members.objects is not None
        log, loop = broker.members.objects.wal, cluster.loop
        for topic in ("usual", "urgent"):
            await broker.admin.create_topic(topic, segments=1)
        await broker.admin.set_namespace_policies("public/default", {"flush_interval_ms": 800})
        await broker.admin.set_topic_policies("urgent", {"flush_interval_ms": 20})
        usual, urgent = [await cluster.client("c").producer(topic) for topic in ("usual", "urgent")]

        async def sent(producer: Any, count: int) -> tuple[float, int]:
            """Seconds, and PUTs."""
            began, before = loop.time(), log.next_n
            for i in range(count):
                await producer.send(b"%d" % i)
            return loop.time() - began, log.next_n - before

        await asyncio.gather(sent(usual, 1), sent(urgent, 1))  # segments are opened
        took, puts = await sent(usual, 2)
        assert took >= 1.6
        assert puts == 2
        took, puts = await sent(urgent, 5)
        assert 0.1 <= took < 0.8
        assert puts == 5
        (took, puts), _ = await asyncio.gather(sent(usual, 1), sent(urgent, 1))
        assert took < 0.4, "it goes along with the urgent one"
        assert puts == 1

    simulate(1, scenario, objects=True)
