"""The proxy's HTTP door takes what a broker's takes: no web page, no half-sent request, nothing that is not JSON."""

from __future__ import annotations

import asyncio
import gzip
import logging

import pytest

from engine.broker.admin import http as http_door
from engine.proxy import http
from engine.wire.url import parse_url
from tests.kit.raw_http import WAIT_S, Raw, asked
from tests.proxy.proxies import Served, until

BASE = "/admin/v2/scalable/public/default"
HOST = {"Host": "localhost"}
JSON = {**HOST, "Content-Type": "application/json"}
HALF_BODY = {**JSON, "Content-Length": "1000"}


def door(front: Served) -> tuple[str, int]:
    return parse_url(front.admin_url.replace("http://", "engine://"))


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({**HOST, "Origin": "http://evil.example"}, 403),
        ({**HOST, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**HOST, "Content-Type": "text/plain"}, 415),
        (HOST, 415),
        ({**JSON, "Host": "proxy.example"}, 204),
        ({**JSON, "Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}, 204),
        (JSON, 204),
    ],
)
async def test_no_web_page_commands_a_broker_over_it(serve, said: dict[str, str], status: int) -> None:
    async with serve(admin_hosts=["proxy.example"]) as front:
        assert await asked(door(front), "PUT", f"{BASE}/t", said, b"{}") == status
        assert len(await front.broker.admin.list_topics("public/default")) == (status == 204)


async def test_a_compressed_body_is_relayed_as_what_it_is(front: Served) -> None:
    body = gzip.compress(b'{"segments": 3}')
    assert await asked(door(front), "PUT", f"{BASE}/t", {**JSON, "Content-Encoding": "gzip"}, body) == 204
    assert len((await front.broker.admin.get_metadata("topic://public/default/t"))["segments"]) == 3


async def test_a_body_has_a_time_limit(front: Served, monkeypatch) -> None:
    monkeypatch.setattr(http, "HTTP_BODY_S_MAX", 0.05)
    async with Raw.connected(door(front)) as raw:
        raw.say("PUT", f"{BASE}/t", HALF_BODY, b"{")
        assert await raw.status() == 408
    assert await front.broker.admin.list_topics("public/default") == []


async def test_a_hang_up_within_a_body_is_no_traceback(front: Served, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    behind = front.broker.addresses.admin_server
    assert behind is not None
    for headers, body in ((HALF_BODY, b"{"), ({**JSON, "Transfer-Encoding": "chunked"}, b"5\r\n{")):
        async with Raw.connected(door(front)) as raw:
            raw.say("PUT", f"{BASE}/t", headers, body)
            await until(lambda: behind._under_way)
            raw.writer.transport.abort()
            await until(lambda: not behind._under_way)
    assert await front.broker.admin.list_topics("public/default") == []
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


async def test_closing_does_not_wait_for_what_is_half_sent(front: Served, monkeypatch) -> None:
    monkeypatch.setattr(http, "HTTP_BODY_S_MAX", 1e4)
    monkeypatch.setattr(http_door, "CLOSE_S_MAX", 0.05)
    behind = front.broker.addresses.admin_server
    assert behind is not None
    async with (
        front.started(front.broker._data.parent / "second", {}, {}) as second,
        Raw.connected(door(second)) as raw,
    ):
        raw.say("PUT", f"{BASE}/t", HALF_BODY, b"{")
        await until(lambda: second.broker.addresses.admin_server._under_way)  # type: ignore[union-attr]
        async with asyncio.timeout(WAIT_S):
            await second.proxy.close()
