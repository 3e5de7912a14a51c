"""What a producer says of how well its entries are filled."""

from __future__ import annotations

import pytest

from engine.client.base.options import Batching
from engine.client.produce.batching_quality import bucket_statistics
from engine.limits import KIB
from tests.kit.fake_broker import FakeBroker

LIMITS = Batching(max_bytes=KIB, max_messages=10)


@pytest.mark.parametrize(
    ("counted", "messages_per_entry", "fill"),
    [
        ((1, 10, 200), 10, 1.0),  # full of messages
        ((2, 10, 200), 5, 0.5),
        ((4, 4, 2 * KIB), 1, 0.5),  # half full of bytes
        ((1, 1, 5 * KIB), 1, 1.0),  # one message larger than the limit
    ],
)
def test_fill_is_how_near_a_limit_entries_come(
    counted: tuple[int, int, int], messages_per_entry: float, fill: float
) -> None:
    [(where, found)] = bucket_statistics({(3, 1): counted}, LIMITS).items()
    assert where == (3, 1)
    assert (found.entries, found.messages, found.bytes) == counted
    assert (found.messages_per_entry, found.fill) == (messages_per_entry, pytest.approx(fill))


async def test_a_producer_reports_each_bucket_of_each_segment() -> None:
    broker = FakeBroker(segments=2, buckets=4)
    async with broker.client() as client, await client.producer("t") as producer:
        assert producer.statistics().buckets == {}
        for i in range(400):
            producer.send_nowait(b"v", key=b"%d" % i)
        await producer.flush()
        found = producer.statistics()
        assert found.buckets.keys() == {(segment, bucket) for segment in range(2) for bucket in range(4)}
        assert sum(b.messages for b in found.buckets.values()) == found.messages_sent == 400
        assert sum(b.entries for b in found.buckets.values()) == found.entries_sent
        assert all(b.messages_per_entry > 20 for b in found.buckets.values())
