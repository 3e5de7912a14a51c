"""Segments whose lease, or whose topic, has gone without their owner's having been told."""

from __future__ import annotations

import pytest

from engine.errors import NotFoundError
from engine.metadata import keys
from engine.model.names import SegmentName, TopicName
from engine.testing.cluster import SimBroker, SimCluster, simulate

TOPIC = TopicName.parse("orders")


async def owner_of_the_first(cluster: SimCluster) -> tuple[SimBroker, SegmentName]:
    """Two brokers, a topic of one segment, and who owns that."""
    for name in ("b1", "b2"):
        await cluster.start(name)
    await cluster.brokers["b1"].broker.admin.create_topic(str(TOPIC), segments=1)
    producer = await cluster.client("c").producer(str(TOPIC))
    await producer.send(b"1")
    (owner,) = [b for b in cluster.brokers.values() if len(b.broker.segments)]
    (hosted,) = owner.broker.segments
    return owner, hosted.name


def test_a_segment_whose_lease_is_over_is_opened_under_a_new_one() -> None:
    """Its session may have been refreshed at the last moment, so that nobody said that it is over."""

    async def body(cluster: SimCluster) -> None:
        owner, name = await owner_of_the_first(cluster)
        hosting = owner.broker.segments
        before = hosting.get(name)
        before.segment.lease.end()
        assert hosting.get(name) is None
        assert before.closed
        after = await hosting.open(before.spec, create=True)
        assert after.term == before.term + 1
        assert after.segment.lease.term > before.segment.lease.term
        assert after.segment.durable_offset == 1
        after.segment.lease.check()

    simulate(1, body, shared=True)


def test_g2_a_segment_whose_topic_has_gone_is_not_made_again() -> None:
    """Who asks for it may have looked the topic up just before; nobody would delete what is made then."""

    async def body(cluster: SimCluster) -> None:
        owner, name = await owner_of_the_first(cluster)
        hosting = owner.broker.segments
        spec = hosting.get(name).spec
        await cluster.brokers["b1"].broker.admin.delete_topic(str(TOPIC))
        with pytest.raises(NotFoundError, match="was deleted"):
            await hosting.open(spec, create=True)
        assert not any((await hosting.on_disk()).values())
        assert await cluster.metadata.get(keys.segment(name)) is None

    simulate(1, body, shared=True)
