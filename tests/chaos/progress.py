"""Waiting for what actors do under faults: for so many events of a history, however long a loaded machine takes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

PROGRESS_S_MAX = 120.0  # without the events that are waited for; something is stuck then


def acknowledged(event: dict[str, Any]) -> bool:
    """A send was acknowledged."""
    return (event["what"], event["phase"]) == ("send", "ok")


def committed(event: dict[str, Any]) -> bool:
    """A commit was confirmed."""
    return (event["what"], event["phase"], event.get("state")) == ("txn_end", "ok", "COMMITTED")


def was_split(event: dict[str, Any]) -> bool:
    """The shaper has split a segment."""
    return event["what"] == "fault" and event.get("text", "").startswith("split ")


class Progress:
    """Counts the events that are meant, as they are written into a history: `heard` is its `out`."""

    def __init__(self, meant: Callable[[dict[str, Any]], bool]) -> None:
        self.count = 0
        self._meant = meant
        self._waiting: list[tuple[int, asyncio.Event]] = []

    def heard(self, line: str) -> None:
        """The next line of the history."""
        self.count += self._meant(json.loads(line))
        for wanted, reached in self._waiting:
            if self.count >= wanted:
                reached.set()

    async def more(self, count: int) -> None:
        """Wait for so many more."""
        await self.until(self.count + count)

    async def until(self, count: int) -> None:
        """Wait until there are so many in all."""
        reached = asyncio.Event()
        self._waiting.append((count, reached))
        if self.count < count:
            async with asyncio.timeout(PROGRESS_S_MAX):
                await reached.wait()


def heard_by(*listeners: Progress) -> Callable[[str], None]:
    """The `out` of a history that several of them count in."""

    def heard(line: str) -> None:
        for listener in listeners:
            listener.heard(line)

    return heard
