"""What lists show to a role with rights on single topics alone: these, as they come and go, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

import engine
from engine.broker.rights.token_file import line_of
from engine.errors import AuthorizationError

TOKEN, ROOT = "token-of-ann", "token-of-root"
A, B, C = (f"topic://public/default/{name}" for name in "abc")


@pytest.fixture
async def broker(start_broker, tmp_path):
    path = tmp_path / "roles"
    path.write_text("".join(line_of(role, token) + "\n" for role, token in (("ann", TOKEN), ("root", ROOT))))
    async with start_broker(roles_file=str(path), superusers=["root"]) as broker:
        for topic in (A, B, C):
            await broker.admin.create_topic(topic)
        yield broker


async def grant(broker: Any, *topics: str) -> None:
    for topic in topics:
        await broker.admin.grant(topic.removeprefix("topic://"), "ann", ["consume"])


async def revoke(broker: Any, topic: str) -> None:
    await broker.admin.revoke(topic.removeprefix("topic://"), "ann")


@pytest.fixture
async def ann(broker):
    url = "engine://{}:{}".format(*await broker.serve("127.0.0.1", 0))
    await broker.serve_admin("127.0.0.1", 0)
    async with engine.AsyncClient(url, token=TOKEN) as client:
        yield client


async def over_rest(broker: Any) -> Any:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{broker.admin_url}/admin/v2/scalable/public/default") as answer,
    ):
        return await answer.json() if answer.status == 200 else answer.status


async def becomes(look: Callable[[], Awaitable[Any]], expected: Any) -> None:
    """A grant takes effect when the watch of its record has been heard."""
    async with asyncio.timeout(30):
        while await look() != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_list_has_the_topics_of_the_role(broker, ann):
    assert await over_rest(broker) == 403
    with pytest.raises(AuthorizationError, match="lookup is needed on 'public/default'"):
        await ann.admin.list_topics("public/default")
    await grant(broker, A, C)
    await becomes(lambda: over_rest(broker), [A, C])
    assert await ann.admin.list_topics("public/default") == [A, C]
    assert await ann.admin.list_namespaces() == ["public/default"]
    await revoke(broker, A)
    await becomes(lambda: over_rest(broker), [C])
    await broker.admin.grant("public/default", "ann", ["lookup"])
    await becomes(lambda: over_rest(broker), [A, B, C])
    await broker.admin.revoke("public/default", "ann")
    await revoke(broker, C)
    await becomes(lambda: over_rest(broker), 403)
    assert await ann.admin.list_namespaces() == []


async def test_a_grant_of_operators_alone_lists_nothing(broker, ann):
    await broker.admin.create_topic("topic://public/default2/x")
    await broker.admin.grant("public/default2/x", "ann", ["consume"])
    await broker.admin.grant("*", "ann", ["operate"])
    await becomes(ann.admin.list_namespaces, ["public/default2"])
    assert await over_rest(broker) == 403


async def test_what_follows_the_list_hears_of_grants(broker, ann):
    await grant(broker, A)
    await becomes(lambda: over_rest(broker), [A])
    async with await ann.watch_topics("public/default") as watch:
        changes = aiter(watch)

        async def heard() -> tuple[list[str], list[str]]:
            change = await asyncio.wait_for(anext(changes), 30)
            return list(change.removed), list(change.added)

        assert await heard() == ([], [A])
        await grant(broker, B)
        assert await heard() == ([], [B])
        await broker.admin.create_topic("topic://public/default/d")
        await revoke(broker, A)
        assert await heard() == ([A], [])
        await broker.admin.grant("public/default", "ann", ["lookup"])
        assert await heard() == ([], [A, C, "topic://public/default/d"])
        await broker.admin.revoke("public/default", "ann")
        assert await heard() == ([A, C, "topic://public/default/d"], [])
        await broker.admin.delete_topic(B)
        assert await heard() == ([B], [])


async def test_a_namespace_consumer_reads_the_topics_of_the_role(broker, ann):
    await grant(broker, A, B)
    await becomes(lambda: over_rest(broker), [A, B])
    consumer = await ann.queue_consumer(None, "s", namespace="public/default", initial_position="earliest")
    root = "engine://{}:{}".format(*await broker.serve("127.0.0.1", 0))
    async with engine.AsyncClient(root, token=ROOT) as client:
        for topic in (C, A, B):
            async with client.producer(topic) as producer:
                await producer.send(topic.encode())
        got = [await consumer.receive(timeout=30) for _ in range(2)]
        assert sorted(message.value.decode() for message in got) == [A, B]
        await grant(broker, C)
        assert (await consumer.receive(timeout=30)).value.decode() == C
    await consumer.close()
