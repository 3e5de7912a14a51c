"""Memory of topic lists beside their permits: a namespace is read, and lists with filters are made of it (PIP-442)."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

from engine.aio.memory_limiter import LimitType
from engine.broker.pools.pools import BrokerMemory
from engine.broker.settings.config import BrokerConfig
from engine.clock import SystemClock
from engine.control.base.topic_records import ScalableTopicResources
from engine.control.topic.topic_lists import TopicLists
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import ABSENT
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName
from engine.model.topic_filter import TopicFilter

FILTERS = ("", ".*[0-9]", "[^x]*", ".*0.*")  # all, all, all, and most of the names


async def bytes_beside_permits(topics: int) -> tuple[int, int]:
    """(the most at any moment that no permit covers, what stays when all lists are made), allocated by Python.

    The records are those of a store in memory, and not counted.
    """
    resources = ScalableTopicResources(MemoryMetadataStore(SystemClock()))
    for number in range(topics):
        name = TopicName("public", "default", f"topic-{number:012}")
        await resources.save_topic(name, SegmentLayout.create(now_ms=number), ABSENT)
    lists = TopicLists(resources)
    limiter = lists.memory = BrokerMemory(BrokerConfig()).topic_lists
    gc.collect()
    tracemalloc.start()
    try:
        made = asyncio.gather(*(lists.open("public/default", TopicFilter({}, each)) for each in FILTERS))
        most = 0
        while not made.done():
            used = limiter.statistics()[LimitType.HEAP_MEMORY].used
            most = max(most, tracemalloc.get_traced_memory()[0] - used)
            await asyncio.sleep(0)
        await made
        return most, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
