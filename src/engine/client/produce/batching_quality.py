"""How well a producer fills its entries, each of which holds messages of one bucket of one segment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.client.base.html import HtmlRecord
from engine.client.base.options import Batching

Counters = Mapping[tuple[int, int], tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class BucketStatistics(HtmlRecord):
    """What was sealed for one bucket of one segment since the producer was made; bytes are of whole entries, as sealed.

    `fill`: how close its entries came to a limit of batching, on average: 1.0 is full; near 0, a longer delay or fewer
    buckets would make fewer and larger entries.
    """

    entries: int
    messages: int
    bytes: int
    fill: float

    @property
    def messages_per_entry(self) -> float:
        """The mean number of messages of an entry."""
        return self.messages / self.entries


def bucket_statistics(counters: Counters, batching: Batching) -> dict[tuple[int, int], BucketStatistics]:
    """{(segment id, bucket): its record}, from a batcher's counters."""
    return {
        where: BucketStatistics(*counted, fill=_fill(*counted, batching)) for where, counted in sorted(counters.items())
    }


def _fill(entries: int, messages: int, size: int, batching: Batching) -> float:
    nearest = max(messages / batching.max_messages, size / batching.max_bytes)
    return min(nearest / entries, 1.0)
