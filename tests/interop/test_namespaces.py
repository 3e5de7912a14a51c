"""V5 consumers of a whole namespace: topics that come and go while they listen."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import engine
from tests.interop.agent import Agent
from tests.interop.test_v5 import EARLIEST, FIXED, KEY_HASH, QUIET_MS

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMESPACE = "acme/watched"


async def topic_with_messages(served: engine.AsyncEngine, local: str, count: int) -> set[str]:
    """A new topic of two segments, with so many messages; their values."""
    topic = f"topic://{NAMESPACE}/{local}"
    await served.admin.create_topic(topic, segments=2, key_hash=KEY_HASH, auto_scale=FIXED)
    return await publish(served, local, count)


async def publish(served: engine.AsyncEngine, local: str, count: int, name: str = "v") -> set[str]:
    values = {f"{local}-{name}{number}" for number in range(count)}
    async with served.producer(f"topic://{NAMESPACE}/{local}") as producer:
        await asyncio.gather(*(producer.send(value.encode(), key=value) for value in sorted(values)))
    return values


async def received(agent: Agent, name: str, count: int) -> set[str]:
    return {message["value"] for message in await agent.receive(name, count, ack=True)}


@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_consumers_of_a_namespace_get_its_topics_as_they_come(
    served: engine.AsyncEngine, agent: Agent, kind: str
) -> None:
    options: dict[str, Any] = {"namespace": NAMESPACE, "subscription": kind, **EARLIEST}
    before = await topic_with_messages(served, f"{kind}-a", 20)
    await agent.ask(kind, name=kind, **options)
    assert await received(agent, kind, 20) == before
    assert await received(agent, kind, 0) == set()
    later = await topic_with_messages(served, f"{kind}-b", 20) | await topic_with_messages(served, f"{kind}-c", 20)
    assert await received(agent, kind, 40) == later
    await served.admin.delete_topic(f"topic://{NAMESPACE}/{kind}-b")
    await served.admin.create_topic(f"persistent://{NAMESPACE}/{kind}-classic")
    more = await topic_with_messages(served, f"{kind}-d", 20) | await publish(served, f"{kind}-a", 10, "again")
    assert await received(agent, kind, 30) == more
    assert await agent.receive(kind, 1, quiet_ms=QUIET_MS) == []
    await agent.ask("close", name=kind)
    for local in ("a", "c", "d"):
        await served.admin.delete_topic(f"topic://{NAMESPACE}/{kind}-{local}")
