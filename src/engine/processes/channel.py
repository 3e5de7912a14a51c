"""`Channel`: requests and answers between the two ends of a socket pair, the server's parent and one of its children.

A message is a length of four bytes, little-endian, and a map of msgpack: `{id, method, arguments}` for a request,
`{id, result}` or `{id, code, error}` for its answer. The end of the channel is the end of the process at the other end.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgpack

from engine.aio.tasks import Supervisor
from engine.errors import ConnectError, EngineError

log = logging.getLogger(__name__)

_LENGTH = struct.Struct("<I")

Answers = Mapping[str, Callable[..., Awaitable[Any]]]


class Channel:
    """One end. `ended`: done when the other end is closed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: Answers, peer: str) -> None:
        """`answers`: the methods that the other end may call, by name. `peer`: its name, for errors."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reader = reader
        self._writer = writer
        self._answers = answers
        self._peer = peer
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks = Supervisor(f"channel to {peer}")
        self._tasks.spawn(self._receive(), "messages")

    @classmethod
    async def open(cls, sock: socket.socket, answers: Answers, peer: str) -> Channel:
        """Take over a connected socket."""
        sock.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        return cls(reader, writer, answers, peer)

    async def call(self, method: str, **arguments: Any) -> Any:
        """The answer. Raises the error that the other end answers, ConnectError when it has ended."""
        if self.ended.done():
            raise ConnectError(f"{self._peer} has ended")
        self._last_id += 1
        ident, future = self._last_id, asyncio.get_running_loop().create_future()
        self._waiting[ident] = future
        try:
            self._send({"id": ident, "method": method, "arguments": arguments})
            return await future
        finally:
            self._waiting.pop(ident, None)

    def _send(self, message: Mapping[str, Any]) -> None:
        packed = msgpack.packb(message)
        self._writer.write(_LENGTH.pack(len(packed)) + packed)

    async def _receive(self) -> None:
        try:
            while True:
                (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                message = msgpack.unpackb(await self._reader.readexactly(size), strict_map_key=False)
                if "method" in message:
                    self._tasks.spawn(self._answer(message), message["method"])
                elif (future := self._waiting.get(message["id"])) is not None and not future.done():
                    _finish(future, message)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._end()

    async def _answer(self, message: Mapping[str, Any]) -> None:
        ident = message["id"]
        try:
            result = await self._answers[message["method"]](**message["arguments"])
        except EngineError as e:
            self._send({"id": ident, "code": e.code, "error": str(e)})
        except Exception as e:
            log.exception("%s for %s failed", message["method"], self._peer)
            self._send({"id": ident, "code": EngineError.code, "error": f"{type(e).__name__}: {e}"})
        else:
            self._send({"id": ident, "result": result})

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectError(f"{self._peer} has ended"))
                future.exception()  # retrieved: the caller may be cancelled in this very turn

    async def close(self) -> None:
        """Close this end. Idempotent."""
        await self._tasks.close()
        self._writer.close()
        self._end()


def _finish(future: asyncio.Future[Any], answer: Mapping[str, Any]) -> None:
    if "code" in answer:
        future.set_exception(EngineError.from_code(answer["code"], answer["error"]))
        future.exception()  # retrieved: the caller may be cancelled in this very turn
    else:
        future.set_result(answer["result"])
