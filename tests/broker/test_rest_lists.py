"""Topic lists over HTTP: whole, in parts, under the same permits as those on the wire (PIP-442)."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web

from engine.aio.memory_limiter import MemoryPermit
from engine.broker.admin import rest_lists
from engine.broker.server import Broker
from engine.errors import PermitTimeoutError
from engine.limits import TOPICS_PER_FRAME_MAX
from tests.broker.test_topic_list_memory import DIRECT, HEAP, until_returned
from tests.kit.peer import WAIT_S

PATH = "/admin/v2/scalable/public/default"
NAMES = [f"topic://public/default/t{n:05}" for n in range(2 * TOPICS_PER_FRAME_MAX + 1)]


@pytest.fixture
def many(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace of more topics than are sent at once."""

    async def names(namespace: str, properties: object) -> list[str]:
        return NAMES

    monkeypatch.setattr(broker.admin, "list_topics", names)


async def test_a_list_of_many_parts_is_one_array(broker: Broker, http: aiohttp.ClientSession, many: None) -> None:
    async with http.get(PATH) as answer:
        assert answer.status == 200
        assert await answer.json() == NAMES
    await until_returned(broker)


async def test_head_has_no_body_that_would_be_taken_for_the_next_answer(
    broker: Broker, http: aiohttp.ClientSession, many: None
) -> None:
    for _ in range(2):  # over one connection
        async with http.head(PATH) as answer:
            assert (answer.status, await answer.read()) == (200, b"")
        async with http.get(PATH) as answer:
            assert await answer.json() == NAMES
    await until_returned(broker)


async def test_a_namespace_without_topics_is_an_empty_array(broker: Broker, http: aiohttp.ClientSession) -> None:
    async with http.get(PATH) as answer:
        assert await answer.json() == []
    await until_returned(broker)


async def test_who_finds_no_memory_is_told_so(broker: Broker, http: aiohttp.ClientSession, many: None) -> None:
    heap = broker.memory.topic_lists.pool(HEAP)
    heap.timeout = 0.01
    held = await broker.memory.topic_lists.acquire(heap.limit, HEAP)
    async with http.get(PATH) as answer:
        assert answer.status == 503
        assert (await answer.json())["code"] == PermitTimeoutError.code
    broker.memory.topic_lists.release(held)
    await until_returned(broker)


async def test_no_memory_for_its_parts_is_a_status_and_not_half_a_list(
    broker: Broker, http: aiohttp.ClientSession, many: None
) -> None:
    direct = broker.memory.topic_lists.pool(DIRECT)
    direct.timeout = 0.01
    held = await broker.memory.topic_lists.acquire(direct.limit, DIRECT)
    async with http.get(PATH) as answer:
        assert answer.status == 503
        assert (await answer.json())["code"] == PermitTimeoutError.code
    broker.memory.topic_lists.release(held)
    await until_returned(broker)


async def test_a_list_that_has_begun_needs_no_more_memory(
    broker: Broker, http: aiohttp.ClientSession, many: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other memory is taken when the first part was written."""
    limiter, taken = broker.memory.topic_lists, list[MemoryPermit]()
    limiter.pool(DIRECT).timeout = 0.01
    write = web.StreamResponse.write

    async def written(response: web.StreamResponse, data: bytes) -> None:
        if not taken:
            pool = limiter.pool(DIRECT)
            taken.append(await limiter.acquire(pool.limit - pool.used, DIRECT))
        await write(response, data)

    monkeypatch.setattr(web.StreamResponse, "write", written)
    async with http.get(PATH) as answer:
        assert await answer.json() == NAMES
    limiter.release(*taken)
    await until_returned(broker)


async def test_who_does_not_read_holds_no_memory_for_long(
    broker: Broker, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def names(namespace: str, properties: object) -> list[str]:
        return [name + "-" * 150 for name in NAMES] * 20

    monkeypatch.setattr(broker.admin, "list_topics", names)
    monkeypatch.setattr(rest_lists, "PART_S_MAX", 0.05)
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(*str(http._base_url.authority).rsplit(":", 1), limit=1024)
        writer.write(f"GET {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 200 OK\r\n"
        await until_returned(broker)
        writer.close()
