"""Task supervision: background work that is never lost, never silent, and ends when its owner does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from engine.aio.bag import Bag

log = logging.getLogger(__name__)


class Supervisor:
    """Owns background tasks: keeps references (asyncio does not), logs failures, cancels the tasks at the end.

    Loop thread only.
    """

    __slots__ = ("_closed", "_name", "_tasks")

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: Bag[asyncio.Task[Any]] = Bag()
        self._closed = False

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any] | None:
        """Start a task. After close() the coroutine is dropped and None is returned."""
        if self._closed:
            coroutine.close()
            return None
        task = asyncio.get_running_loop().create_task(coroutine, name=name or None)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: background task %s failed", self._name, task.get_name(), exc_info=error)

    def __len__(self) -> int:
        return len(self._tasks)

    async def drain(self) -> None:
        """Wait until all present tasks have ended."""
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Cancel all tasks and wait for their end. Idempotent."""
        self._closed = True
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
