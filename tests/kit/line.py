"""`Line`: a TCP connection's way to a port of this machine, which can be cut, and stay cut, or let nothing through."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class Line:
    """Passes bytes on between its own port and another one. Used on the loop that entered it."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server: asyncio.Server
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.open = True
        self.swallows = False  # what the far end says: it does its work, and the answer is lost
        self.endpoint = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.endpoint = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.open = False
        self.flow()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections; new ones are taken while it is open."""
        writers, self._writers = self._writers, set()
        for writer in writers:
            writer.transport.abort()

    def hold(self) -> None:
        """Let nothing through, and say so to neither end, as a network does that loses each packet."""
        self._flows.clear()

    def flow(self) -> None:
        """Undo hold(): what was sent meanwhile arrives, as it does when it is sent again."""
        self._flows.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.open:
            writer.transport.abort()
            return
        self._writers.add(writer)
        await self._flows.wait()
        if not self.open:
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers |= {writer, far_writer}
        for source, target, back in ((reader, far_writer, False), (far_reader, writer, True)):
            task = asyncio.create_task(self._pass(source, target, back=back))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._flows.wait()
                if back and self.swallows:
                    continue
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
        self._writers.discard(writer)
