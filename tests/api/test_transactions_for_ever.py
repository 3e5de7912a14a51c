"""What was committed stays visible and what was aborted stays hidden when nothing remembers the transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

import engine

CONFIG = {"transaction_retention_time": 0.0, "transaction_sweep_interval": 0.02}
TOPIC = "orders"


async def values(client: engine.AsyncClient, count: int) -> list[bytes]:
    """Every message from the first on; `count` are expected."""
    async with await client.checkpoint_consumer(TOPIC, start=engine.Checkpoint.earliest()) as consumer:
        found: list[bytes] = []
        while len(found) < count:
            batch = await consumer.receive_batch(timeout=10.0)
            assert len(batch), f"only {found} came"
            found += [message.value for message in batch]
        return sorted(found)


async def forgotten(client: engine.AsyncClient, number: str) -> None:
    """Wait until no broker knows the transaction."""
    while True:
        try:
            await client.join_transaction(number)
        except engine.TransactionNotFoundError:
            return


@pytest.mark.parametrize("split", [False, True])
async def test_behind_collection_and_restart(tmp_path: Path, split: bool) -> None:
    numbers = []
    async with engine.open_async(tmp_path / "data", config=CONFIG) as client:
        await client.admin.create_topic(TOPIC, segments=1)
        async with await client.producer(TOPIC) as producer:
            for number in range(6):
                transaction = await client.transaction()
                for key in range(4):
                    await producer.send(b"%d-%d" % (number, key), key=b"k%d" % key, transaction=transaction)
                if split and number % 2:
                    segments = (await client.admin.get_metadata(TOPIC))["segments"].values()
                    await client.admin.split_segment(TOPIC, max(s["segmentId"] for s in segments))
                await (transaction.commit() if number % 2 else transaction.abort())
                numbers.append(transaction.id)
            await producer.send(b"plain", key=b"k0")
        for number in numbers:
            await forgotten(client, number)
    expected = sorted([b"plain", *(b"%d-%d" % (number, key) for number in (1, 3, 5) for key in range(4))])
    for _ in range(2):
        async with engine.open_async(tmp_path / "data", config=CONFIG) as client:
            assert await values(client, len(expected)) == expected
            for number in numbers:
                with pytest.raises(engine.TransactionNotFoundError):
                    await client.join_transaction(number)


async def test_one_that_was_forgotten_is_aborted_and_holds_up_nobody(tmp_path: Path) -> None:
    async with (
        engine.open_async(tmp_path / "data", config=CONFIG) as client,
        await client.producer(TOPIC) as producer,
        await client.queue_consumer(TOPIC, "q") as queue,
    ):
        transaction = await client.transaction(timeout=0.2)
        await producer.send(b"never", key=b"k", transaction=transaction)
        await producer.send(b"behind it", key=b"k")
        message = await queue.receive(timeout=10.0)
        assert message is not None
        assert message.value == b"behind it"
        with pytest.raises((engine.TransactionConflictError, engine.TransactionNotFoundError)):
            await transaction.commit()
