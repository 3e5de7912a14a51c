"""No space left on the device, as a user sees it."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator

import pytest

import engine
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.client.local import LocalClient
from engine.clock import SystemClock
from engine.metadata.memory import MemoryMetadataStore
from engine.testing.disk import Fault, SimDisk
from engine.testing.workers import SimWorkers


@pytest.fixture
def disk() -> SimDisk:
    """The machine's."""
    return SimDisk(random.Random(1))


@pytest.fixture
async def client(disk: SimDisk) -> AsyncIterator[engine.AsyncClient]:
    """A client of a broker on that disk."""
    broker = Broker(
        "/data",
        config=BrokerConfig(),
        disk=disk.mount(),
        metadata=MemoryMetadataStore(SystemClock()),
        executor=SimWorkers(random.Random(2)),
    )
    await broker.start()
    async with LocalClient(broker.accept, "engine://embedded", broker.admin) as client:
        yield client
    await broker.close()


async def test_a_full_disk_is_a_typed_error_and_passes(client: engine.AsyncClient, disk: SimDisk):
    """send() raises DiskFullError, so does what was sent behind it; the producer works again when there is space."""
    producer = await client.producer("t", batching=engine.Batching(max_messages=1))
    first = await producer.send(b"0", key=b"k")
    disk.faults.append(Fault("write", errno.ENOSPC, ".log"))
    values = [b"%d" % n * 400_000 for n in range(1, 6)]  # more than what was set aside on the disk before
    sends = [asyncio.ensure_future(producer.send(value, key=b"k")) for value in values]
    outcomes = await asyncio.gather(*sends, return_exceptions=True)
    failed = [o for o in outcomes if isinstance(o, BaseException)]
    assert failed
    for error in failed:
        assert isinstance(error, engine.DiskFullError)
        assert error.retryable
        assert "no space left" in str(error)
    after = await producer.send(b"again", key=b"k")
    assert after > first
    async with await client.checkpoint_consumer("t", start=engine.Checkpoint.earliest()) as reader:
        stored = [m async for m in until(reader, after)]
    written = [value for value, o in zip(values, outcomes, strict=True) if isinstance(o, engine.MessageId)]
    assert [m.value for m in stored] == [b"0", *written, b"again"]
    await producer.close()


async def test_flush_raises_what_befell_messages_that_nobody_waits_for(client: engine.AsyncClient, disk: SimDisk):
    errors: list[Exception] = []
    producer = await client.producer("t", on_error=errors.append)
    disk.faults.append(Fault("write", errno.ENOSPC, ".log"))
    producer.send_nowait(b"x")
    with pytest.raises(engine.DiskFullError):
        await producer.flush()
    assert [type(e) for e in errors] == [engine.DiskFullError]
    await producer.flush()  # it was reported
    producer.send_nowait(b"y")
    await producer.close()
    assert producer.statistics().messages_failed == 1
    assert producer.statistics().pending_bytes == 0


async def test_an_on_error_that_raises_is_logged(
    client: engine.AsyncClient, disk: SimDisk, caplog: pytest.LogCaptureFixture
):
    """What is on its way does not suffer from it."""

    def on_error(error: Exception) -> None:
        raise ValueError("the user's own")

    producer = await client.producer("t", on_error=on_error)
    disk.faults.append(Fault("write", errno.ENOSPC, ".log"))
    producer.send_nowait(b"x")
    with pytest.raises(engine.DiskFullError):
        await producer.flush()
    assert "on_error of a producer failed" in caplog.text
    await producer.send(b"y")
    assert producer.statistics().pending_bytes == 0
    await producer.close()


async def until(reader: engine.AsyncCheckpointConsumer, last: engine.MessageId) -> AsyncIterator[engine.Message]:
    """Messages up to and including `last`."""
    async for message in reader:
        yield message
        if message.offset == last.offset:
            return
