"""An engine that is closed while it opens the directory: it holds the lock until it changes no file any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from engine.broker.opening import METADATA_FILE
from engine.broker.settings.config import BrokerConfig
from engine.clock import SystemClock
from engine.embedded.doors import Doors
from engine.embedded.shared import identity_of
from engine.embedded.terms import Terms
from engine.errors import DataDirectoryBusyError
from engine.metadata import sqlite
from engine.metadata.lockfile import LockFile, lock_file_of
from engine.processes.directory import Directory
from tests.shared.members import shared_engine


async def _embedded(path: Path) -> None:
    await shared_engine(path).open(Terms({}), Doors())


async def _served(path: Path) -> None:
    await Directory.open(path, BrokerConfig(), SystemClock())


async def _taking_over(path: Path) -> None:
    """Of a process that had joined another one, which has ended: close() cuts it short."""
    engine = shared_engine(path)
    engine._directory = identity_of(path)
    following = asyncio.ensure_future(engine._follow())
    try:
        await following
    finally:
        await engine.close()


@pytest.mark.parametrize("opens", [_embedded, _served, _taking_over])
async def test_the_lock_is_held_until_the_thread_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: Callable[[Path], Awaitable[None]]
):
    begun, go = threading.Event(), threading.Event()
    open_image = sqlite._open_image

    def slowly(*arguments: object) -> object:
        begun.set()
        assert go.wait(60)
        return open_image(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sqlite, "_open_image", slowly)
    opening = asyncio.ensure_future(opens(tmp_path))
    assert await asyncio.to_thread(begun.wait, 60)
    opening.cancel()
    await asyncio.wait([opening], timeout=0)
    lock = lock_file_of(tmp_path / METADATA_FILE)
    for _ in range(20):
        await asyncio.sleep(0)
    with pytest.raises(DataDirectoryBusyError):
        LockFile(lock)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    LockFile(lock).release()
