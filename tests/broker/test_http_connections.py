"""The admin API serves so many connections; those above them are told so, or closed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping

import pytest

from engine.broker.admin import http as http_door
from engine.broker.admin.rest import AdminServer
from engine.broker.server import Broker
from engine.errors import ConnectError

NAMES = "/admin/v2/brokers/configuration"
NEW = "/admin/v2/scalable/public/default/new"
BODY = b'{"segments": 1}'
JSON = {"Content-Type": "application/json", "Content-Length": str(len(BODY))}


async def until(condition: Callable[[], object]) -> None:
    """It is a state of the server, which tells nobody."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


class Caller:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """The head of a request."""
        said = {"Host": "127.0.0.1", **headers}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items()), "", ""]
        self.writer.write("\r\n".join(lines).encode())

    async def get(self, path: str) -> tuple[int, bytes]:
        """The status and the body."""
        self.say("GET", path, {})
        return await self.answer()

    async def answer(self) -> tuple[int, bytes]:
        """The same, of the next answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.partition("content-length: ")[2].split("\r\n")[0] or 0)
        return int(head.split()[1]), await self.reader.readexactly(size)

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Few:
    """An admin API for two connections, over both of which a request is being answered: its body has not come yet."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.door: AdminServer
        self.callers: list[Caller] = []

    async def __aenter__(self) -> Few:
        self.address = await self.broker.serve_admin("127.0.0.1", 0)
        server = self.broker.addresses.admin_server
        assert server is not None
        self.door, server.connections_max = server, 2
        for _ in range(2):
            (await self.connect()).say("PUT", NEW, JSON)
        await until(lambda: len(self.door._receiving) == 2)
        return self

    async def connect(self) -> Caller:
        self.callers.append(Caller(*await asyncio.open_connection(*self.address)))
        return self.callers[-1]

    async def __aexit__(self, *error: object) -> None:
        for caller in self.callers:
            await caller.close()


async def test_who_comes_above_the_limit_is_told_so_and_the_others_are_served(broker: Broker) -> None:
    async with Few(broker) as few:
        third = await few.connect()
        status, body = await third.get(NAMES)
        assert status == 503
        assert json.loads(body)["code"] == ConnectError.code
        assert await third.reader.read() == b""
        for caller in few.callers[:2]:
            caller.writer.write(BODY)
        assert sorted([(await caller.answer())[0] for caller in few.callers[:2]]) == [204, 409]
        stands = broker.http_connections()
        assert stands is not None
        assert (stands.limit, stands.refusals) == (2, 1)


async def test_how_the_broker_is_can_be_asked_above_the_limit_once_over_each_connection(broker: Broker) -> None:
    async with Few(broker) as few:
        for path in ("/health", "/ready", "/metrics"):
            caller = await few.connect()
            assert (await caller.get(path))[0] == 200
            assert await caller.reader.read() == b""


async def test_there_is_room_when_one_has_left(broker: Broker) -> None:
    async with Few(broker) as few:
        await few.callers[0].close()
        await until(lambda: few.door.connections == 1)
        assert (await (await few.connect()).get(NAMES))[0] == 200


async def test_far_above_the_limit_connections_are_closed_at_once_which_the_log_says_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_door, "_REFUSED_MAX", 0)
    async with Few(broker) as few:
        for _ in range(2):
            caller = await few.connect()
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await caller.get("/health")
        few.callers[0].writer.write(BODY)
        assert (await few.callers[0].answer())[0] == 204
        assert few.door.refused == 2
    (said,) = [record for record in caplog.records if record.name == http_door.__name__]
    assert "above the maximum of 2" in said.getMessage()
