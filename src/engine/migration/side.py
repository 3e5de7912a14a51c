"""`Side`: the source or the destination of a migration, each of which may have an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from engine.client import AsyncClient

T = TypeVar("T")


class Side:
    """A client, and the loop that it is used on. `loop`: None for the loop of the caller."""

    def __init__(self, client: AsyncClient, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.client = client
        self._loop = loop

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it on the client's loop; cancelled there when the caller is."""
        if self._loop is None or self._loop is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
