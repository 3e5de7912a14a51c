"""What is sent in part, or not at all, shuts nobody out and does not hold up the end of the broker."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

import pytest

from engine.broker.admin import http as http_door
from engine.broker.admin import rest
from engine.broker.admin.http import HttpDoor
from engine.broker.server import Broker
from tests.kit.raw_http import WAIT_S, Raw, asked

BASE = "/admin/v2/scalable/public/default"
HOST = {"Host": "localhost"}
HALF_BODY = {**HOST, "Content-Type": "application/json", "Content-Length": "1000"}


async def until(condition) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - a state of the server, of which there is no event
            await asyncio.sleep(0)


async def silent(stack: AsyncExitStack, address: tuple[str, int], said: bytes) -> Raw:
    """A connection on which nothing follows what is said."""
    raw = await stack.enter_async_context(Raw.connected(address))
    raw.writer.write(said)
    return raw


@pytest.mark.parametrize("said", [b"", b"GET", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "])
async def test_half_sent_heads_do_not_shut_the_door(broker: Broker, said: bytes, monkeypatch) -> None:
    """One connection above the limit takes the place of one without a head; those that have sent one stay."""
    monkeypatch.setattr(http_door, "_REFUSED_MAX", 2)
    address = await broker.serve_admin("127.0.0.1", 0)
    door = broker.addresses.admin_server
    assert isinstance(door, HttpDoor)
    door.connections_max = 10
    async with AsyncExitStack() as stack:
        kept = await stack.enter_async_context(Raw.connected(address))
        kept.say("GET", "/health", HOST)
        assert await kept.status() == 200
        for _ in range(3 * door.connections_max):
            await silent(stack, address, said)
        for path in ("/health", BASE, "/metrics"):
            assert await asked(address, "GET", path, HOST) == 200
        assert door.connections <= door.connections_max
        kept.say("GET", BASE, HOST)
        await kept.reader.readuntil(b"\r\n\r\n")


@pytest.mark.parametrize(
    "more", [b"", b"GET /health HTTP/1.1\r\nX: ", b"GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n"
             b"Content-Type: application/json\r\n\r\n{"]
)  # fmt: skip
async def test_connections_that_were_answered_do_not_shut_the_door(start_broker, more: bytes) -> None:
    """Nothing has to be known to have /health answered: what is idle behind that, or sends no more, makes room."""
    async with start_broker(auth_token="right") as broker:
        address = await broker.serve_admin("127.0.0.1", 0)
        door = broker.addresses.admin_server
        assert isinstance(door, HttpDoor)
        door.connections_max = 5
        async with AsyncExitStack() as stack:
            for _ in range(door.connections_max):
                raw = await silent(stack, address, b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" + more)
                assert await raw.status() == 200
            for _ in range(2 * door.connections_max):
                assert await asked(address, "GET", BASE, {**HOST, "Authorization": "Bearer right"}) == 200


async def test_a_body_that_nothing_is_done_with_takes_no_memory(broker: Broker) -> None:
    """Of what is answered without a token; it would keep others from sending theirs."""
    address = await broker.serve_admin("127.0.0.1", 0)
    broker.memory.bodies.resize(100)
    async with Raw.connected(address) as raw:
        raw.say("GET", "/health", HALF_BODY, b"{")
        assert await raw.status() == 200
        assert not broker.memory.bodies.used
        assert not broker.memory.bodies.queue


@pytest.mark.parametrize("first", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_a_head_has_a_time_limit(broker: Broker, first: bytes, monkeypatch) -> None:
    """Also the second one over a connection, and bytes of it that come meanwhile do not prolong the limit."""
    monkeypatch.setattr(HttpDoor.__init__, "__kwdefaults__", {**HttpDoor.__init__.__kwdefaults__, "head_timeout": 0.2})
    address = await broker.serve_admin("127.0.0.1", 0)
    async with AsyncExitStack() as stack:
        raw = await silent(stack, address, first + b"GET / HTTP/1.1\r\nX: ")
        for _ in range(10):
            raw.writer.write(b"x")
        assert (await raw.rest()).count(b"HTTP/1.1 200") == bool(first)
    assert await asked(address, "GET", "/health", HOST) == 200


async def test_a_body_has_a_time_limit(broker: Broker, monkeypatch) -> None:
    monkeypatch.setattr(rest, "HTTP_BODY_S_MAX", 0.05)
    address = await broker.serve_admin("127.0.0.1", 0)
    async with Raw.connected(address) as raw:
        raw.say("PUT", f"{BASE}/t", HALF_BODY, b"{")
        assert await raw.status() == 408


async def test_a_hang_up_within_a_body_is_no_traceback(broker: Broker, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    address = await broker.serve_admin("127.0.0.1", 0)
    door = broker.addresses.admin_server
    assert door is not None
    for headers in (HALF_BODY, {**HOST, "Content-Type": "application/json", "Transfer-Encoding": "chunked"}):
        async with Raw.connected(address) as raw:
            raw.say("PUT", f"{BASE}/t", headers, b"5\r\n{")
            await until(lambda: door._under_way)
            raw.writer.transport.abort()
            await until(lambda: not door._under_way)
    async with Raw.connected(address) as raw:
        raw.say(
            "PUT", f"{BASE}/t", {**HOST, "Content-Type": "application/json", "Transfer-Encoding": "chunked"}, b"z\r\n"
        )
        assert await raw.status() == 400
    assert await broker.admin.list_topics("public/default") == []
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


@pytest.mark.parametrize("said", [b"GET / HTTP/9\r\n\r\n", b"GET /\x00 HTTP/1.1\r\n\r\n"])
async def test_what_is_no_http_is_one_line_in_the_log(broker: Broker, said: bytes, caplog) -> None:
    async with Raw.connected(await broker.serve_admin("127.0.0.1", 0)) as raw:
        raw.writer.write(said)
        assert await raw.status() == 400
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "a malformed HTTP request" in record.getMessage()
    assert not record.exc_info


async def test_closing_does_not_wait_for_what_is_half_sent(broker: Broker, monkeypatch) -> None:
    """With limits that would last for hours: a body on its way, one that waits for memory, half a head, nothing."""
    monkeypatch.setattr(rest, "HTTP_BODY_S_MAX", 1e4)
    monkeypatch.setattr(rest, "QUIET_S_MAX", 1e4)
    monkeypatch.setattr(http_door, "CLOSE_S_MAX", 0.05)
    address = await broker.serve_admin("127.0.0.1", 0)
    door = broker.addresses.admin_server
    assert door is not None
    broker.memory.bodies.resize(1000)
    async with AsyncExitStack() as stack:
        for said in (b"", b"GET / HTTP/1.1\r\nX: "):
            await silent(stack, address, said)
        bodies = [await stack.enter_async_context(Raw.connected(address)) for _ in range(2)]
        for raw in bodies:
            raw.say("PUT", f"{BASE}/t", HALF_BODY, b"{")
        await until(lambda: broker.memory.bodies.queue)
        async with asyncio.timeout(WAIT_S):
            await broker.close()
        for raw in bodies:
            assert await raw.status() == 503


SENT = ["nan", "inf", "-inf", "1e308", "1e999", "-1", "", "x", "1" * 400, "1" * 5000, "18446744073709551616", "null"]


@pytest.mark.parametrize("text", SENT, ids=range(len(SENT)))
async def test_numbers_that_are_none_are_refused(http, text: str) -> None:
    """In the query, in the path, and in a body."""
    await (await http.put(f"{BASE}/t")).read()
    for method, path in (
        ("GET", f"/admin/v2/transactions?openLongerThan={text}"),
        ("GET", f"/admin/v2/transactions?limit={text}"),
        ("POST", f"{BASE}/t/rebucket/0?buckets={text}"),
        ("POST", f"{BASE}/t/split/{text}"),
        ("POST", f"{BASE}/t/merge/0/{text}"),
        ("POST", f"/admin/v2/segments/public/default/t/0000-7fff-{text}/terminate"),
        *(
            ("POST", f"/admin/v2/brokers/configuration/{name}/{text}{unit}")
            for name in ("publish_bytes_max", "maxMessagePublishBufferSizeInMB", "topic_list_heap_timeout")
            for unit in ("", "GB", "d")
        ),
    ):
        if len(path) < 8000:
            async with http.request(method, path) as answer:
                assert answer.status in (400, 404), (method, path, await answer.text())


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e308", "1" * 400, "18446744073709551616"])
async def test_numbers_in_bodies_that_are_none_are_refused(http, text: str) -> None:
    await (await http.put(f"{BASE}/t")).read()
    await (await http.put(f"{BASE}/t/subscriptions/s")).read()
    for method, path, field in (
        ("PUT", f"{BASE}/u", "segments"),
        ("PUT", f"{BASE}/u", "entryBuckets"),
        ("POST", f"{BASE}/t/subscriptions/s/seek", "when"),
        ("POST", f"{BASE}/t/rebucket/0", "buckets"),
        ("PUT", f"{BASE}/t/autoScalePolicy", "splitCooldownSeconds"),
        ("PATCH", "/admin/v2/namespaces/public/default/policies", "retention_time_s"),
        ("PATCH", "/admin/v2/namespaces/public/default/policies", "retention_size_bytes"),
    ):
        said = {"data": f'{{"{field}": {text}}}', "headers": {"Content-Type": "application/json"}}
        async with http.request(method, path, **said) as answer:
            statuses = (204, 400) if field == "when" else (400,)  # a time that is far away is one
            assert answer.status in statuses, (method, path, text, await answer.text())
