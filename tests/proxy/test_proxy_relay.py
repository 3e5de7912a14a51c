"""Where the proxy's HTTP door relays to: known routes of the brokers it was given, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

import engine
from engine.errors import ConnectError
from engine.model.admin_operations import OPERATIONS
from engine.proxy.config import ProxyConfig
from engine.proxy.http import METRICS
from engine.proxy.server import Proxy
from engine.wire.url import parse_url

OURS, THEIRS = "what-the-clients-say", "what-the-brokers-ask-for"
TOPICS = "/admin/v2/scalable/public/default"
GUARDED = {"auth_token": OURS, "broker_token": THEIRS}


DONE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Listener:
    """Takes connections, keeps what was said, and answers each with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self.heard: list[bytes] = []
        self.port = 0
        self._answer = answer

    @classmethod
    @asynccontextmanager
    async def listening(cls, answer: bytes = DONE) -> AsyncIterator[Listener]:
        made = cls(answer)
        server = await asyncio.start_server(made._take, "127.0.0.1", 0)
        made.port = server.sockets[0].getsockname()[1]
        async with server:
            yield made

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = len(self.heard)
        self.heard.append(b"")
        self.heard[at] = await reader.readuntil(b"\r\n\r\n")
        writer.write(self._answer)
        writer.close()


async def said(address: str, method: str, target: str, token: str | None) -> tuple[int, bytes]:
    """The status of a request with exactly this target, and all that came back."""
    reader, writer = await asyncio.open_connection(*parse_url(address.replace("http://", "engine://")))
    authorization = f"Authorization: Bearer {token}\r\n" if token is not None else ""
    host = address.removeprefix("http://")
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n{authorization}Connection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return int(answer.split()[1]), answer


def foreign_targets(port: int) -> list[str]:
    """Request targets that name another host, or that look so when they are joined with a URL."""
    host = f"127.0.0.1:{port}"
    return [
        *(f"http://{host}{path}" for path in ("", "/", "/health", "/ready", METRICS, TOPICS, "/openapi.json")),
        *(f"//{host}{path}" for path in ("", "/health", TOPICS)),
        f"/\\{host}/health",
        f"@{host}/health",
        f"/admin/v2/scalable/http:%2F%2F{host}/default",
        f"/http://{host}/health",
        host,
    ]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_no_request_reaches_a_host_that_a_client_names(serve, method: str) -> None:
    async with Listener.listening() as attacker, serve({"auth_token": THEIRS}, **GUARDED) as front:
        for target in foreign_targets(attacker.port):
            for token in (None, OURS):
                status, answer = await said(front.admin_url, method, target, token)
                assert 400 <= status < 500, (target, answer)
                assert THEIRS.encode() not in answer
        assert attacker.heard == []


@pytest.mark.parametrize("method", ["CONNECT", "OPTIONS", "GET"])
@pytest.mark.parametrize("door", ["proxy", "broker"])
async def test_targets_that_are_no_path_are_refused(serve, door: str, method: str) -> None:
    async with Listener.listening() as attacker, serve() as front:
        address = front.admin_url if door == "proxy" else front.broker.admin_url
        target = {"CONNECT": f"127.0.0.1:{attacker.port}", "OPTIONS": "*", "GET": f"{address}/health"}[method]
        status, answer = await said(address, method, target, None)
        assert status == 400
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == engine.InvalidArgumentError.code
        assert attacker.heard == []


@pytest.mark.parametrize("door", ["proxy", "broker"])
async def test_pages_of_the_door_itself_are_for_get_only(serve, door: str) -> None:
    async with serve() as front, aiohttp.ClientSession() as session:
        address = front.admin_url if door == "proxy" else front.broker.admin_url
        for path in ("/health", "/ready", METRICS):
            for method, status in (("GET", 200), ("POST", 405), ("PUT", 405), ("DELETE", 405), ("OPTIONS", 405)):
                async with session.request(method, address + path) as answer:
                    assert answer.status == status, (method, path)
                    assert status == 200 or answer.headers["Allow"] == "GET,HEAD"


async def test_only_known_routes_are_relayed(serve) -> None:
    async with serve({"auth_token": THEIRS}, **GUARDED) as front:
        for method, target, status in (
            ("GET", "/", 200),
            ("GET", "/nothing", 404),
            ("GET", "/debug", 404),
            ("GET", "/health/", 404),
            ("PATCH", TOPICS + "/t", 405),
            ("GET", TOPICS + "/../../../x", 404),
            ("DELETE", TOPICS + "/%2e%2e", 400),
            ("GET", TOPICS, 200),
            ("GET", "/openapi.json", 200),
        ):
            assert (await said(front.admin_url, method, target, OURS))[0] == status, target
            assert (await said(front.admin_url, method, target, None))[0] == 401, target


async def test_every_route_of_the_admin_api_is_relayed_to_its_path(serve) -> None:
    """A stub in the broker's place hears the same path, whatever characters the names hold."""
    async with Listener.listening() as stub:
        proxy = Proxy(ProxyConfig(brokers=("engine://127.0.0.1:1",), broker_admin=f"http://127.0.0.1:{stub.port}"))
        address = "http://{}:{}".format(*await proxy.serve_admin("127.0.0.1", 0))
        try:
            for row in OPERATIONS:
                if row.path in ("/health", "/ready", METRICS):
                    continue
                target = row.path.replace("{", "a%2Fb%25%3F%C3%BC-").replace("}", "")
                assert (await said(address, row.verb, target + "?x=%2F&y=1", None))[0] == 200
                line = f"{row.verb} {target}?x=%2F&y=1 HTTP/1.1".encode()
                assert stub.heard[-1].partition(b"\r\n")[0] == line
        finally:
            await proxy.close()


async def test_a_redirection_of_the_admin_api_is_not_followed() -> None:
    async with Listener.listening() as attacker:
        location = f"http://127.0.0.1:{attacker.port}/health"
        redirection = f"HTTP/1.1 307 Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
        async with Listener.listening(redirection) as stub:
            where = f"http://127.0.0.1:{stub.port}"
            proxy = Proxy(ProxyConfig(brokers=("engine://127.0.0.1:1",), broker_admin=where, **GUARDED))
            address = "http://{}:{}".format(*await proxy.serve_admin("127.0.0.1", 0))
            try:
                status, answer = await said(address, "GET", TOPICS, OURS)
            finally:
                await proxy.close()
            assert status == 503
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == ConnectError.code
            assert f"Bearer {THEIRS}".encode() in stub.heard[0]
        assert attacker.heard == []
