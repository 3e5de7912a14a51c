"""A right that ends in the middle of a batch: what was acknowledged stays, and nothing behind it is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.errors import AuthorizationError, EngineError
from tests.kit.peer import listening

ANN, ROOT = "token-of-ann", "token-of-root"
MANY = 20_000


@pytest.fixture
async def broker(start_broker: Callable[..., Any], tmp_path: Path) -> AsyncIterator[Broker]:
    path = tmp_path / "roles"
    path.write_text("".join(line_of(r, t) + "\n" for r, t in (("ann", ANN), ("root", ROOT))))
    async with start_broker(roles_file=str(path), superusers=["root"]) as started:
        await started.admin.create_topic("orders", segments=2)
        await started.admin.grant("public", "ann", ["produce", "consume"])
        yield started


async def stored(broker: Broker) -> list[bytes]:
    """All that the topic has, by a role with all rights."""
    found: list[bytes] = []
    last = sum(hosted.segment.next_offset for hosted in broker.segments)
    async with (
        engine.AsyncClient(await listening(broker), token=ROOT) as root,
        await root.stream_consumer("orders", "all", initial_position="earliest") as consumer,
    ):
        while len(found) < last:
            found += [message.value for message in await consumer.receive_batch(timeout=20)]
    return found


async def test_a_producer_in_the_middle_of_its_messages(broker: Broker) -> None:
    async with engine.AsyncClient(await listening(broker), token=ANN) as ann:
        producer = await ann.producer("orders")
        sent = [producer.submit(b"%d" % i, key=f"k{i % 50}") for i in range(MANY)]
        await sent[MANY // 4]
        await broker.admin.revoke("public", "ann")
        later = producer.submit(b"later", key="k0")
        ended = await asyncio.wait_for(asyncio.gather(*sent, later, return_exceptions=True), 30)
        refused = [e for e in ended if isinstance(e, BaseException)]
        assert isinstance(ended[-1], AuthorizationError)
        assert all(isinstance(e, EngineError) for e in refused), refused[0]
        acknowledged = {b"%d" % i for i, one in enumerate(ended[:-1]) if not isinstance(one, BaseException)}
        assert len(acknowledged) > MANY // 4
    found = await stored(broker)
    assert acknowledged <= set(found), "what was acknowledged stays"
    assert len(found) == len(set(found))
    assert b"later" not in found
    # What is there without an acknowledgement was on its way: nothing of a key comes behind a refusal of that key.
    by_key: dict[int, list[int]] = {}
    for value in found:
        by_key.setdefault(int(value) % 50, []).append(int(value))
    assert all(numbers == list(range(numbers[0], numbers[-1] + 1, 50)) for numbers in by_key.values())


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_a_consumer_in_the_middle_of_a_batch(broker: Broker, kind: str) -> None:
    url = await listening(broker)
    async with engine.AsyncClient(url, token=ROOT) as root, await root.producer("orders") as producer:
        await producer.send_batch([b"%d" % i for i in range(2_000)])
    async with engine.AsyncClient(url, token=ANN) as ann:
        make = getattr(ann, f"{kind}_consumer")
        consumer = await make("orders", "s", initial_position="earliest", receive_queue_size=100)
        got = list(await consumer.receive_batch(timeout=20))
        assert 1 < len(got) < 2_000
        half = len(got) // 2
        await acknowledge(consumer, kind, got[:half])
        backlog = await backlog_of(broker)
        await broker.admin.revoke("public", "ann")
        await refused(consumer)
        with pytest.raises(EngineError):
            await acknowledge(consumer, kind, got[half:])
        assert await backlog_of(broker) == backlog == 2_000 - half, "acknowledged before, and nothing since"


async def acknowledge(consumer: Any, kind: str, messages: list[engine.Message[Any]]) -> None:
    if kind == "queue":
        await consumer.acknowledge(messages)
    else:
        await consumer.acknowledge_cumulative(messages[-1])


async def backlog_of(broker: Broker) -> int:
    return int((await broker.admin.get_stats("orders"))["subscriptions"]["s"]["backlog"])


async def refused(consumer: Any) -> None:
    """It gets what it has fetched already, and then the error."""
    try:
        while await consumer.receive_batch(timeout=20):
            pass
    except AuthorizationError:
        return
    pytest.fail("the consumer goes on without a right")
