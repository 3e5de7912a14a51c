"""Sealed segments that left the layout and could not be deleted then (semantics 42)."""

from __future__ import annotations

from engine.errors import StorageError
from tests.broker.test_collection import ORDERS, drain, ids, publish, split_topic
from tests.kit.peer import Peer


async def test_a_pruned_segment_whose_deletion_failed_goes_at_the_next_look(start_broker, monkeypatch):
    async with start_broker(retention_time=0.0) as broker:
        peer = await Peer.connect(broker)
        await drain(peer, await split_topic(broker, peer))
        delete, failures = broker.store.delete, [StorageError("the disk is busy")]

        async def fail_first(name, term=None):
            if failures:
                raise failures.pop()
            await delete(name, term)

        monkeypatch.setattr(broker.store, "delete", fail_first)
        sweep = broker.parts.retention.sweep
        await sweep()
        assert await ids(broker) == [1, 2]
        assert sorted(n.segment_id for n in (await broker.segments.on_disk())[ORDERS]) == [0, 1, 2]
        await sweep()
        assert sorted(n.segment_id for n in (await broker.segments.on_disk())[ORDERS]) == [1, 2]
        assert not broker.segments.undeleted


async def test_a_pruned_segment_whose_deletion_failed_goes_with_its_topic(start_broker, monkeypatch):
    async with start_broker(retention_time=0.0) as broker:
        peer = await Peer.connect(broker)
        await drain(peer, await split_topic(broker, peer))

        async def fail(name, term=None):
            raise StorageError("the disk is busy")

        with monkeypatch.context() as busy:
            busy.setattr(broker.store, "delete", fail)
            await broker.parts.retention.sweep()
        assert await ids(broker) == [1, 2]
        await broker.service.delete_topic("orders")
        assert not (await broker.segments.on_disk()).get(ORDERS)
        await broker.service.create_topic("orders")
        peer = await Peer.connect(broker)
        await publish(peer, await peer.segment("orders"))  # the old one would be sealed
        (hosted,) = broker.segments
        assert hosted.segment.next_offset == 5
