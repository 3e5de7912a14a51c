"""How often a message was delivered goes along with its segment, to the owner that follows and to no later one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import engine
from engine.errors import DiskFullError
from engine.testing.cluster import SimCluster
from tests.brokers.test_handover import TOPIC, moved, nothing, other_than, owner_of, run
from tests.brokers.test_shared_store import names_of, owners


def test_c2_counts_of_redeliveries_go_on_at_the_next_owner() -> None:
    """Each time it comes, its count is one more, and in the end it is a dead letter."""

    async def body(cluster: SimCluster) -> None:
        client = cluster.client("q")
        await (await client.producer(str(TOPIC))).send(b"7", key="k")
        consumer = await client.queue_consumer(
            str(TOPIC), "q", initial_position="earliest", dead_letter=engine.DeadLetter(max_redeliveries=4)
        )
        segment = next(s for found in owners(cluster).values() for s in found)
        counts = []
        while (message := await consumer.receive(timeout=5)) is not None:
            counts.append(message.redelivery_count)
            await consumer.negative_acknowledge(message)
            await asyncio.sleep(0.1)
            await moved(cluster, segment)
        assert counts == sorted(set(counts)), counts
        assert 3 <= counts[-1] <= 4

    run(body)


class Refused:
    """A message that comes again each time, since its consumer refuses it."""

    def __init__(self, cluster: SimCluster) -> None:
        self._client = cluster.client("q")
        self.counts: list[int] = []

    async def begin(self) -> None:
        await (await self._client.producer(str(TOPIC))).send(b"7", key="k")
        self._consumer = await self._client.queue_consumer(str(TOPIC), "q", initial_position="earliest")

    async def comes(self, times: int = 1) -> None:
        for _ in range(times):
            message = await self._consumer.receive(timeout=60)
            self.counts.append(message.redelivery_count)
            await self._consumer.negative_acknowledge(message)
            await asyncio.sleep(0.1)


def test_c2_counts_of_redeliveries_go_on_where_a_segment_stays_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(cluster: SimCluster) -> None:
        refused = Refused(cluster)
        await refused.begin()
        await refused.comes(3)
        owner = owner_of(cluster, 0)

        async def full(*_: Any) -> None:
            raise DiskFullError("the disk must have space for a commit, got none")

        with monkeypatch.context() as patched:
            patched.setattr(owner.broker.members.ownership, "leave", full)
            with pytest.raises(DiskFullError):
                await moved(cluster)
        await refused.comes(2)
        assert owner_of(cluster, 0) is owner
        assert refused.counts == [0, 1, 2, 3, 4]

    run(body, 1)


def test_counts_of_redeliveries_of_a_handover_that_failed_are_not_applied_at_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(cluster: SimCluster) -> None:
        refused = Refused(cluster)
        await refused.begin()
        await refused.comes(3)
        owner = owner_of(cluster, 0)
        to = other_than(cluster, owner)

        async def full(*_: Any) -> None:
            raise DiskFullError("the disk must have space for a commit, got none")

        with monkeypatch.context() as patched:
            patched.setattr(owner.broker.members.ownership, "leave", full)
            with pytest.raises(DiskFullError):
                await moved(cluster)
        await refused.comes()
        (name,) = await names_of(cluster)
        await owner.broker.segments.hand_over(owner.broker.segments.get(name), to.url, nothing)
        await refused.comes()
        assert owner_of(cluster, 0) is to
        assert refused.counts == [0, 1, 2, 3, 0], "nothing was handed over with it"

    run(body, 1)
