"""`Sending`: the working part of a producer, which outlives the program's object until all is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engine.aio.once import Once
from engine.client.produce.line import Line
from engine.client.produce.outbox import Outbox
from engine.errors import AlreadyClosedError


class Sending:
    """Loop thread only."""

    def __init__(self, outbox: Outbox, line: Line) -> None:
        self.on_closed: Callable[[], object] | None = None  # called once it is closed
        self.closed = False  # close() was called
        self._outbox = outbox
        self._line = line
        self._end = Once()

    def flushed(self) -> asyncio.Future[None]:
        """Sends everything that was taken; done when it is durable."""
        in_flight, failure = self._outbox.in_flight, self._outbox.failure
        if failure is None or len(in_flight):
            self._outbox.send_open()
            failure = None
        return in_flight.flushed(failure)

    async def flush_line(self) -> None:
        """The same with what waits for room."""
        await self._line.served()
        await self.flushed()

    async def close(self) -> None:
        """Flush, then end. Idempotent. Raises what flushing raises, after everything is closed."""
        if not self.closed and not self._line and self._outbox.failure is None:
            self._outbox.refuse(self._closed_error())  # at once: calls start when they are made
        self.closed = True
        await self._end.run(self._close)

    def _closed_error(self) -> AlreadyClosedError:
        return AlreadyClosedError(f"the producer {self._outbox.name} of {self._outbox.session.topic} was closed")

    async def _close(self) -> None:
        closed = self._closed_error()
        try:
            await self._line.served()
            if self._outbox.failure is None:
                self._outbox.refuse(closed)  # so that nothing is added while it flushes
                await self.flushed()
            else:
                await self._outbox.in_flight.flushed()
        finally:
            self._outbox.fail(closed)
            await self._outbox.release()
            if self.on_closed is not None:
                self.on_closed()
