"""The same tests over an embedded engine and over a served one."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.broker import server
from engine.limits import KIB

KINDS = ["embedded", "tcp"]


@pytest.fixture(params=KINDS)
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[engine.AsyncClient]:
    """An asynchronous client."""
    async with AsyncExitStack() as stack:
        if request.param == "embedded":
            yield await stack.enter_async_context(engine.open_async(tmp_path / "data"))
        else:
            served = await stack.enter_async_context(
                engine.open_async(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0")
            )
            yield await stack.enter_async_context(engine.AsyncClient(served.service_url))


@pytest.fixture(params=KINDS)
def blocking(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[engine.Client]:
    """A blocking client. What a test leaves open is closed with it."""
    with ExitStack() as stack:
        if request.param == "embedded":
            client: engine.Client = stack.enter_context(engine.open(tmp_path / "data"))
        else:
            served = stack.enter_context(engine.open(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0"))
            client = stack.enter_context(engine.Client(served.service_url))
        made: list[Any] = []
        owned = client._owned
        client._owned = lambda one: owned(made.append(one) or one)  # type: ignore[method-assign,func-returns-value]
        yield client

    """Opens the same data directory, each time anew."""
    return lambda: engine.open_async(tmp_path / "data")


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[engine.AsyncEngine]:
    """An engine that other clients may connect to."""
    async with engine.open_async(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0") as served:
        yield served


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments have many files; name it before what opens an engine."""
    configured = server.storage_config
    small = lambda config, **how: dataclasses.replace(configured(config, **how), file_size_max=8 * KIB)  # noqa: E731
    monkeypatch.setattr(server, "storage_config", small)
