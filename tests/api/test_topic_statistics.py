"""What `get_stats` says of subscriptions, their kinds, and checkpoint groups."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import engine
from tests.kit.peer import until


async def kinds(client: engine.AsyncClient) -> dict[str, Any]:
    stats = await client.admin.get_stats("t")
    return {name: facts["kind"] for name, facts in stats["subscriptions"].items()}


async def test_a_subscription_has_the_kind_it_was_created_with_or_that_of_its_consumers(
    client: engine.AsyncClient,
) -> None:
    await client.admin.create_topic("t")
    for name, kind in (("jobs", "queue"), ("audit", "stream"), ("open", None), ("later", None)):
        await client.admin.create_subscription("t", name, initial_position="earliest", kind=kind)
    assert await kinds(client) == {"jobs": "queue", "audit": "stream", "open": None, "later": None}
    async with await client.queue_consumer("t", "open"), await client.stream_consumer("t", "later"):
        expected = {"jobs": "queue", "audit": "stream", "open": "queue", "later": "stream"}
        async with asyncio.timeout(30):
            while await kinds(client) != expected:  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_a_kind_that_no_subscription_has_is_refused(client: engine.AsyncClient) -> None:
    await client.admin.create_topic("t")
    for kind in ("checkpoint", "", "Queue", 7):
        with pytest.raises(engine.InvalidArgumentError, match="kind must be"):
            await client.admin.create_subscription("t", "s", kind=kind)  # type: ignore[arg-type]
    assert await kinds(client) == {}


async def test_checkpoint_groups_and_their_members_are_shown(client: engine.AsyncClient) -> None:
    await client.admin.create_topic("t", segments=2)
    assert (await client.admin.get_stats("t"))["checkpointGroups"] == {}
    start = engine.Checkpoint.earliest()
    members = [await client.checkpoint_consumer("t", group="g", name=name, start=start) for name in ("a", "b")]
    await until(lambda: [len(member.attachments) for member in members] == [1, 1])
    group = (await client.admin.get_stats("t"))["checkpointGroups"].pop("g")
    assert group["consumerCount"] == 2
    assert [member["connected"] for member in group["consumers"].values()] == [True, True]
    assert sorted(group["consumers"]["a"]["segments"] + group["consumers"]["b"]["segments"]) == [0, 1]
    for member in members:
        await member.close()
    assert (await client.admin.get_stats("t"))["checkpointGroups"] == {}
