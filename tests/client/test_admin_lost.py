"""The admin API's connection is lost at the worst moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import engine.client.admin.admin_http
from engine.client.admin.admin_http import HttpAdmin
from engine.errors import ConnectError, UnknownOutcomeError
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

    monkeypatch.setattr(engine.client.admin.admin_http, "HttpAdmin", Kept)
    return made


async def test_calls_that_come_together_share_one_session(broker: FakeBroker, backends: list[HttpAdmin]) -> None:
    broker.admin = NOWHERE
    client = broker.client()
    asked = await asyncio.gather(*(client.admin.get_metadata("t") for _ in range(5)), return_exceptions=True)
    assert [type(outcome) for outcome in asked] == [ConnectError] * 5
    await client.close()
    assert [backend._session.closed for backend in backends] == [True]
