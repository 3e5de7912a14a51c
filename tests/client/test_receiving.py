"""Whoever waits to receive hears of the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.client.consume.receiving import Receiving
from engine.errors import AlreadyClosedError


class Box(Receiving):
    """Receives what is put in."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: list[Any] = []

    def take_now(self, max_messages: int | None = None, max_bytes: int = -1) -> Any:
        return self.inside.pop(0)

    @property
    def waiting(self) -> int:
        return len(self.inside)

    def _pop_message(self) -> Any:
        return self.inside.pop(0) if self.inside else None

    def _pop_batch(self, max_messages: int, max_bytes: int) -> Any:
        return self._pop_message()

    def _no_messages(self) -> Any:
        return []

    async def close(self) -> None:
        """Nothing to do."""


async def test_the_end_comes_while_somebody_else_is_faster() -> None:
    """It was woken for a message that another thread has taken, and before it looks there is nothing more to come."""
    box = Box()
    waits = asyncio.ensure_future(box.receive())
    await asyncio.sleep(0)
    box.inside.append("a message")
    box._wake()
    box.take_now()
    box.fail(AlreadyClosedError("it was closed"))
    with pytest.raises(AlreadyClosedError):
        await asyncio.wait_for(waits, 20)
