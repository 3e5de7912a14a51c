"""`Answers`: a peer that asks for much and does not read is answered when it reads, and asked for no more meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from engine.errors import EngineError
from engine.limits import KIB

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection

log = logging.getLogger(__name__)

REQUESTS_MAX = 1_000  # under way at once on one connection; above it, no more frames are read
REQUEST_BYTES_MAX = 256 * KIB  # of their headers, likewise


class Teller(Protocol):
    """Has something to tell the peer, of which only the newest counts."""

    def tell(self) -> None:
        """Do it; nothing, if there is nothing any more."""


class Answers:
    """The requests of one connection that are under way, and what waits for room to be said. Loop thread only."""

    __slots__ = ("_bytes", "_connection", "_count", "_late", "_room")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._count = 0
        self._bytes = 0  # of headers
        self._room: asyncio.Future[None] | None = None  # wakes requests that are done
        self._late: dict[Teller, None] = {}  # what is told without a request, first come first

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return not self._count

    def begun(self) -> int:
        """One more request, of the frame that is being delivered; what ended() is to be given."""
        size: int = getattr(self._connection.stream, "header_size", 0)
        self._count += 1
        self._bytes += size
        if self._count > REQUESTS_MAX or self._bytes > REQUEST_BYTES_MAX:
            self._connection.hold("requests")
        return size

    def ended(self, size: int) -> None:
        """It was answered, or will not be."""
        self._count -= 1
        self._bytes -= size
        if self._count <= REQUESTS_MAX // 2 and self._bytes <= REQUEST_BYTES_MAX // 2:
            self._connection.release("requests")

    def start(self, request_id: int, work: Coroutine[Any, Any, Any], over: Callable[[], object] = lambda: None) -> None:
        """Do it in the background and answer with what it returns.

        `over` is called once it has ended, also when it never began: the broker is closing.
        """
        size = self.begun()

        def close(_: object = None) -> None:
            work.close()  # of one that never began
            over()

        task = self._connection.broker.tasks.spawn(self.work(request_id, work, size))
        if task is None:
            close()
            self.ended(size)
        else:
            task.add_done_callback(close)

    async def work(self, request_id: int, work: Coroutine[Any, Any, Any], size: int) -> None:
        """The same at once; `size` is what begun() has said."""
        connection = self._connection
        try:
            result = await work
            if result is not None:
                if not connection.takes_answers:
                    await self.room()
                connection.succeed(request_id, result)
                if self._count == 1:  # nobody else's answer comes along
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

        It counts as a request under way: who acknowledges faster than that can be saved is not listened to meanwhile.
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
        """Done when the peer takes what it is sent, or is gone. Then an answer of any size may be sent."""
        while not self._connection.takes_answers:
            if self._room is None or self._room.done():
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    def tell(self, who: Teller) -> None:
        """Let `who` tell now, or when there is room."""
        if self._connection.takes_answers:
            who.tell()
        else:
            self._late[who] = None

    def go_on(self) -> None:
        """There is room again, or the peer is gone."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        while self._late and self._connection.takes_answers:
            who = next(iter(self._late))
            del self._late[who]
            who.tell()
