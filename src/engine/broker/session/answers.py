"""`Answers`: the requests of a connection that are in flight, and what waits until its peer reads.

Requests run in the background, up to REQUESTS_MAX of a connection at once; above that its frames are not read. An
answer is sent when the peer takes answers (`Backpressure.takes_answers`). Updates that no request asked for, such as a
new layout, wait in the same way, the newest of each session only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from engine.aio.shielded import shielded
from engine.broker.pools.ports import Pause
from engine.errors import EngineError
from engine.limits import KIB

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection

log = logging.getLogger(__name__)

REQUESTS_MAX = 1_000  # in flight on one connection; above it, no more frames are read
REQUEST_BYTES_MAX = 256 * KIB  # of their headers, likewise


class Updating(Protocol):
    """A session that sends updates to the peer, of which only the newest counts."""

    def send_update(self) -> None:
        """Send the newest update, if the peer does not have it."""


class Answers:
    """The requests of one connection. Loop thread only."""

    __slots__ = ("_bytes", "_connection", "_count", "_late", "_room")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._count = 0
        self._bytes = 0  # of headers
        self._room: asyncio.Future[None] | None = None  # wakes requests whose answers wait
        self._late: dict[Updating, None] = {}  # sessions whose updates wait, in order

    @property
    def idle(self) -> bool:
        """Whether no request is in flight."""
        return not self._count

    def begun(self) -> int:
        """Count the request of the frame that is being delivered; the size that ended() takes."""
        size = self._connection.stream.header_size
        self._count += 1
        self._bytes += size
        if self._count > REQUESTS_MAX or self._bytes > REQUEST_BYTES_MAX:
            self._connection.pressure.hold(Pause.REQUESTS)
        return size

    def ended(self, size: int) -> None:
        """The request was answered, or will not be."""
        self._count -= 1
        self._bytes -= size
        if self._count <= REQUESTS_MAX // 2 and self._bytes <= REQUEST_BYTES_MAX // 2:
            self._connection.pressure.release(Pause.REQUESTS)

    def start(self, request_id: int, work: Coroutine[Any, Any, Any], over: Callable[[], object] = lambda: None) -> None:
        """Run it in the background and answer with the dict that it returns; None: it has answered itself.

        `over` is called once it has ended, also when it never began because the broker is closing.
        """
        size = self.begun()

        def close(_: object = None) -> None:
            work.close()  # of one that never began
            over()

        task = self._connection.host.tasks.spawn(self.work(request_id, work, size))
        if task is None:
            close()
            self.ended(size)
        else:
            task.add_done_callback(close)

    async def work(self, request_id: int, work: Coroutine[Any, Any, Any], size: int) -> None:
        """Run the request now. `size`: the value begun() returned."""
        connection = self._connection
        try:
            result = await work
            if result is not None:
                if not connection.pressure.takes_answers:
                    await self.room()
                connection.succeed(request_id, result)
                if self._count == 1:  # no other answer will be sent along
                    connection.stream.flush()
        except EngineError as e:
            connection.error(request_id, e)
        except Exception as e:
            log.exception("request %d of %s failed", request_id, connection.stream.peer)
            connection.error(request_id, EngineError(f"the broker failed: {type(e).__name__}: {e}"))
        finally:
            self.ended(size)

    def answer_when(self, request_id: int, done: Awaitable[Any]) -> None:
        """Answer when `done` is, or with its error.

        It counts as a request in flight: frames of a client that acknowledges faster than that is saved are not read.
        """
        future, connection = asyncio.ensure_future(done), self._connection
        size = self.begun()

        def answer(future: asyncio.Future[Any]) -> None:
            self.ended(size)
            if future.cancelled():
                connection.error(request_id, EngineError("the broker is closing"))
            elif (error := future.exception()) is None:
                connection.succeed(request_id)
            else:
                connection.error(request_id, error if isinstance(error, EngineError) else EngineError(str(error)))

        future.add_done_callback(answer)

    async def room(self) -> None:
        """Wait until the peer takes answers, or is gone. Then an answer of any size may be sent."""
        while not self._connection.pressure.takes_answers:
            if self._room is None or self._room.done():
                self._room = asyncio.get_running_loop().create_future()
            await shielded(self._room)

    def send_update(self, session: Updating) -> None:
        """Let the session send its update now, or when the peer takes answers."""
        if self._connection.pressure.takes_answers:
            session.send_update()
        else:
            self._late[session] = None

    def go_on(self) -> None:
        """The peer takes answers again, or is gone."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        while self._late and self._connection.pressure.takes_answers:
            session = next(iter(self._late))
            del self._late[session]
            session.send_update()
