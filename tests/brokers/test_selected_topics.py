"""What a broker hears of topics does not grow with those that others serve."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.control.base.topic_records import INDEX_CONTROLLERS
from engine.metadata.store import Event, EventKind
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


@pytest.mark.parametrize("topics", [3, 30])
def test_leaders_of_topics_that_others_serve_are_not_heard_of(topics: int, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: Counter[int] = Counter()
    original = FaultyMetadataStore.watch_index

    def watch_index(self: FaultyMetadataStore, index: str, start: str, end: str) -> Any:
        watch = original(self, index, start, end)
        return Counted(watch, heard, id(self)) if index == INDEX_CONTROLLERS else watch

    monkeypatch.setattr(FaultyMetadataStore, "watch_index", watch_index)

    async def scenario(cluster: SimCluster) -> None:
        await cluster.start("b1")
        await cluster.start("b2")
        b1, b2 = cluster.brokers["b1"], cluster.brokers["b2"]
        assert b1.broker is not None
        assert b2.broker is not None
        names = [f"topic://public/default/t{i}" for i in range(topics)]
        for name in names:
            await b1.broker.admin.create_topic(name)
            await b1.broker.admin.create_subscription(name, "s", kind="queue")
        await asyncio.sleep(1)  # virtual: what was written is heard
        assert heard[id(b1.metadata)] >= topics, "it leads them"
        assert heard[id(b2.metadata)] == 0, "it serves none of them"

    simulate(3, scenario, shared=True)
