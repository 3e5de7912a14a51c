"""A segment whose log has failed: consumers have all that is durable, and cost nothing at its end."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import CorruptionError
from engine.storage.segment import Segment
from tests.kit.peer import Peer, make_entries


@pytest.mark.parametrize("mode", ["reader", "exclusive", "queue", "shared"])
async def test_a_consumer_at_the_end_of_a_failed_segment_waits_and_is_served_what_is_durable(
    broker, mode: str, monkeypatch: pytest.MonkeyPatch
):
    peer = await Peer.connect(broker)
    segment = await peer.segment("orders")
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries([b"%d" % i for i in range(10)], per_entry=5))
    await peer.receipts(producer, 2)
    (hosted,) = broker.segments
    more = {"start": 0} if mode == "reader" else {}
    more |= {"bucketBoundaries": list(hosted.spec.bucket_ends)} if mode == "shared" else {}
    await peer.messages(await peer.consumer(segment, mode, **more), 10)
    reads, read = [0], Segment.read

    def counted(*args, **options):
        reads[0] += 1
        return read(*args, **options)

    monkeypatch.setattr(Segment, "read", counted)
    hosted.segment.file_failed(CorruptionError("the file cannot be begun"))
    for _ in range(200):
        await asyncio.sleep(0)
    assert reads[0] <= 4, "it asks again and again"
    late = await peer.consumer(segment, "reader", None, start=0)
    assert len(await peer.messages(late, 10)) == 10
    await hosted.segment.when_durable(10)
