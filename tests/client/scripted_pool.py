"""A pool whose connections end in a list: the test writes what the broker says."""

from __future__ import annotations

import asyncio
from typing import Any

from engine.client.net.connection import Connection
from engine.wire.commands import Command


class Stream:
    """Keeps what the client sends."""

    def __init__(self) -> None:
        self.sent: list[tuple[Command, dict[str, Any]]] = []

    def send(self, command: Command, header: dict[str, Any], payload: object = b"") -> None:
        self.sent.append((command, dict(header)))

    def gather(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Options:
    operation_timeout = 60.0


class ScriptedPool:
    """Gives out one connection after the other; `door` is clear while none can be had."""

    def __init__(self) -> None:
        self.options = Options()
        self.door = asyncio.Event()
        self.door.set()
        self.reconnect()

    def reconnect(self) -> Connection:
        self.stream = Stream()
        self.connection = Connection("engine://b", self.stream)  # type: ignore[arg-type]
        return self.connection

    async def get(self, url: str | None) -> Connection:
        await self.door.wait()
        return self.connection
