"""A fault in reading that gives messages behind those asked for is an error with its place, and never a silent gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import engine
from engine._native.serve.blocks import Block
from engine.model.subscriptions import DeliveryMode
from engine.storage.segment import Segment
from tests.kit.peer import until

MESSAGES = 10
SKIPPED = 4
PLACE = rf"a read at offset 0 gave the messages {SKIPPED} to \d+; the first offset that is stored is 0, and the gaps"

Consume = Callable[[engine.AsyncEngine, str], Awaitable[Any]]
CONSUMERS: dict[str, Consume] = {
    "queue": lambda e, name: e.queue_consumer("t", "s", name=name, initial_position="earliest"),
    "stream": lambda e, name: e.stream_consumer("t", "s", name=name, initial_position="earliest"),
    "checkpoint": lambda e, name: e.checkpoint_consumer("t", name=name, start=engine.Checkpoint.earliest()),
}


@pytest.fixture
async def opened() -> AsyncIterator[engine.AsyncEngine]:
    async with engine.open_async(":memory:") as e:
        await e.admin.create_topic("t", segments=1)
        async with e.producer("t", batching=engine.Batching(max_messages=1)) as producer:
            for i in range(MESSAGES):
                await producer.send(b"%d" % i, key=f"k{i}")
        yield e


def misread(monkeypatch: pytest.MonkeyPatch, *, at_once: bool) -> None:
    """Reads at the beginning of a segment give what is behind the first messages."""
    read = Segment.read

    def wrong(self: Segment, offset: int, bytes_max: int = 1, **options: Any) -> Awaitable[Block] | Block | None:
        found = read(self, offset or SKIPPED, bytes_max, **options)
        if at_once or not isinstance(found, Block):
            return found

        async def later() -> Block:
            await asyncio.sleep(0)
            return found

        return later()

    monkeypatch.setattr(Segment, "read", wrong)


@pytest.mark.parametrize("at_once", [True, False], ids=["from memory", "from a file"])
@pytest.mark.parametrize("kind", CONSUMERS)
async def test_messages_that_a_read_passes_over_are_an_error_with_its_place(
    opened: engine.AsyncEngine, monkeypatch: pytest.MonkeyPatch, kind: str, *, at_once: bool
):
    misread(monkeypatch, at_once=at_once)
    async with await CONSUMERS[kind](opened, "a") as consumer:
        with pytest.raises(engine.CorruptionError, match=PLACE):
            await consumer.receive(timeout=30)


@pytest.mark.parametrize("at_once", [True, False], ids=["from memory", "from a file"])
async def test_consumers_that_share_a_segment_are_told_likewise(
    opened: engine.AsyncEngine, monkeypatch: pytest.MonkeyPatch, *, at_once: bool
):
    async with await CONSUMERS["stream"](opened, "a") as a, await CONSUMERS["stream"](opened, "b") as b:
        await until(lambda: all([x.mode for x in one.attachments.values()] == [DeliveryMode.SHARED] for one in (a, b)))
        misread(monkeypatch, at_once=at_once)
        await a.seek("earliest")
        for one in (a, b):
            with pytest.raises(engine.CorruptionError, match=PLACE):
                [message async for message in one]
