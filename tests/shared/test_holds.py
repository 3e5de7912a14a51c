"""A handle's hold on the engine of its directory: taken once, also by several threads, and entered until that works."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from engine.broker.server import Broker
from engine.embedded import registry
from engine.embedded.doors import Doors
from engine.embedded.registry import SharedHold, hold
from engine.embedded.terms import Terms
from engine.errors import DiskFullError
from engine.storage.disk.disk import OsDisk


async def test_an_entering_that_failed_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As in a forked child, whose handle stays when its first use has failed."""

    async def fail(broker: Broker) -> None:
        raise DiskFullError("full")

    held = hold(tmp_path / "data", Doors(), Terms({}))
    with monkeypatch.context() as patch:
        patch.setattr(Broker, "start", fail)
        for _ in range(2):
            with pytest.raises(DiskFullError):
                await held.enter()
    await held.enter()
    assert held.broker is not None
    await held.enter()
    await held.close()


async def test_threads_of_a_forked_child_take_one_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    both = threading.Barrier(2)

    class Meeting(OsDisk):
        def make_directories(self, path: str) -> None:
            super().make_directories(path)
            both.wait(60)

    def use(held: SharedHold) -> None:
        asyncio.run(held.enter())

    held = hold(tmp_path / "data", Doors(), Terms({}))
    assert held.give_up()  # what follows a fork: no engine of the process is known
    held.portal.close()
    held.after_fork()
    monkeypatch.setattr(registry, "OsDisk", Meeting)
    await asyncio.gather(*(asyncio.to_thread(use, held) for _ in range(2)))
    assert registry._handles[held.engine] == 1
    await held.close()
    assert held.engine not in registry._handles
