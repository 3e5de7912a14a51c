"""One connection to a metadata service: the handshake, frames of requests and of answers."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable

from engine.errors import ConnectError, EngineError, ProtocolError, TimeoutError
from engine.limits import MIB
from engine.metadata import protocol
from engine.metadata.protocol import Answer, Hello, Refused, Welcome
from engine.wire.commands import Header, Metadata
from engine.wire.stream import Connector, FrameHandler, FrameStream

_FRAME_SIZE = MIB  # of requests, about
_HEADER = Metadata()


class Link:
    """This end of the connection (a FrameHandler). Requests of one turn of the loop are one frame. Loop thread only."""

    def __init__(self, stream: FrameStream) -> None:
        self.stream = stream
        self.received: Callable[[int, list[Answer]], None] = lambda position, answers: None
        self.ended = asyncio.Event()
        self.why = "it closed the connection"  # once it has ended
        self.frames = 0  # received
        self.pid = 0
        self.version = 0
        self._welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._out: list[bytes] = []
        self._out_size = 0

    async def greet(self, hello: Hello) -> None:
        """Raises ConnectError; the error with which the service refuses this client, such as UnsupportedError."""
        self.send(protocol.encode(hello))
        await self._welcome

    def send(self, request: bytes) -> None:
        """Send an encoded request at the end of this turn."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(request)
        self._out_size += len(request)
        if self._out_size >= _FRAME_SIZE:
            self._flush()

    def _flush(self) -> None:
        requests, self._out, self._out_size = self._out, [], 0
        if requests:
            self.stream.send(_HEADER, protocol.joined(requests))

    def abort(self, why: str) -> None:
        """Give the connection up."""
        self._end(why)
        self.stream.abort()

    def close(self) -> None:
        """Send what is queued, and close."""
        self._flush()
        self._end("this client closed it")
        self.stream.close()

    # -- the stream ------------------------------------------------------------------------------------------------

    def frame_received(self, header: Header, payload: memoryview) -> None:
        if self.ended.is_set():
            return
        self.frames += 1
        try:
            if not isinstance(header, Metadata):
                raise ProtocolError(f"a metadata service answers METADATA, got {header.command.name}")
            position, answers = protocol.decode_answers(payload)
            if not self._welcome.done():
                answers = self._welcomed(answers)
            self.received(position, answers)
        except ProtocolError as e:
            self.abort(str(e))

    def _welcomed(self, answers: list[Answer]) -> list[Answer]:
        first = answers[0] if answers else None
        if isinstance(first, Welcome):
            self.pid, self.version = first.pid, first.version
            self._welcome.set_result(None)
        elif isinstance(first, Refused):
            self._welcome.set_exception(protocol.error_of(first.code, first.text))
        else:
            raise ProtocolError(f"a metadata service begins with Welcome, got {type(first).__name__}")
        return answers[1:]

    def pause_writing(self) -> None:
        """Callers wait for their answers; what they ask meanwhile is bounded by them."""

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        self._end(self.why if error is None else str(error))

    def _end(self, why: str) -> None:
        if self.ended.is_set():
            return
        self.why = why
        self.ended.set()
        if not self._welcome.done():
            self._welcome.set_exception(ConnectError(f"the metadata service ended the handshake: {why}"))
            self._welcome.exception()  # retrieved: the caller may be cancelled


async def dial(connector: Connector, url: str, hello: Hello, timeout: float) -> Link:
    """A connection that was welcomed. Raises what the connector raises, TimeoutError, and as Link.greet()."""
    made: list[Link] = []

    def handler(stream: FrameStream) -> FrameHandler:
        made.append(Link(stream))
        return made[0]

    try:
        async with asyncio.timeout(timeout):
            await connector.connect(url, handler)
            await made[0].greet(hello)
    except builtins.TimeoutError as e:
        if made:
            made[0].abort("it did not answer the handshake")
        if isinstance(e, EngineError):
            raise
        raise TimeoutError(f"the metadata store at {url} did not answer the handshake within {timeout:g} s") from e
    except BaseException:
        if made:
            made[0].abort("the handshake failed")
        raise
    return made[0]
