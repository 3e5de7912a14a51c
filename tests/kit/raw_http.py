"""HTTP requests written byte by byte: with any header, half sent, or left in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

WAIT_S = 30.0


class Raw:
    """One connection to an HTTP server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def connected(cls, address: tuple[str, int]) -> AsyncIterator[Raw]:
        made = cls(*await asyncio.open_connection(*address))
        try:
            yield made
        finally:
            made.writer.close()
            with suppress(ConnectionError):
                await made.writer.wait_closed()

    def say(self, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> None:
        """Write a head, and a body that may be shorter than the head says."""
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        async with asyncio.timeout(WAIT_S):
            with suppress(ConnectionError):
                return await self.reader.read()
        return b""

    async def status(self) -> int:
        """Of the next answer."""
        async with asyncio.timeout(WAIT_S):
            return int((await self.reader.readuntil(b"\r\n")).split()[1])


async def asked(address: tuple[str, int], method: str, target: str, headers: dict[str, str], body: bytes = b"") -> int:
    """The status of a request over a connection of its own; `headers` name the Host where there is to be one."""
    async with Raw.connected(address) as raw:
        length = {"Content-Length": str(len(body))} if body else {}
        raw.say(method, target, {**headers, **length, "Connection": "close"}, body)
        return await raw.status()
