"""A commit whose broker is cut off from the metadata store, or from the client, goes over another broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.testing.cluster import SimCluster
from tests.brokers.test_shared_store import TOPIC, everything, owners, run

Fault = Callable[[SimCluster], Any]
HOME = "b1"  # the broker whose URL the client was given


def isolated(cluster: SimCluster) -> None:
    cluster.brokers[HOME].isolate()


def frozen(cluster: SimCluster) -> None:
    cluster.brokers[HOME].suspend()


async def killed(cluster: SimCluster) -> None:
    await cluster.brokers[HOME].kill()


async def keys_elsewhere(cluster: SimCluster, producer: Any) -> list[str]:
    """Keys whose messages go to segments of other brokers than HOME; the producer is attached to these."""
    found = []
    for i in range(100):
        segment = (await producer.send(b"0", key=f"key-{i}")).segment_id
        if segment not in owners(cluster)[HOME]:
            found.append(f"key-{i}")
    assert len(found) > 10
    return found


@pytest.mark.parametrize("fault", [isolated, frozen, killed])
@pytest.mark.parametrize("flushed", [True, False])
def test_a_commit_goes_over_another_broker(fault: Fault, flushed: bool) -> None:
    async def body(cluster: SimCluster) -> None:
        client = cluster.client("c", cluster.brokers[HOME])
        producer = await client.producer(str(TOPIC))
        keys = await keys_elsewhere(cluster, producer)
        txn = await client.transaction(timeout=120.0)
        for number, key in enumerate(keys, 1):
            producer.send_nowait(str(number).encode(), key=key, transaction=txn)
        if flushed:
            await txn.flush()
        broken = fault(cluster)
        if broken is not None:
            await broken
        await txn.commit()
        assert txn.state == "COMMITTED"
        async with client.transaction(timeout=120.0) as further:
            await producer.send(b"0", key=keys[0], transaction=further)
        assert further.state == "COMMITTED"
        if fault is frozen:
            cluster.brokers[HOME].resume()
        elif fault is isolated:
            cluster.brokers[HOME].rejoin()
        found = await everything(cluster, "reader")
        assert found == [0] * 101 + list(range(1, len(keys) + 1))

    run(body)
