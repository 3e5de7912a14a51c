"""No server, and no client's HTTP session, outlives its test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import engine.client.admin.admin_http
from engine.client.admin.admin_http import HttpAdmin
from tests.chaos.server import Server


@pytest.fixture(autouse=True)
async def no_session_stays(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A test that fails does not come to close its clients, and a later one would be blamed for what they leave."""
    made: list[HttpAdmin] = []

    class Kept(HttpAdmin):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            made.append(self)

    monkeypatch.setattr(engine.client.admin.admin_http, "HttpAdmin", Kept)
    yield
    for admin in made:
        await admin.close()


@pytest.fixture(autouse=True)
async def no_server_stays() -> AsyncIterator[None]:
    """A test that fails does not come to stop its own."""
    yield
    for server in list(Server.running):
        await server.kill()
