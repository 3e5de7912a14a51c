"""The admin API's connection is lost at the worst moment."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

import engine.client.admin.admin_brokers
from engine.client.admin.admin_brokers import BrokersAdmin
from engine.client.admin.admin_http import HttpAdmin
from engine.client.client import AsyncClient
from engine.errors import AlreadyClosedError, ConnectError, UnknownOutcomeError
from tests.kit.fake_broker import FakeBroker

NOWHERE = "http://127.0.0.1:1"  # nothing listens there


async def test_who_asked_for_a_change_and_heard_nothing_is_told_that_the_outcome_is_unknown() -> None:
    asked: list[bytes] = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readline()).split()[0])
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    admin = HttpAdmin(f"http://127.0.0.1:{port}", token=None, timeout=10)
    try:
        for change in (admin.split_segment("t", 0), admin.merge_segments("t", 0, 1), admin.delete_topic("t")):
            with pytest.raises(UnknownOutcomeError, match="look, then repeat"):
                await change
        with pytest.raises(ConnectError, match="was lost"):
            await admin.get_metadata("t")
        assert set(asked) == {b"POST", b"DELETE", b"GET"}
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectError, match="cannot connect"):
            await admin.split_segment("t", 0)
    finally:
        server.close()
        await admin.close()


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> list[HttpAdmin]:
    """Those that clients have made."""
    made: list[HttpAdmin] = []

    class Kept(HttpAdmin):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            made.append(self)

    monkeypatch.setattr(engine.client.admin.admin_brokers, "HttpAdmin", Kept)
    return made


async def test_calls_that_come_together_share_one_session(broker: FakeBroker, backends: list[HttpAdmin]) -> None:
    broker.admin = NOWHERE
    client = broker.client()
    asked = await asyncio.gather(*(client.admin.get_metadata("t") for _ in range(5)), return_exceptions=True)
    assert [type(outcome) for outcome in asked] == [ConnectError] * 5
    await client.close()
    assert [backend._session.closed for backend in backends] == [True]


async def test_a_request_that_finds_a_broker_after_the_end_opens_no_session(
    broker: FakeBroker, backends: list[HttpAdmin], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.admin = NOWHERE
    client = broker.client()
    await client.connect()
    asked, go_on = asyncio.Event(), asyncio.Event()
    found = BrokersAdmin._next

    async def late(self: BrokersAdmin, tried: set[str]) -> str | None:
        url = await found(self, tried)
        asked.set()
        await go_on.wait()
        return url

    monkeypatch.setattr(BrokersAdmin, "_next", late)
    request = asyncio.ensure_future(client.admin.get_metadata("t"))
    await asked.wait()
    await client.close()
    go_on.set()
    with pytest.raises(AlreadyClosedError):
        await request
    assert not backends


async def test_a_client_whose_closing_is_cancelled_closes_its_sessions(
    broker: FakeBroker, backends: list[HttpAdmin], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.admin = NOWHERE
    client = broker.client()
    with pytest.raises(ConnectError):
        await client.admin.get_metadata("t")
    closing, go_on = asyncio.Event(), asyncio.Event()
    close = HttpAdmin.close

    async def slowly(self: HttpAdmin) -> None:
        closing.set()
        await go_on.wait()
        await close(self)

    monkeypatch.setattr(HttpAdmin, "close", slowly)
    admin = cast(BrokersAdmin, client._backend)
    end = asyncio.ensure_future(admin.close())
    await closing.wait()
    end.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await end
    assert [backend._session.closed for backend in backends] == [True]
    await client.close()


class Api:
    """An admin API of one broker, over HTTP: it answers with its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[str] = []
        self.silent = False  # it hangs up on a request

    async def __aenter__(self) -> Api:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append((await reader.readuntil(b"\r\n\r\n")).split()[0].decode())
        if not self.silent:
            body = f'["{self.name}"]'
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n{body}".encode())
            await writer.drain()
        writer.close()


async def test_a_request_goes_to_the_admin_api_of_another_broker(broker: FakeBroker) -> None:
    async with Api("one") as one, Api("two") as two:
        broker.admins = {"engine://one": one.url, "engine://two": two.url}
        client = AsyncClient("engine://one,two,none", connector=broker)
        broker.down.add("engine://none")
        (first,) = await client.admin.list_topics("public/default")
        home, other = (one, two) if first == "one" else (two, one)
        home.silent = True
        assert await client.admin.list_topics("public/default") == [other.name], "it only reads"
        asked = list(home.asked)
        assert await client.admin.list_topics("public/default") == [other.name]
        assert home.asked == asked, "what works is asked first"
        other.silent = True
        with pytest.raises(UnknownOutcomeError, match="look, then repeat"):
            await client.admin.delete_topic("t")
        assert home.asked == asked, "a change that may have been made is not repeated"
        home.silent = other.silent = False
        assert await client.admin.list_topics("public/default") == [home.name]
        await home.close()
        await client.admin.set_auto_scale_policy("t", {})
        assert other.asked[-1] == "PUT", "a change that was never sent is"
        await other.close()
        with pytest.raises(ConnectError, match="cannot connect to the admin API"):
            await client.admin.list_topics("public/default")
        await client.close()
