"""A pool whose connections end in a list: the test writes what the broker says."""

from __future__ import annotations

import asyncio
from typing import Any

from engine.client.net.connection import Connection
from engine.testing.maps import fields_of, packed
from engine.wire.commands import Command, Header, decode


class Stream:
    """Keeps what the client sends."""

    peer = "the test"

    def __init__(self) -> None:
        self.sent: list[tuple[Command, dict[str, Any]]] = []

    def send(self, header: Header, payload: object = b"") -> None:
        self.sent.append((header.command, fields_of(header)))

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

    def says(self, command: Command, fields: dict[str, Any]) -> None:
        """The broker, over the last connection."""
        self.connection.frame_received(decode(command, packed(command, fields).packed), memoryview(b""))

    async def get(self, url: str | None) -> Connection:
        await self.door.wait()
        return self.connection
