"""A Chromium, and a console in this process beside an embedded engine."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.client.client import AsyncClient
from engine.console.server import Console
from tests.kit.chromium import chromium


@dataclass
class Window:
    """A page of a browser, and what its log said."""

    page: Any
    url: str
    console: Console
    faults: list[str] = field(default_factory=list)
    faults_expected: int = 0  # answers of 4xx that the test has asked for, which a browser logs

    async def go(self, path: str) -> None:
        answer = await self.page.goto(self.url + path)
        assert answer.ok, await answer.text()


def opened(folder: Path) -> engine.Opening:
    """An engine that serves itself and its admin API, on a directory of its own."""
    return engine.open_async(folder / "data", listen="127.0.0.1:0", admin="127.0.0.1:0", shared=False)


Opener = Callable[..., Awaitable[Window]]


@pytest.fixture
async def window() -> AsyncIterator[Opener]:
    """Opens a console of the broker at a URL in a browser. Its log must be empty at the end."""
    async with AsyncExitStack() as stack:
        opened: list[Window] = []
        numbers = itertools.count()

        async def opened_at(url: str, token: str | None = None, **options: Any) -> Window:
            async def client(given: str | None) -> AsyncClient:
                return AsyncClient(url, token=token if given is None else given)

            console = Console(client, lambda: f"session-{next(numbers)}", url)
            stack.push_async_callback(console.close)
            host, port = await console.listen("127.0.0.1", 0)
            browser = await stack.enter_async_context(chromium())
            page = await browser.new_page(**options)
            made = Window(page, f"http://{host}:{port}", console)
            page.on("console", lambda said: made.faults.append(said.text) if said.type == "error" else None)
            page.on("pageerror", lambda error: made.faults.append(str(error)))
            opened.append(made)
            return made

        yield opened_at
        assert [one.faults[one.faults_expected :] for one in opened] == [[] for _ in opened]
