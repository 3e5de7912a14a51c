"""What a broker hears of topics does not grow with those that others serve."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.broker.hosting.ownership import INDEX_OWNERS
from engine.client.topic.session import TopicSession
from engine.control.base.topic_records import INDEX_CONTROLLERS, INDEX_TOPICS
from engine.metadata.store import Event, EventKind
from engine.model.names import TopicName
from engine.testing.cluster import SimCluster, simulate
from engine.testing.metadata import FaultyMetadataStore


class Counted:
    """A watch that counts its events under the store that it is of."""

    def __init__(self, watch: Any, heard: Counter[int], store: int) -> None:
        self._watch, self._heard, self._store = watch, heard, store
        self.close = watch.close

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for event in self._watch:
            self._heard[self._store] += event.kind is not EventKind.SNAPSHOT_END
            yield event


@pytest.mark.parametrize("index", [INDEX_CONTROLLERS, INDEX_OWNERS, INDEX_TOPICS])
@pytest.mark.parametrize("topics", [3, 30])
def test_topics_that_others_serve_are_not_heard_of(topics: int, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither their leaders, nor the owners of their segments, nor their layouts."""
    heard: Counter[int] = Counter()
    original = FaultyMetadataStore.watch_index

    def watch_index(self: FaultyMetadataStore, watched: str, start: str, end: str) -> Any:
        watch = original(self, watched, start, end)
        return Counted(watch, heard, id(self)) if watched == index else watch

    monkeypatch.setattr(FaultyMetadataStore, "watch_index", watch_index)

    async def scenario(cluster: SimCluster) -> None:
        await cluster.start("b1")
        b1 = cluster.brokers["b1"]
        assert b1.broker is not None
        names = [f"topic://public/default/t{i}" for i in range(topics)]
        client = cluster.client("c", b1)
        for name in names:
            await b1.broker.admin.create_topic(name)
            await b1.broker.admin.create_subscription(name, "s", kind="queue")
            async with await client.producer(name) as producer:
                await producer.send(b"1")
        await cluster.start("b2")
        b2 = cluster.brokers["b2"]
        await asyncio.sleep(1)  # virtual: what was written is heard
        assert heard[id(b1.metadata)] >= topics, "it serves them"
        assert heard[id(b2.metadata)] == 0, "it serves none of them"
        async with await cluster.client("d", b2).producer(names[0]) as producer:
            await producer.send(b"2")
        assert 0 < heard[id(b2.metadata)] < 10, "and now one"

    simulate(3, scenario, shared=True)


def test_a_client_is_told_where_owners_are_not_those_that_placement_names() -> None:
    """Its first layout waits for the owners, although this broker was not asked for the topic before."""

    async def scenario(cluster: SimCluster) -> None:
        await cluster.start("b1")
        b1 = cluster.brokers["b1"]
        assert b1.broker is not None
        names = [f"topic://public/default/t{i}" for i in range(8)]
        for name in names:
            await b1.broker.admin.create_topic(name, segments=1)
            async with await cluster.client("c").producer(name) as producer:
                await producer.send(b"1")
        for name in ("b2", "b3", "b4"):
            await cluster.start(name)
        later = cluster.client("d", cluster.brokers["b4"])
        for name in names:
            layout = await TopicSession(later._pool, TopicName.parse(name)).open()
            assert [view.url for view in layout.segments.values()] == [b1.url]

    simulate(5, scenario, shared=True)
