"""Transactions over several brokers that share a metadata store and a disk: who sweeps, who applies, who takes over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.errors import TransactionNotFoundError
from engine.model.transactions import PARTITIONS, TransactionState, parse_id
from engine.testing.cluster import SimCluster
from tests.brokers.test_shared_store import TOPIC, owners, run, send

SUBSCRIPTION = "q"


async def taken(consumer: Any, txn: Any) -> set[int]:
    """What comes, 60 messages in all, acknowledged in a transaction or in none."""
    found: list[int] = []
    while len(found) < 60:
        batch = await consumer.receive_batch(timeout=30)
        assert len(batch), f"only {len(found)} came"
        await consumer.acknowledge(batch, transaction=txn)
        found += [int(m.value) for m in batch]
    return set(found)


def test_every_partition_is_swept_by_one_of_those_that_live() -> None:
    async def body(cluster: SimCluster) -> None:
        shares = [b.broker.transactions.partitions for b in cluster.brokers.values() if b.broker is not None]
        assert sorted(p for share in shares for p in share) == list(range(PARTITIONS))
        await cluster.brokers["b2"].close()
        await asyncio.sleep(60)
        shares = [b.broker.transactions.partitions for b in cluster.brokers.values() if b.broker is not None]
        assert sorted(p for share in shares for p in share) == list(range(PARTITIONS))

    run(body)


@pytest.mark.parametrize("outcome", ["commit", "abort", "timeout"])
def test_what_is_held_is_applied_by_the_next_owner(outcome: str) -> None:
    """An owner dies with acknowledgements of an open transaction; others own its segments, and end what it left."""

    async def body(cluster: SimCluster) -> None:
        await send(await cluster.client("p").producer(str(TOPIC)), range(60))
        client = cluster.client("q")
        consumer = await client.queue_consumer(str(TOPIC), SUBSCRIPTION, initial_position="earliest")
        txn = await client.transaction(timeout=120.0)
        assert await taken(consumer, txn) == set(range(60))
        number = parse_id(txn.id)
        await consumer.close()
        victim = next(name for name, share in owners(cluster).items() if share and name != "b1")
        await cluster.brokers[victim].kill()
        coordinator = cluster.brokers["b1"].broker.transactions.coordinator
        if outcome == "timeout":
            await asyncio.sleep(150)
        else:
            await coordinator.end(
                number, TransactionState.COMMITTED if outcome == "commit" else TransactionState.ABORTED
            )
        await asyncio.sleep(300)  # longer than sessions live, and headers are kept
        with pytest.raises(TransactionNotFoundError):
            await coordinator.get(number)
        again = await cluster.client("r").queue_consumer(str(TOPIC), SUBSCRIPTION)
        if outcome == "commit":
            assert await again.receive(timeout=10) is None
        else:
            assert await taken(again, None) == set(range(60))

    run(body)
