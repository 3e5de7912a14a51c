"""Members that end with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.shared.members import Member

Start = Callable[..., Awaitable[Member]]


@pytest.fixture
async def member(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a process that has the directory `data` of the test open; options are those of engine.open()."""
    started: list[Member] = []

    async def start(path: Path | None = None, **options: Any) -> Member:
        made = await Member.start(path or tmp_path / "data", **options)
        started.append(made)
        await made.do("open")
        return made

    yield start
    for one in started:
        await one.kill()
