"""Whether a broker answers: a greeting, and no more."""

from __future__ import annotations

import asyncio
from typing import Any

from engine.errors import AuthenticationError, ConnectError, EngineError
from engine.proxy.config import ProxyConfig
from engine.wire.commands import FEATURES, MAGIC, PROTOCOL_VERSION, Command, Header
from engine.wire.maps import MapStream, fields_of
from engine.wire.stream import Connector, FrameStream


class _Caller:
    """A FrameHandler that waits for the first frame. Loop thread only."""

    def __init__(self, stream: FrameStream) -> None:
        self.stream = MapStream(stream)
        self.answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def frame_received(self, received: Header, payload: memoryview) -> None:
        """The broker's word."""
        command, header = received.command, fields_of(received)
        if self.answer.done():
            return
        if command is Command.CONNECTED:
            self.answer.set_result(header)
        elif command is Command.ERROR:
            self.answer.set_exception(EngineError.from_code(header["code"], header["message"]))

    def pause_writing(self) -> None:
        """One small frame is all that is sent."""

    def resume_writing(self) -> None:
        """See pause_writing()."""

    def connection_lost(self, error: Exception | None) -> None:
        """There will be none."""
        if not self.answer.done():
            self.answer.set_exception(ConnectError(f"it closed the connection: {error or 'without a word'}"))
        self.answer.exception()  # retrieved: nobody may wait any more


async def probe(connector: Connector, url: str, config: ProxyConfig) -> dict[str, Any]:
    """The broker's CONNECTED; {} when it lives and does not let the proxy itself in. Raises ConnectError."""
    made: list[_Caller] = []

    def handler(stream: FrameStream) -> _Caller:
        made.append(_Caller(stream))
        return made[0]

    await connector.connect(url, handler)
    hello = {
        "magic": MAGIC,
        "protocol": PROTOCOL_VERSION,
        "features": list(FEATURES),
        "client": "engine-proxy",
        "token": config.broker_token,
    }
    made[0].stream.send(Command.CONNECT, hello)
    try:
        async with asyncio.timeout(config.handshake_timeout):
            return await made[0].answer
    except AuthenticationError:
        return {}
    except EngineError as e:
        raise ConnectError(f"{url}: {e}") from e
    except TimeoutError as e:
        raise ConnectError(f"{url} has not greeted within {config.handshake_timeout:g} s") from e
    finally:
        made[0].stream.abort()
