"""A consumer of a topic that does not exist: it says that it creates it, or raises."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from engine.client import AsyncClient
from engine.errors import InvalidArgumentError, NotFoundError


@pytest.mark.parametrize("kind", ["stream_consumer", "queue_consumer", "checkpoint_consumer"])
async def test_a_consumer_that_creates_its_topic_says_so_once(
    client: AsyncClient, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    subscription = () if kind == "checkpoint_consumer" else ("s",)
    consume = partial(getattr(client, kind), "orderz", *subscription)
    with pytest.raises(NotFoundError, match="orderz does not exist"):
        await consume(create=False)
    with pytest.raises(InvalidArgumentError, match="create must be True or False, got 'no'"):
        await consume(create="no")
    assert await client.admin.list_topics() == []
    with caplog.at_level(logging.WARNING, "engine.client"):
        async with await consume(), await consume(), await consume(create=False):
            pass
    said = [record.getMessage() for record in caplog.records if record.name == "engine.client"]
    assert len(said) == 1
    assert "topic://public/default/orderz did not exist" in said[0]
    assert "create=False" in said[0]


@pytest.mark.parametrize("name", ["orders.*", "orders.>", "^orders", "orders$"])
async def test_a_pattern_is_no_name_and_the_error_shows_how_patterns_are_given(client: AsyncClient, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="pattern=…"):
        await client.stream_consumer(name, "s")
    with pytest.raises(InvalidArgumentError, match="pattern=…"):
        await client.producer(name)
    for blank in ("my orders", "orders\u200b"):
        with pytest.raises(InvalidArgumentError, match=r"white space|format"):
            await client.queue_consumer(blank, "s")
    assert await client.admin.list_topics() == []


async def test_a_namespace_may_create_no_topics(client: AsyncClient) -> None:
    await client.admin.set_namespace_policies("public/default", {"auto_create_topics": False})
    with pytest.raises(NotFoundError, match="orders does not exist"):
        await client.producer("orders")
    with pytest.raises(NotFoundError, match="orders does not exist"):
        await client.stream_consumer("orders", "s")
    async with await client.producer("public/other/orders") as producer:
        await producer.send(b"x")
    await client.admin.create_topic("orders")
    async with await client.producer("orders") as producer:
        await producer.send(b"x")
